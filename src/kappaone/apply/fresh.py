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

from kappaone.errors import WriteError
from kappaone.laws import fitting, moments
from kappaone.layouts.blocks import block_view
from kappaone.layouts.layout import AttentionLayout, Role

_SAMPLE = 65536


def refuse_loaded(
    layouts: Sequence[AttentionLayout],
    parameters: dict[str, nn.Parameter],
    roles: Sequence[Role],
    ours: frozenset[tuple[str, str]],
) -> list[str]:
    """Raise where weights were loaded or trained.

    Args:
        layouts: the layers that will be written.
        parameters: the model's parameters by name.
        roles: the roles that will be written.
        ours: (layer, role) pairs that still hold what kappaone itself wrote.

    Returns:
        Remarks for the report: layers about which there is no evidence.

    Raises:
        WriteError: naming the first such parameter and the evidence.
    """
    blind: list[str] = []
    for layout in layouts:
        for role in roles:
            if role == "o" and layout.o is None:
                continue
            rows = layout.role(role)
            weight = parameters[rows.parameter]
            if getattr(weight, "_is_hf_initialized", False) and (layout.name, role) not in ours:
                _refuse(rows.parameter, layout.name, "transformers marks it as loaded from a checkpoint")
            if role == "o" or (layout.name, role) in ours:
                continue
            if not layout.laws:
                blind.append(layout.name)
                continue
            sample = _sample(layout, role, weight)
            # All zeros is nobody's work: there is nothing to lose.
            if sample.any() and fitting(layout.laws, sample) is None:
                known = "; ".join(f"{law.kind}, std {law.std:.4g} ({law.origin})" for law in layout.laws)
                _refuse(
                    rows.parameter,
                    layout.name,
                    f"role {role} ({moments(sample)}) follows none of the library's init laws: {known}",
                )
    if not blind:
        return []
    return [f"whether weights were loaded cannot be seen in {len(set(blind))} layers whose layout names no init law"]


def _sample(layout: AttentionLayout, role: Role, weight: nn.Parameter) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    rows = layout.role(role)
    step = max(1, -(-rows.rows * rows.width // _SAMPLE))
    blocks = [block_view(weight, rows, role, head)[:: min(step, rows.size)] for head in range(rows.heads)]
    values = torch.cat([block.reshape(-1) for block in blocks])
    return np.asarray(values[:_SAMPLE].to("cpu", torch.float64).numpy())


def _refuse(parameter: str, layer: str, evidence: str) -> None:
    raise WriteError(
        f"{parameter!r} of layer {layer!r} seems to hold loaded or trained weights: {evidence}",
        "pass overwrite=True to replace them, or build the model without loading a checkpoint",
    )
