"""Mimetic initialization (Trockman & Kolter 2023, arXiv 2305.09828): Q, K, V, O as pre-trained Transformers have them.

In the paper's convention (tokens times weight): W_Q W_K^T ~ a1 Z + b1 I for each head, and W_V W_O ~ a2 Z - b2 I for
the layer, with Z Gaussian of variance 1/D; both are split by SVD, sqrt(S) to either side. Vision: a1 = b1 = .7,
a2 = b2 = .4. `signs=language` takes the opposite signs (-b1, +b2), which is what notes on language models report for
deep layers; we apply them in every layer.

`as_published`: widespread code stores V and O the other way round, so that the forward computes R L where the
target is L R (relative distance .96 from the target). The right product is the default.

Grouped queries: the heads of a group share W_K, so their targets are stacked and factorized together; the heads of a
group share W_V, and each takes an equal part of W_O. Touches q, k, v, o weights. Formula only.
"""

from __future__ import annotations

import numpy as np

from kappaone.errors import SpecError
from kappaone.linalg.lowrank import split
from kappaone.schemes.base import Array, Block, Job, LayerShape, Option, Scheme
from kappaone.streams import LayerStream


def make(
    layer: LayerShape,
    stream: LayerStream,
    *,
    parts: str,
    signs: str,
    as_published: bool,
    a1: float,
    b1: float,
    a2: float,
    b2: float,
) -> list[Job]:
    """Jobs of one layer: one for each key/value head's queries and key, one for values and output projection."""
    sign = 1.0 if signs == "vision" else -1.0
    groups: dict[int, list[int]] = {}
    for head, kv in enumerate(layer.kv_head):
        groups.setdefault(kv, []).append(head)
    q, k, v = (layer.roles[r] for r in "qkv")
    if k.heads != v.heads:
        raise SpecError(
            f"mimetic: layer {layer.name!r} has {k.heads} key heads and {v.heads} value heads (differential attention); "
            "W_Q W_K^T and W_V W_O are defined for pairs of them",
            "leave this layer out with layers=, or use another scheme",
        )
    if q.width != k.width:
        raise SpecError(
            f"mimetic: layer {layer.name!r} reads queries of width {q.width} and keys of width {k.width}; "
            "W_Q W_K^T ~ I needs equal widths",
            "leave this cross-attention layer out with layers=, or use another scheme",
        )
    jobs = [
        Job(
            (*(("q", head) for head in heads), ("k", kv)),
            lambda kv=kv, heads=heads: _queries_and_key(layer, stream, kv, heads, a1, sign * b1),  # type: ignore[misc]
        )
        for kv, heads in groups.items()
    ]
    if not set(parts) & set("vo"):
        return jobs
    o = layer.roles.get("o")
    if o is None:
        raise SpecError(
            f"mimetic: layer {layer.name!r} has no known output projection, and W_V W_O is set together",
            "name it in the layout (o=...), or use mimetic(parts=qk)",
        )
    if o.width != v.width:
        raise SpecError(
            f"mimetic: layer {layer.name!r} reads values of width {v.width} and writes width {o.width}; "
            "W_V W_O ~ I needs equal widths",
            "use mimetic(parts=qk)",
        )
    blocks = (*(("v", h) for h in range(v.heads)), *(("o", h) for h in range(o.heads)))
    return [*jobs, Job(blocks, lambda: _values_and_output(layer, stream, groups, a2, -sign * b2, as_published))]


def _target(stream: LayerStream, role: str, head: int | None, width: int, a: float, b: float) -> Array:
    """A Z + b I, Z Gaussian of variance 1/width; for tokens times weight."""
    noise: Array = stream.normal((width, width), role, head, "target")
    return np.asarray(a / width**0.5 * noise + b * np.eye(width))


def _queries_and_key(
    layer: LayerShape, stream: LayerStream, kv: int, heads: list[int], a: float, b: float
) -> dict[Block, Array]:
    shape = layer.roles["q"]
    stacked = np.concatenate([_target(stream, "q", head, shape.width, a, b) for head in heads])
    left, right = split(stacked, min(shape.size, shape.width))
    pad = shape.size - left.shape[1]
    left, right = np.pad(left, ((0, 0), (0, pad))), np.pad(right, ((0, pad), (0, 0)))
    out: dict[Block, Array] = {
        ("q", head): left[i * shape.width : (i + 1) * shape.width].T for i, head in enumerate(heads)
    }
    out["k", kv] = right
    return out


def _values_and_output(
    layer: LayerShape, stream: LayerStream, groups: dict[int, list[int]], a: float, b: float, as_published: bool
) -> dict[Block, Array]:
    v, o = layer.roles["v"], layer.roles["o"]
    if as_published and (v.rows != v.width or v.heads != o.heads):
        raise SpecError(
            f"mimetic(as_published): layer {layer.name!r} has {v.rows} value rows for width {v.width}; the published "
            "code is defined for square W_V and W_O only",
            "leave as_published out",
        )
    rank = min(v.rows, v.width)
    left, right = split(_target(stream, "v", None, v.width, a, b), rank)
    left, right = np.pad(left, ((0, 0), (0, v.rows - rank))), np.pad(right, ((0, v.rows - rank), (0, 0)))
    weight_v, weight_o = (left, right) if as_published else (left.T, right.T)
    out: dict[Block, Array] = {}
    for kv, heads in groups.items():
        rows = slice(kv * v.size, (kv + 1) * v.size)
        out["v", kv] = weight_v[rows]
        for head in heads:
            out["o", head] = weight_o[:, rows] / len(heads)
    return out


SCHEME = Scheme(
    name="mimetic",
    summary="W_Q W_K^T near the identity, W_V W_O near its negative, as in trained models",
    source="Trockman & Kolter 2023, arXiv 2305.09828",
    make=make,
    parts="qkvo",
    told_parts=True,
    options={
        "signs": Option("vision", ("vision", "language"), help="+I for QK and -I for VO, or the opposite"),
        "as_published": Option(False, flag=True, help="V and O as widespread code stores them (R L, not L R)"),
        "a1": Option(0.7, number="float", help="weight of the noise in W_Q W_K^T"),
        "b1": Option(0.7, number="float", help="weight of the identity in W_Q W_K^T"),
        "a2": Option(0.4, number="float", help="weight of the noise in W_V W_O"),
        "b2": Option(0.4, number="float", help="weight of the identity in W_V W_O"),
    },
)
