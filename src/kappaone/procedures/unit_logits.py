"""One gain on Q and K of each layer, so that the centred logits of the model as it stands have a given std.

The simplest procedure: it needs the model and an example, measures once, and returns the present blocks rescaled.
(All layers are measured in one pass, before anything is written; `scale=logit(...)` solves layer by layer instead.)
Touches q and k. Ours: a control for comparisons in which schemes differ in the spread of their logits.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kappaone.errors import SpecError
from kappaone.schemes.base import Array, Job, LayerShape, Option, RoleShape, per_head
from kappaone.schemes.procedure import Procedure

if TYPE_CHECKING:
    from kappaone.apply.plan import Context


def make(context: Context, *, std: float) -> dict[str, list[Job]]:
    """Jobs by layer: present q and k blocks, times the square root of the gain that the logits need.

    Raises:
        SpecError: where the logits have no spread, or the scale of q and k cannot matter.
    """
    # Not at the top: naming and listing procedures must not wait for torch.
    from kappaone.apply.logits import measured_spread
    from kappaone.layouts.capture import record
    from kappaone.linalg.workers import single_threaded

    if std <= 0:
        raise SpecError(f"unit_logits: std={std}; expected a positive number", "write unit_logits(std=1.0)")
    with single_threaded():  # sums in another order would give other last bits for other thread counts
        calls = record(context.model, context.layouts, context.example)
        measured = {layout.name: measured_spread(layout, calls.get(layout.name)) for layout in context.layouts}
    spreads = context.pooled(measured)
    out: dict[str, list[Job]] = {}
    for layout in context.layouts:
        spread = spreads[layout.name]
        if not spread > 0 or layout.scale_free:
            raise SpecError(
                f"unit_logits: the logits of layer {layout.name!r} cannot be set by a gain on q and k "
                + ("(q and k are normalized)" if spread > 0 else "(no spread on the example)"),
                "leave this layer out with layers=, or pass another example",
            )
        shape, gain = context.shapes[layout.name], (std / spread) ** 0.5
        out[layout.name] = per_head(shape, "qk", partial(_scaled, shape, gain), reads=True)
    return out


def _scaled(layer: LayerShape, gain: float, role: str, _shape: RoleShape, head: int) -> Array:
    return gain * layer.current(role, head)


PROCEDURE = Procedure(
    name="unit_logits",
    summary="one gain on Q and K of each layer that gives the centred logits a set std on an example",
    source="kappaone",
    make=make,
    needs_example=True,
    sharded=True,
    parts="qk",
    options={"std": Option(1.0, number="float", help="std of the centred logits")},
)
