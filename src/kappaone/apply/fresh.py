"""Are the weights fresh, or were they loaded or trained? Loaded weights are only overwritten when the user says so.

Three kinds of evidence: transformers' own mark on parameters that a checkpoint brought; our own record, if we set
these very bits; and statistics: freshly drawn weights follow one of the library's laws, trained ones do not.
Where a layout knows no law there is no evidence, and the report says so.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from kappaone.apply.flags import from_checkpoint
from kappaone.apply.gathered import samples
from kappaone.apply.ranks import Ranks
from kappaone.errors import WriteError
from kappaone.laws import fitting, moments
from kappaone.layouts.blocks import block_view
from kappaone.layouts.layout import AttentionLayout, Role

_SAMPLE = 65536
_SHOWN = 12


def refuse_loaded(
    layouts: Sequence[AttentionLayout],
    parameters: dict[str, nn.Parameter],
    roles: Sequence[Role],
    ours: frozenset[tuple[str, str]],
    ranks: Ranks | None = None,
) -> list[str]:
    """Raise where weights were loaded or trained.

    Args:
        layouts: the layers that will be written.
        parameters: the model's parameters by name.
        roles: the roles that will be written.
        ours: (layer, role) pairs that still hold what kappaone itself wrote.
        ranks: who holds the model; where parameters are sharded, their samples are put together first (a collective).

    Returns:
        Remarks for the report: layers about which there is no evidence.

    Raises:
        WriteError: naming every such parameter, and the evidence for the first.
    """
    blind: list[str] = []
    loaded: dict[str, str] = {}
    looked_at = [
        (layout, role)
        for layout in layouts
        for role in roles
        if role != "o" and layout.laws and (layout.name, role) not in ours
    ]
    ranks = ranks or Ranks()
    asked = [(layout, role, _step(layout, role)) for layout, role in looked_at] if ranks.sharded else []
    sampled = samples(asked, parameters, ranks, _SAMPLE)
    for layout in layouts:
        for role in roles:
            if role == "o" and layout.o is None:
                continue
            rows = layout.role(role)
            weight = parameters[rows.parameter]
            if from_checkpoint(weight) and (layout.name, role) not in ours:
                loaded.setdefault(
                    rows.parameter, f"of layer {layout.name!r}: transformers marks it as loaded from a checkpoint"
                )
                continue
            if role == "o" or (layout.name, role) in ours:
                continue
            if not layout.laws:
                blind.append(layout.name)
                continue
            sample = sampled[layout.name, role] if ranks.sharded else _sample(layout, role, weight)
            # All zeros, or memory that nobody has set yet (NaN), is nobody's work: there is nothing to lose.
            if sample.any() and not np.isnan(sample).all() and fitting(layout.laws, sample) is None:
                known = "; ".join(f"{law.kind}, std {law.std:.4g} ({law.origin})" for law in layout.laws)
                loaded.setdefault(
                    rows.parameter,
                    f"of layer {layout.name!r}: role {role} ({moments(sample)}) follows none of the library's init laws: {known}",
                )
    if loaded:
        _refuse(loaded)
    if not blind:
        return []
    return [f"whether weights were loaded cannot be seen in {len(set(blind))} layers whose layout names no init law"]


def _step(layout: AttentionLayout, role: Role) -> int:
    """Every how many rows of a block one is looked at."""
    rows = layout.role(role)
    return min(max(1, -(-rows.rows * rows.width // _SAMPLE)), rows.size)


def _sample(layout: AttentionLayout, role: Role, weight: nn.Parameter) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = layout.role(role)
    step = _step(layout, role)
    blocks = [block_view(weight, rows, role, head)[::step] for head in range(rows.heads)]
    values = torch.cat([block.reshape(-1) for block in blocks])
    return np.asarray(values[:_SAMPLE].to("cpu", torch.float64).numpy())


def _refuse(loaded: dict[str, str]) -> None:
    first, *others = loaded
    more = ""
    if others:
        shown = others if len(others) <= _SHOWN else [*others[: _SHOWN - 1], others[-1]]
        dots = f" (and {len(others) - len(shown)} more)" if len(shown) < len(others) else ""
        more = f"; so do {len(others)} others: {', '.join(map(repr, shown))}{dots}"
    raise WriteError(
        f"{first!r} {loaded[first].replace(': ', ' seems to hold loaded or trained weights: ', 1)}{more}",
        "pass overwrite=True to replace them, or build the model without loading a checkpoint",
    )
