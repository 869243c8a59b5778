"""`scale=logit(STD)`: gains on Q and K so that the centred logits of each layer have a given std on an example.

Solved layer by layer in the order of the model, each layer reading the activations that the layers before it, already
solved, give. The gain is split equally over Q and K. "Centred" takes each row's mean off, which softmax does not see;
masked entries do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from kappaone.apply.ranks import Ranks
from kappaone.apply.write import Transaction, rounded
from kappaone.errors import WriteError
from kappaone.layouts.blocks import parameters_by_name
from kappaone.layouts.capture import Recorded, record
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import at_rest, bias_pieces, pieces
from kappaone.linalg.workers import single_threaded

_QK: tuple[Role, ...] = ("q", "k")


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


def measured_spread(layout: AttentionLayout, call: Recorded | None) -> float:
    """The same of one layer; 0 where the example did not reach it.

    Raises:
        WriteError: where the layer's heads are spread over ranks (tensor parallel), so that only some were seen.
    """
    if call is None:
        return 0.0
    if call.q.shape[1] != layout.heads:
        raise WriteError(
            f"layer {layout.name!r} computes {call.q.shape[1]} of its {layout.heads} heads on this rank (tensor parallel), "
            "so that the spread of its logits cannot be measured here",
            "measure before the model is parallelized, or leave out what measures logits",
        )
    return centred_logit_std(call)


def solve_logit_scale(
    model: nn.Module,
    layouts: Sequence[AttentionLayout],
    target: float,
    example: Any,
    transaction: Transaction,
    ranks: Ranks | None = None,
) -> dict[str, float]:
    """Rescale Q and K of each layer in turn; returns the gain on each of them by layer name.

    Args:
        model: the model.
        layouts: its layers, in order.
        target: std of the centred logits.
        example: an input; on several ranks each may bring its own, and the mean square counts.
        transaction: what is written can be undone.
        ranks: who holds the model.

    Raises:
        WriteError: where the gain of Q and K cannot set the logits' spread.
    """
    ranks = ranks or Ranks()
    gains: dict[str, float] = {}
    for layout in layouts:
        at_rest(model)
        parameters = parameters_by_name(model)
        with ranks.agreed(transaction.otherwise):
            spread = _spread(model, layout, parameters, example)
        gain = (target / ranks.pooled({layout.name: spread})[layout.name]) ** 0.5
        at_rest(model)
        with ranks.agreed(transaction.otherwise):
            for role in _QK:
                _scale(layout, role, gain, parameters[layout.role(role).parameter], transaction)
        gains[layout.name] = gain
    return gains


def _spread(model: nn.Module, layout: AttentionLayout, parameters: dict[str, nn.Parameter], example: Any) -> float:
    if layout.scale_free:
        raise WriteError(
            f"layer {layout.name!r} normalizes q and k, so that their scale cannot set the logits",
            "leave scale=logit out for this model",
        )
    for role in _QK:
        rows = layout.role(role)
        bias = None if rows.bias is None else parameters[rows.bias]
        heads = range(0 if bias is None else len(rows.bias_starts))
        if bias is not None and any(bool(p.view.any()) for h in heads for p in bias_pieces(bias, rows, h)):
            raise WriteError(
                f"layer {layout.name!r} has a nonzero bias in role {role}, so that logits are not proportional to the gain",
                "set the q and k biases to zero first",
            )
    with single_threaded():  # sums in another order would give other last bits for other thread counts
        call = record(model, [layout], example).get(layout.name)
        spread = measured_spread(layout, call)
    if not spread > 0:
        raise WriteError(
            f"layer {layout.name!r}: the logits have no spread on the example"
            + (" (the example does not reach the layer)" if call is None else ""),
            "pass an example with at least two different tokens that reaches every layer",
        )
    return spread


def _scale(layout: AttentionLayout, role: Role, gain: float, weight: Tensor, transaction: Transaction) -> None:
    rows = layout.role(role)
    for head in range(rows.heads):
        for piece in pieces(weight, rows, role, head):
            values = rounded(piece.view.double() * gain, weight.dtype, rows.parameter)
            transaction.write(f"{layout.name}:{role}{head}", piece.view, values)
