"""The model's own initialization, as it stands: the control of every comparison.

* `default`: nothing is written.
* `default(std=faithful)`: q, k and v, each as a whole, rescaled to standard deviation .02 sqrt(768 / D), the value
  that .02 has at the paper's width; `std=0.03` any other. At small widths .02 is far smaller, relative to 1/sqrt(D),
  than at the paper's.
* `default(redraw)`: q, k and v drawn anew from the law by which the library drew them, which is the A/A arm of a
  study. The law is the one that the present weights are seen to follow; if they follow none, this is an error.

Touches q, k, v or nothing. Source: timm, transformers, torch; the faithful scale is ours (see docs/schemes.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from kappaone.errors import SpecError
from kappaone.laws import Law, fitting, moments
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, Scheme, per_head
from kappaone.streams import LayerStream

_FAITHFUL_STD = 0.02


def make(layer: LayerShape, stream: LayerStream, *, std: str | float, paper_width: int, redraw: bool) -> list[Job]:
    """Jobs of one layer: the present blocks, rescaled or drawn anew if asked."""
    jobs: list[Job] = []
    if paper_width < 1 or (isinstance(std, float) and std <= 0):
        raise SpecError(
            f"default(std={std}, paper_width={paper_width}): expected a positive std and a positive width",
            "write for instance default(std=0.02), or default(std=faithful, paper_width=768)",
        )
    for role in ("q", "k", "v"):
        shape = layer.roles[role]
        now = layer.stacked(role) if redraw or std != "own" else None
        law = _law(layer, role, now) if redraw and now is not None else None
        target = {"own": None, "faithful": _FAITHFUL_STD * (paper_width / shape.width) ** 0.5}.get(str(std), std)
        gain = 1.0
        if target is not None and now is not None:
            present = law.std if law is not None else float(np.sqrt(np.mean(now**2)))
            if not np.isfinite(present):
                raise SpecError(
                    f"layer {layer.name!r}: role {role} holds NaN or infinite weights, so default(std={std}) cannot rescale it",
                    "build the model anew, or use a scheme that draws weights, such as trunc_normal",
                )
            if present == 0:
                raise SpecError(
                    f"layer {layer.name!r}: role {role} is zero, so default(std={std}) cannot rescale it",
                    "add redraw, or use another scheme",
                )
            gain = float(target) / present
        block = partial(_block, layer, stream, law, gain)
        new = per_head(layer, role, block, reads=law is None)
        keeps = law is None and gain == 1.0
        jobs += [replace(job, keeps=keeps) for job in new]
    return jobs


def _block(
    layer: LayerShape, stream: LayerStream, law: Law | None, gain: float, role: str, shape: RoleShape, head: int
) -> Array:
    if law is None:
        return gain * layer.current(role, head)
    return gain * law.draw(stream.of(role, head), (shape.size, shape.width))


def _law(layer: LayerShape, role: str, now: Array) -> Law:
    law = fitting(layer.laws, now)
    if law is None:
        known = "; ".join(f"{law.kind} std {law.std:.4g} ({law.origin})" for law in layer.laws) or "none known"
        raise SpecError(
            f"layer {layer.name!r}: the weights of role {role} ({moments(now)}) follow none of the library's laws "
            f"({known}), so default(redraw) does not know what to draw",
            "start from a freshly built model, or name the law: trunc_normal(std=...), xavier_fused, ...",
        )
    return law


SCHEME = Scheme(
    name="default",
    summary="the model's own initialization, left as it is, rescaled, or drawn anew",
    source="the library that built the model",
    make=make,
    options={
        "std": Option("own", ("own", "faithful"), "float", help="leave, .02 sqrt(paper_width / D), or a number"),
        "paper_width": Option(768, number="int", help="the width at which .02 is meant, for std=faithful"),
        "redraw": Option(False, flag=True, help="draw q, k, v anew from the library's own law"),
    },
)
