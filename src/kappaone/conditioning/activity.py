"""What one head's attention does on an example: logit spread and entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kappaone.conditioning.jacobian import float64


@dataclass(frozen=True)
class AttentionActivity:
    """Logits and entropy of one head on one example.

    Attributes:
        logit_std: standard deviation of the logits (scale and additive mask included) over the unmasked entries, each
            row centred first: the softmax does not see a row's mean. NaN if no query has two keys.
        attention_entropy: mean over the queries of -sum p log p, in nats.
        relative_entropy: mean over the queries with at least two unmasked keys of the entropy over log(unmasked
            keys): 1 is uniform, 0 one key. NaN if there is no such query.
    """

    logit_std: float
    attention_entropy: float
    relative_entropy: float

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be NaN."""
        return dict(vars(self))


def attention_activity(q: Tensor, k: Tensor, *, scale: float, mask: Tensor | None = None) -> AttentionActivity:
    """Logit spread and entropy of one head, in float64.

    Args:
        q: (N, d) queries as they enter the softmax, before the scale.
        k: (M, d) keys.
        scale: factor on q.k.
        mask: additive, broadcastable to (N, M), -inf where masked.

    Returns:
        The numbers; queries whose keys are all masked are left out.

    Examples:
        >>> zeros = torch.zeros(3, 2)
        >>> a = attention_activity(zeros, zeros, scale=1.0)
        >>> a.logit_std, round(a.relative_entropy, 12)
        (0.0, 1.0)
    """
    logits = scale * float64(q) @ float64(k).mT
    if mask is not None:
        logits = logits + float64(mask).to(logits.device)
    open_ = logits > -math.inf
    counts = open_.sum(dim=1)
    logits, open_, counts = (t[counts > 0] for t in (logits, open_, counts))
    filled = torch.where(open_, logits, 0.0)
    centred = torch.where(open_, filled - filled.sum(dim=1, keepdim=True) / counts[:, None], 0.0)
    # A centred row of m entries has m - 1 degrees of freedom; rows with one key have none.
    freedom = int((counts - 1).sum())
    std = math.sqrt(float(centred.square().sum()) / freedom) if freedom else math.nan
    P = torch.softmax(logits, dim=1)
    entropies = torch.special.entr(P).sum(dim=1)
    several = counts > 1
    relative = entropies[several] / counts[several].to(entropies).log()
    return AttentionActivity(
        std,
        float(entropies.mean()) if len(entropies) else math.nan,
        float(relative.mean()) if len(relative) else math.nan,
    )
