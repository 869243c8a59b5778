"""A layout that was read from somebody's code is tried on the module alone, where that runs on plain tokens.

Words do not tell everything: a factor, the order of two arguments, a missing transposition leave none. So a copy of
reference code counts only if a few of its rows and the factor on q.k do what its layout says. Nothing is written, and no
global random state is read or moved.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from kappaone.errors import KappaoneError
from kappaone.layouts.layout import QKV, AttentionLayout

_TOKENS = 6


def contradiction(module: nn.Module, layouts: Sequence[AttentionLayout]) -> str | None:
    """What a module does that its layouts do not say, in words.

    Returns:
        None where the layouts are confirmed, and where the module cannot be tried: it is on the meta device or sharded,
        or takes other inputs than tokens (batch, token, width).
    """
    from kappaone.layouts.bench import Bench
    from kappaone.layouts.capture import hear
    from kappaone.layouts.factor import check_factor
    from kappaone.layouts.probe import Trial
    from kappaone.layouts.running import evaluating

    weights = list(module.parameters())
    if not weights or any(p.is_meta or hasattr(p, "device_mesh") or not p.is_floating_point() for p in weights):
        return None
    random = torch.Generator("cpu").manual_seed(0)
    for layout in layouts:
        tokens = torch.randn(2, _TOKENS, layout.q.width, generator=random).to(weights[0].device, weights[0].dtype)
        try:
            heard = hear(module, {""}, tokens)[""]
            with evaluating(module):
                bench = Bench(module, layout, heard)
                trial = Trial(bench, random)
                for role in QKV:
                    for head in {0, layout.role(role).heads - 1}:
                        verdict = trial.verdict(role, head, layout.role(role).span(head).start)
                        if not verdict.ok and verdict.role not in ("dead", "?"):
                            return str(verdict)
                factor = check_factor(bench, heard)
        except KappaoneError:
            return None  # it takes other inputs, or its code needs more around it
        if factor is not None and not factor.ok:
            return str(factor)
    return None
