"""The factor on q.k, fitted to the logits that entered the softmax, and compared with what a layout says.

The rows of a layout may all be right and its `scale` wrong (a missed 1/sqrt(head_dim), a norm between projection and
softmax that nobody stated). So q and k are made from what the projections read and the weights, in float64, and their
products compared with the logits that were heard.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kappaone.errors import LayoutError
from kappaone.layouts.bench import Bench
from kappaone.layouts.blocks import block_view
from kappaone.layouts.capture import Heard
from kappaone.layouts.facts import FACTS
from kappaone.layouts.layout import Role

# Logits were computed in float32, or by a fused kernel.
_CLEAN, _EQUAL = 1e-3, 1e-3
# Masks are added as -inf, as the smallest number, or as -10,000.
_MASKED = -5e3


@dataclass(frozen=True)
class FactorVerdict:
    """What a layout says of the factor on q.k, and what the logits say.

    Attributes:
        layer: module name.
        expected: the layout's scale.
        seen: the factor that fits, or None where no factor does.
        why: what was seen where none fits.
        within: how far apart the two may be, relatively, by the dtype of the logits.
    """

    layer: str
    expected: float
    seen: float | None
    why: str = ""
    within: float = _EQUAL

    @property
    def ok(self) -> bool:
        """Whether the logits are what the layout says."""
        return self.seen is not None and abs(self.seen - self.expected) <= self.within * self.expected

    def __str__(self) -> str:
        found = f"the logits fit {self.seen:.6g}" if self.seen is not None else self.why
        return f"{self.layer}: the layout says a factor {self.expected:.6g} on q.k and nothing else; {found}"


def check_factor(bench: Bench, heard: Heard) -> FactorVerdict | None:
    """Compare a layout's scale with the logits; None where the layout states facts under which they are something else."""
    layout = bench.layout
    if layout.scale is None or not all(FACTS[name].plain_logits for name, value in layout.facts.items() if value):
        return None
    try:
        seen, why = fitted(expected_products(bench), heard)
    except LayoutError as error:
        return FactorVerdict(layout.name, layout.scale, None, error.what)
    if seen is None and why.startswith("unheard"):
        return None
    return FactorVerdict(layout.name, layout.scale, seen, why, max(_EQUAL, 4 * _rounding(heard)))


def expected_products(bench: Bench) -> Tensor:
    """(batch, heads, N, M) q k^T by the layout, in float64."""
    layout = bench.layout

    def projected(role: Role) -> Tensor:
        rows = layout.role(role)
        weight = bench.state[bench.local(rows.parameter)]
        blocks = torch.stack([block_view(weight, rows, role, head) for head in range(rows.heads)])
        out = torch.einsum("bnw,hsw->bhns", bench.reads(role), blocks)
        if rows.bias is not None:
            bias = bench.state[bench.local(rows.bias)]
            out = out + torch.stack([bias[rows.bias_span(head)] for head in range(rows.heads)])[None, :, None]
        return out

    k = projected("k")[:, [layout.kv_head(head) for head in range(layout.heads)]]
    return projected("q") @ k.mT


def fitted(expected: Tensor, heard: Heard) -> tuple[float | None, str]:
    """The factor between q k^T and what entered the softmax, and the reason where there is none.

    Raises:
        LayoutError: if the softmax works on another number of heads.
    """
    if heard.sdpa is not None:
        q, k, scale = heard.sdpa["query"].double(), heard.sdpa["key"].double(), heard.sdpa.get("scale")
        if k.ndim == 4 and k.shape[1] != q.shape[1]:
            k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
        factor = q.shape[-1] ** -0.5 if scale is None else float(scale)
        logits = factor * q @ k.mT
    elif heard.softmax is not None:
        logits = heard.softmax.double()
    else:
        return None, "unheard: no softmax and no scaled_dot_product_attention"
    if logits.ndim == 5 and logits.shape[-3] == 1:
        logits = logits.squeeze(-3)  # one window that holds all tokens (Hiera)
    if logits.ndim >= 4 and logits.shape[-3] != expected.shape[1]:
        raise LayoutError(
            f"the softmax works on {logits.shape[-3]} heads, the layout has {expected.shape[1]}",
            "heads are mixed (talking heads) or merged; write the layout by hand",
        )
    if len(expected) == 1 and logits.ndim == 4 and len(logits) == 1 and logits.shape != expected.shape:
        # Packed sequences, one call for each: what was heard is the first.
        expected = expected[..., : logits.shape[-2], : logits.shape[-1]]
    if logits.ndim == 3 and expected.shape[1] > 1 and logits.shape == expected[:, 0].shape:
        expected = expected[:, :1]  # a softmax for each head: what was heard is the first
    if logits.numel() != expected.numel():
        return None, f"the softmax saw {tuple(logits.shape)}, q k^T has {tuple(expected.shape)}"
    logits = logits.reshape(expected.shape)
    seen = logits > _MASKED
    if bool((logits.masked_fill(~seen, float("-inf")).amax(-1).abs() == 0).all()):
        # Each query's largest logit was taken off, which the softmax does not see: so is the mean, on both sides.
        expected, logits = (_centered(t, seen) for t in (expected, logits))
    x, y = expected[seen], logits[seen]
    size = float(y.norm())
    if size == 0 or float(x.norm()) == 0:
        return None, "unheard: all logits are zero"
    scale = float((x @ y) / (x @ x))
    rest = float((y - scale * x).norm()) / size
    if not scale > 0 or rest > max(_CLEAN, 4 * _rounding(heard)):
        return None, f"what entered the softmax differs from the best multiple of q k^T by {rest:.2g} relatively"
    return scale, ""


def _rounding(heard: Heard) -> float:
    """Relative rounding of the dtype in which the logits were computed."""
    spoken = heard.sdpa["query"] if heard.sdpa is not None else heard.softmax
    return 0.0 if spoken is None else torch.finfo(spoken.dtype).eps


def _centered(logits: Tensor, seen: Tensor) -> Tensor:
    """Without the mean of what each query sees."""
    kept = logits.masked_fill(~seen, 0.0)
    return logits - kept.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
