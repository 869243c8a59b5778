"""`scale=logit(STD)`: gains on Q and K so that the centred logits of each layer have a given std on an example.

Solved layer by layer in the order of the model, each layer reading the activations that the layers before it, already
solved, give. The gain is split equally over Q and K. "Centred" takes each row's mean off, which softmax does not see;
masked entries do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kappaone.apply.write import Transaction, rounded
from kappaone.errors import WriteError
from kappaone.layouts.blocks import bias_blocks, block_view, parameters_by_name
from kappaone.layouts.capture import Recorded, record
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.linalg.workers import single_threaded


def centred_logit_std(call: Recorded) -> float:
    """Std over rows, heads and examples of the logits less their row mean, unmasked entries only.

    Args:
        call: what a layer handed to its softmax.
    """
    group = call.q.shape[1] // call.k.shape[1]
    keys = call.k.double().repeat_interleave(group, 1)
    logits: Tensor = call.scale * call.q.double() @ keys.mT
    if call.mask is None:
        centred = logits - logits.mean(-1, keepdim=True)
        return float((centred**2).mean().sqrt())
    mask = call.mask.double().expand_as(logits)
    seen = mask.isfinite()
    logits = (logits + mask).masked_fill(~seen, 0)
    count = seen.sum(-1, keepdim=True).clamp(min=1)
    centred = (logits - logits.sum(-1, keepdim=True) / count).masked_fill(~seen, 0)
    # A row with one key has no spread by necessity: it is not counted.
    rows = (count > 1).expand_as(seen) & seen
    return float((centred[rows] ** 2).mean().sqrt()) if bool(rows.any()) else 0.0


def solve_logit_scale(
    model: nn.Module, layouts: Sequence[AttentionLayout], target: float, example: Any, transaction: Transaction
) -> dict[str, float]:
    """Rescale Q and K of each layer in turn; returns the gain on each of them by layer name.

    Raises:
        WriteError: where the gain of Q and K cannot set the logits' spread.
    """
    parameters = parameters_by_name(model)
    gains: dict[str, float] = {}
    for layout in layouts:
        if layout.scale_free:
            raise WriteError(
                f"layer {layout.name!r} normalizes q and k, so that their scale cannot set the logits",
                "leave scale=logit out for this model",
            )
        roles: tuple[Role, ...] = ("q", "k")
        for role in roles:
            bias = bias_blocks(model, layout, role)
            if bias is not None and bool(bias.any()):
                raise WriteError(
                    f"layer {layout.name!r} has a nonzero bias in role {role}, so that logits are not proportional to the gain",
                    "set the q and k biases to zero first",
                )
        with single_threaded():  # sums in another order would give other last bits for other thread counts
            call = record(model, [layout], example).get(layout.name)
            spread = 0.0 if call is None else centred_logit_std(call)
        if not spread > 0:
            raise WriteError(
                f"layer {layout.name!r}: the logits have no spread on the example"
                + (" (the example does not reach the layer)" if call is None else ""),
                "pass an example with at least two different tokens that reaches every layer",
            )
        gain = (target / spread) ** 0.5
        for role in roles:
            rows = layout.role(role)
            weight = parameters[rows.parameter]
            for head in range(rows.heads):
                view = block_view(weight, rows, role, head)
                transaction.write(
                    f"{layout.name}:{role}{head}", view, rounded(view.double() * gain, weight.dtype, rows.parameter)
                )
        gains[layout.name] = gain
    return gains
