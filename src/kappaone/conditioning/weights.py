"""Spectra of attention weights: by head, by role (its heads stacked) and fused (q, k, v stacked).

The condition number of a fused weight says nothing about its roles, nor a role's about its heads: every number here
carries its level. Source of the quantities: paper, sections 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from kappaone.errors import MeasureError
from kappaone.layouts.blocks import effective_blocks
from kappaone.layouts.layout import QKV, AttentionLayout, Role
from kappaone.linalg.spectra import Spectrum, spectrum


@dataclass(frozen=True)
class RoleSpectra:
    """Spectra of one role of one layer.

    Attributes:
        role: q, k, v or o.
        heads: one spectrum for each head (for k and v: key/value head), of its (head_dim, width) block (o: (width,
            value_dim)).
        stacked: spectrum of all heads on top of each other (o: side by side).
    """

    role: Role
    heads: tuple[Spectrum, ...]
    stacked: Spectrum

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be NaN."""
        return {
            "role": self.role,
            "heads": [s.to_dict() for s in self.heads],
            "stacked": self.stacked.to_dict(),
        }


@dataclass(frozen=True)
class WeightSpectra:
    """Spectra of the weights of one layer.

    Attributes:
        layer: the layer's qualified name.
        roles: q, k, v, and o where the layout has it.
        fused: spectrum of the stacked [W_Q; W_K; W_V], or None if the roles read tokens of different widths.
        one_parameter: whether q, k and v are stored as one parameter, so that `fused` is that weight's spectrum.
    """

    layer: str
    roles: dict[str, RoleSpectra]
    fused: Spectrum | None
    one_parameter: bool

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be NaN."""
        return {
            "roles": {name: role.to_dict() for name, role in self.roles.items()},
            "fused": None if self.fused is None else self.fused.to_dict(),
            "one_parameter": self.one_parameter,
        }


def weight_spectra(model: nn.Module, layout: AttentionLayout) -> WeightSpectra:
    """Singular value extremes, kappa, norms and stable rank of one layer's weights, in float64.

    Args:
        model: the model in which the layout was found; it is only read.
        layout: the layer.

    Returns:
        Spectra by head, by role and fused.

    Raises:
        MeasureError: if a weight has no values (meta device) or is not floating point (quantised).

    Examples:
        >>> from kappaone.layouts import find_attention
        >>> layer = nn.MultiheadAttention(8, 2)
        >>> _ = nn.init.eye_(layer.in_proj_weight[:8].detach())
        >>> spectra = weight_spectra(layer, find_attention(layer)[0])
        >>> [s.condition_number for s in spectra.roles["q"].heads], spectra.roles["q"].stacked.condition_number
        ([1.0, 1.0], 1.0)
    """
    names: tuple[Role, ...] = QKV if layout.o is None else (*QKV, "o")
    roles: dict[str, RoleSpectra] = {}
    stacks: dict[str, torch.Tensor] = {}
    for role in names:
        blocks = effective_blocks(model, layout, role)
        parameter = layout.role(role).parameter
        if blocks.is_meta or not blocks.is_floating_point():
            raise MeasureError(
                f"{parameter!r} is {'on the meta device' if blocks.is_meta else blocks.dtype}; its values are needed",
                "load the weights, or dequantise them, before measuring",
            )
        # (width, heads, size) for o: its heads lie side by side.
        stacked = blocks.permute(1, 0, 2).flatten(1) if role == "o" else blocks.flatten(0, 1)
        stacks[role] = stacked
        whole = spectrum(stacked)
        one = layout.role(role).heads == 1
        roles[role] = RoleSpectra(role, (whole,) if one else tuple(spectrum(block) for block in blocks), whole)
    same_width = layout.q.width == layout.k.width == layout.v.width
    fused = spectrum(torch.cat([stacks[role] for role in QKV])) if same_width else None
    return WeightSpectra(layout.name, roles, fused, layout.fused())
