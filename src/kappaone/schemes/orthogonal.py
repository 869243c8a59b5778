"""Orthogonal initialization (Saxe et al. 2013), joint: one orthogonal D x D matrix for each role, sliced by head.

Each head's block and the stacked role then both have condition number 1 (for at most as many rows as width; beyond
it the role has orthonormal columns instead). `gain` multiplies every block. Touches q, k, v. Formula only.
"""

from __future__ import annotations

from kappaone.linalg.stiefel import semi_orthogonal
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, Scheme, per_role
from kappaone.streams import LayerStream


def make(layer: LayerShape, stream: LayerStream, *, gain: float) -> list[Job]:
    """Jobs of one layer: one Haar matrix for each role."""

    def haar(role: str, shape: RoleShape) -> Array:
        return gain * semi_orthogonal(stream.normal((shape.rows, shape.width), role))

    return per_role(layer, "qkv", haar)


SCHEME = Scheme(
    name="orthogonal",
    summary="one orthogonal matrix for each role, sliced by head",
    source="Saxe, McClelland & Ganguli 2013, arXiv 1312.6120",
    make=make,
    options={"gain": Option(1.0, number="float", help="factor on every entry")},
)
