"""Gaussian entries: `trunc_normal` (GPT-2's and timm's .02) and `fan_in` (1/sqrt(D), the scale of `conditioned`).

Truncation is stated in standard deviations of the untruncated normal, and `std` is the standard deviation of what
comes out, after truncation. (torch's bounds are absolute, TF and JAX truncate at 2 sigma; both are this law with
another `truncate_at_sigma`.) `fan_in` is the control that has the scale of semi-orthogonal blocks without their
orthogonality. Touches q, k, v. Sources: GPT-2, timm (Apache-2.0); formula only.
"""

from __future__ import annotations

import math

import numpy as np

from kappaone.errors import SpecError
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, Scheme, per_head
from kappaone.streams import LayerStream


def truncated(rng: np.random.Generator, shape: tuple[int, ...], sigma: float) -> Array:
    """Standard normal numbers conditioned on |x| <= sigma, divided by their standard deviation: std is exactly 1.

    Examples:
        >>> x = truncated(np.random.default_rng(0), (1000,), 2.0)
        >>> bool(abs(x).max() < 2.28), bool(abs(x.std() - 1) < 0.05)
        (True, True)
    """
    out = rng.standard_normal(shape)
    while (outside := np.abs(out) > sigma).any():
        out[outside] = rng.standard_normal(int(outside.sum()))
    density = math.exp(-(sigma**2) / 2) / math.sqrt(2 * math.pi)
    variance = 1 - 2 * sigma * density / math.erf(sigma / math.sqrt(2))
    return np.asarray(out / math.sqrt(variance))


def make_trunc_normal(layer: LayerShape, stream: LayerStream, *, std: float, truncate_at_sigma: float) -> list[Job]:
    """Jobs of one layer: truncated normal entries."""
    if std <= 0 or truncate_at_sigma < 0.1:
        raise SpecError(
            f"trunc_normal: std={std}, truncate_at_sigma={truncate_at_sigma}; expected std > 0 and at least 0.1 sigma",
            "the usual values are std=0.02, truncate_at_sigma=2",
        )

    def block(role: str, shape: RoleShape, head: int) -> Array:
        return std * truncated(stream.of(role, head), (shape.size, shape.width), truncate_at_sigma)

    return per_head(layer, "qkv", block)


def make_fan_in(layer: LayerShape, stream: LayerStream, *, gain: float) -> list[Job]:
    """Jobs of one layer: normal entries of variance gain^2 / width."""

    def block(role: str, shape: RoleShape, head: int) -> Array:
        numbers: Array = stream.normal((shape.size, shape.width), role, head)
        return np.asarray(gain / shape.width**0.5 * numbers)

    return per_head(layer, "qkv", block)


TRUNC_NORMAL = Scheme(
    name="trunc_normal",
    summary="truncated normal entries; std is that of the truncated law",
    source="GPT-2, timm",
    make=make_trunc_normal,
    options={
        "std": Option(0.02, number="float", help="standard deviation of the entries"),
        "truncate_at_sigma": Option(2.0, number="float", help="bound, in standard deviations before truncation"),
    },
)
FAN_IN = Scheme(
    name="fan_in",
    summary="normal entries of variance 1/D: the scale of conditioned, without orthogonality",
    source="LeCun et al. 1998; the scale control of the paper's comparison",
    make=make_fan_in,
    options={"gain": Option(1.0, number="float", help="factor on every entry")},
)
