"""Conditioned initialization (arXiv 2609.07086): W_V a rectangular identity, W_Q and W_K semi-orthogonal per head.

The paper, in its own convention: W_V^(i) = I_{D x d} and W^T W = I_d for W_Q^(i), W_K^(i), no extra gain. Its open
points are options, the defaults being our reading:

* `value=fused`: head i reads its own slice of the tokens' coordinates, so that the stacked W_V is I as well;
  `value=per_head` is the literal formula, in which every head reads the first d coordinates.
* `qk=per_head`: heads are independent, as the paper says (kappa 1 for each head, not for the stacked role);
  `qk=joint`: slices of one orthogonal matrix (kappa 1 at both levels).
* Grouped queries: each key/value head takes the next slice of the identity. More rows than width: the slices start
  again at coordinate 0, so that no value channel is dead.

Touches q, k, v weights. Assumes nothing of the input. Licence: our own code; no official code exists.
"""

from __future__ import annotations

import numpy as np

from kappaone.linalg.stiefel import semi_orthogonal
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, Scheme, per_head, per_role
from kappaone.streams import LayerStream


def make(layer: LayerShape, stream: LayerStream, *, value: str, qk: str) -> list[Job]:
    """Jobs of one layer: identity slices for v, Haar semi-orthogonal blocks for q and k."""

    def haar(role: str, shape: RoleShape, head: int | None = None) -> Array:
        rows = shape.rows if head is None else shape.size
        return semi_orthogonal(stream.normal((rows, shape.width), role, head))

    def identity(role: str, shape: RoleShape, head: int) -> Array:
        return identity_slice(shape.size, shape.width, 0 if value == "per_head" else head)

    queries_and_keys = per_role(layer, "qk", haar) if qk == "joint" else per_head(layer, "qk", haar)
    return queries_and_keys + per_head(layer, "v", identity)


def identity_slice(size: int, width: int, head: int) -> Array:
    """Rows head*size, ..., of the identity of order `width`, starting again at 0 beyond it.

    Examples:
        >>> identity_slice(2, 4, 1)
        array([[0., 0., 1., 0.],
               [0., 0., 0., 1.]])
    """
    block = np.zeros((size, width))
    block[np.arange(min(size, width)), (head * size + np.arange(min(size, width))) % width] = 1
    return block


SCHEME = Scheme(
    name="conditioned",
    summary="W_V a rectangular identity, W_Q and W_K semi-orthogonal per head",
    source="Conditioned Initialization for Attention, arXiv 2609.07086",
    make=make,
    options={
        "value": Option(
            "fused", ("fused", "per_head"), help="each head its own slice of the identity, or all the same"
        ),
        "qk": Option("per_head", ("per_head", "joint"), help="independent heads, or slices of one orthogonal matrix"),
    },
)
