"""Remarks about the weights that are there: copies of each other, shared by several layers, with adapters on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from kappaone.apply.write import fingerprint
from kappaone.layouts.blocks import block_view
from kappaone.layouts.find import Survey
from kappaone.layouts.layout import AttentionLayout


def notes(
    modules: Mapping[str, nn.Module], layouts: Sequence[AttentionLayout], parameters: Mapping[str, Tensor]
) -> list[str]:
    """What a careful user should know of the weights that are about to be set.

    Args:
        modules: the model's modules by name.
        layouts: the layers that will be set.
        parameters: the model's parameters by name.
    """
    return _identical(layouts, parameters) + _shared(layouts) + _adapters(modules, layouts)


def left_alone(found: Survey) -> list[str]:
    """Layers that mix tokens without softmax(Q K^T) V, by what they do instead."""
    kinds: dict[str, list[str]] = {}
    for item in found.outside:
        kinds.setdefault(f"{item.kind}: {item.why}", []).append(item.name)
    return [
        f"left alone, not softmax(Q K^T) V: {', '.join(names[:2])}{', ...' if len(names) > 2 else ''} ({len(names)} {kind})"
        for kind, names in kinds.items()
    ]


def _identical(layouts: Sequence[AttentionLayout], parameters: Mapping[str, Tensor]) -> list[str]:
    """Layers that hold the same numbers, as `nn.TransformerEncoder` makes them by copying one (pytorch#72253)."""
    alike: dict[tuple[str, tuple[int, ...]], list[AttentionLayout]] = {}
    for layout in layouts:
        weight = parameters[layout.q.parameter]
        if weight.is_meta or hasattr(weight, "device_mesh") or weight.numel() == 0:
            continue
        block = block_view(weight, layout.q, "q", 0)
        if bool(block.any()):
            alike.setdefault((fingerprint(block), tuple(block.shape)), []).append(layout)
    out = []
    for group in alike.values():
        own = {id(parameters[layout.q.parameter]) for layout in group}
        if len(own) > 1:
            names = ", ".join(layout.name for layout in group[:3]) + (", ..." if len(group) > 3 else "")
            out.append(
                f"{len(group)} layers held identical weights, copies of one another ({names}); now each has its own"
            )
    return out


def _shared(layouts: Sequence[AttentionLayout]) -> list[str]:
    out = []
    for layout in layouts:
        count = layout.facts.get("shared")
        if count:
            many = "several" if count is True else str(count)
            out.append(f"{layout.name!r} is shared by {many} layers: it is set once")
    return out


def _adapters(modules: Mapping[str, nn.Module], layouts: Sequence[AttentionLayout]) -> list[str]:
    """Projections that are the base of an adapter (PEFT)."""
    found: list[str] = []
    for layout in layouts:
        for role in ("q", "k", "v", "o"):
            if role == "o" and layout.o is None:
                continue
            parts = layout.role(role).parameter.split(".")
            if "base_layer" not in parts:
                continue
            owner = ".".join(parts[: parts.index("base_layer")])
            beside = [
                n
                for n, child in modules[owner].named_children()
                if n != "base_layer" and any(True for _ in child.parameters())
            ]
            if beside and owner not in found:
                found.append(owner)
    if not found:
        return []
    return [
        f"adapters are attached at {len(found)} projections ({', '.join(found[:2])}, ...): the base weights are set, the adapters "
        "are not; adapters that were made from the base weights (PiSSA, OLoRA) no longer fit: attach them after kappaone.init_"
    ]
