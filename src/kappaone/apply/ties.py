"""Weights that share memory: which may be written once for all, and which must not be written from here.

Sharing goes by memory, not by identity: `nn.Parameter(other.data)` makes another parameter of the same numbers, and
a write into one is a write into the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from kappaone.errors import WriteError
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import local

Memory = tuple[int, tuple[int, ...], tuple[int, ...]]


def memory(tensor: Tensor) -> Memory:
    """Where a tensor lies and how: equal for tensors of the very same numbers.

    Examples:
        >>> import torch
        >>> x = torch.ones(4, 2)
        >>> memory(x) == memory(x.detach()), memory(x) == memory(x[1:])
        (True, False)
    """
    here = local(tensor)
    # Empty parts of sharded weights lie nowhere; each is then itself.
    return here.data_ptr() if here.numel() else -id(tensor), tuple(here.shape), tuple(here.stride())


def refuse_ties(
    layouts: Sequence[AttentionLayout],
    written: Sequence[AttentionLayout],
    parameters: Mapping[str, nn.Parameter],
    roles: Sequence[Role],
) -> None:
    """Refuse to write a weight that is also used outside attention, or that overlaps another one.

    Args:
        layouts: all attention layers.
        written: those that will be written.
        parameters: the model's parameters by name, tied ones under all their names.
        roles: the roles that will be written.

    Raises:
        WriteError: naming both weights.
    """
    every: tuple[Role, ...] = ("q", "k", "v", "o")
    attention = {layout.role(r).parameter for layout in layouts for r in every if r != "o" or layout.o is not None}
    by_storage: dict[tuple[str, int], list[str]] = {}
    for name, parameter in parameters.items():
        if not parameter.is_meta and not isinstance(parameter, nn.parameter.UninitializedParameter):
            by_storage.setdefault(_storage(parameter), []).append(name)
    for layout in written:
        for role in roles:
            if role == "o" and layout.o is None:
                continue
            name = layout.role(role).parameter
            for other in by_storage[_storage(parameters[name])]:
                if other != name and _overlap(parameters[name], parameters[other]):
                    _check_pair(layout.name, name, other, parameters, attention)


def _check_pair(layer: str, name: str, other: str, parameters: Mapping[str, nn.Parameter], attention: set[str]) -> None:
    if other not in attention:
        raise WriteError(
            f"{name!r} of layer {layer!r} is tied to {other!r}, which is not attention",
            "untie it, or leave this layer out with layers=",
        )
    if memory(parameters[name]) != memory(parameters[other]):
        raise WriteError(
            f"{name!r} of layer {layer!r} and {other!r} lie partly over each other in memory, so that a write into one "
            "changes the other",
            "give each its own memory, nn.Parameter(weight.detach().clone()), or one the very same parameter",
        )


def _storage(tensor: Tensor) -> tuple[str, int]:
    return str(local(tensor).device), local(tensor).untyped_storage().data_ptr()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether the stretches of memory from first to last entry overlap (flat parameters of one buffer do not)."""
    if one is other:
        return True
    spans = []
    for tensor in map(local, (one, other)):
        if not tensor.numel():
            return False
        last = sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride(), strict=True))
        size = tensor.element_size()
        spans.append((tensor.storage_offset() * size, (tensor.storage_offset() + last) * size))
    return bool(spans[0][0] <= spans[1][1] and spans[1][0] <= spans[0][1])
