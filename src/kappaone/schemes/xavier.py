"""Xavier (Glorot & Bengio 2010): variance 2 / (fan_in + fan_out), with the fans of the role or of the fused weight.

`xavier_fused` takes the fans of the parameter as it is stored, which is what torch's MultiheadAttention and timm's
"jax" mode do: with [Q|K|V] in one weight, fan_out is three times too large (pytorch#166378: std .088 instead of .125
at width 64). `xavier_per_role` takes those of the role (`fan=head`: of one head). Touches q, k, v. Formula only.
"""

from __future__ import annotations

from typing import Literal

from kappaone.laws import Law
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, Scheme, per_head
from kappaone.streams import LayerStream


def make_per_role(layer: LayerShape, stream: LayerStream, *, fan: str, distribution: str) -> list[Job]:
    """Jobs of one layer, fan_out being the rows of the role or of one head."""
    outputs = {r: layer.roles[r].size if fan == "head" else layer.roles[r].rows for r in ("q", "k", "v")}
    return _jobs(layer, stream, outputs, distribution)


def make_fused(layer: LayerShape, stream: LayerStream, *, distribution: str) -> list[Job]:
    """Jobs of one layer, fan_out being the rows of the parameter as stored."""
    return _jobs(layer, stream, {r: layer.roles[r].stored_rows for r in ("q", "k", "v")}, distribution)


def _jobs(layer: LayerShape, stream: LayerStream, outputs: dict[str, int], distribution: str) -> list[Job]:
    def block(role: str, shape: RoleShape, head: int) -> Array:
        kind: Literal["normal", "uniform"] = "normal" if distribution == "normal" else "uniform"
        law = Law(kind, (2 / (shape.width + outputs[role])) ** 0.5, "Xavier")
        return law.draw(stream.of(role, head), (shape.size, shape.width))

    return per_head(layer, "qkv", block)


_DISTRIBUTION = Option("uniform", ("uniform", "normal"), help="law of the entries")
PER_ROLE = Scheme(
    name="xavier_per_role",
    summary="Xavier with the fans of each role, however it is stored",
    source="Glorot & Bengio 2010; pytorch#166378",
    make=make_per_role,
    options={
        "fan": Option("role", ("role", "head"), help="fan_out is the rows of the role, or of one head"),
        "distribution": _DISTRIBUTION,
    },
)
FUSED = Scheme(
    name="xavier_fused",
    summary="Xavier with the fans of the stored parameter, as torch's MultiheadAttention does it",
    source="torch.nn.MultiheadAttention; timm weight_init='jax'",
    make=make_fused,
    options={"distribution": _DISTRIBUTION},
)
