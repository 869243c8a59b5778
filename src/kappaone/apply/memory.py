"""Memory for tensors on the meta device, filled so that what nobody sets afterwards can be told by its entries.

`nn.Module.to_empty` breaks ties (every occurrence of a tied parameter becomes its own) and leaves whatever bits the
allocator had. Here ties are kept, attributes of parameters too, and floating-point memory starts as NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kappaone.errors import WriteError
from kappaone.layouts.blocks import named_modules

# Entries that mark integers as not set; no table of positions or indices holds them.
_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)


@dataclass(frozen=True)
class Slot:
    """One place in the model that holds a tensor; tied tensors have several.

    Attributes:
        name: qualified name without wrapper prefixes.
        module: the module that holds it.
        key: its name there.
        buffer: a buffer, not a parameter.
    """

    name: str
    module: nn.Module
    key: str
    buffer: bool

    @property
    def tensor(self) -> Tensor:
        """What is there now."""
        found = (self.module._buffers if self.buffer else self.module._parameters)[self.key]
        assert found is not None
        return found

    def put(self, tensor: Tensor) -> None:
        """Register another tensor here."""
        (self.module._buffers if self.buffer else self.module._parameters)[self.key] = tensor  # type: ignore[assignment]


def slots(model: nn.Module) -> list[Slot]:
    """Every place that holds a parameter or buffer, in the order of the model's modules."""
    return list(_slots(model))


def _slots(model: nn.Module) -> Iterator[Slot]:
    for name, module in named_modules(model):
        for buffer, held in ((False, module._parameters), (True, module._buffers)):
            for key, tensor in held.items():
                if tensor is not None:
                    yield Slot(f"{name}.{key}" if name else key, module, key, buffer)


def tie_groups(places: list[Slot]) -> list[list[Slot]]:
    """Places that hold the very same tensor, first one first."""
    groups: dict[int, list[Slot]] = {}
    for place in places:
        groups.setdefault(id(place.tensor), []).append(place)
    return [group for group in groups.values() if len(group) > 1]


def allocate(model: nn.Module, device: torch.device) -> tuple[list[Slot], list[list[Slot]]]:
    """Give every meta tensor memory on a device and move the others there; ties and attributes are kept.

    Returns:
        The places that were on the meta device, and the groups of tied places.
    """
    places = slots(model)
    fresh = [place for place in places if place.tensor.is_meta]
    ties = tie_groups(places)
    notes = {place.name: dict(vars(place.tensor)) for place in fresh if hasattr(place.tensor, "__dict__")}

    def move(tensor: Tensor) -> Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor.to(device)

    with torch.no_grad():
        # By `_apply`, as to_empty does it: FSDP2 hooks in there to follow its sharded parameters.
        model._apply(move)  # type: ignore[no-untyped-call]
        for place in fresh:
            for key, value in notes.get(place.name, {}).items():
                # It was an empty tensor that was marked as initialised; this one is not.
                if key not in ("_is_hf_initialized", "grad"):
                    setattr(place.tensor, key, value)
        retie(ties)
        for place in fresh:
            mark_unset(place.tensor)
    return fresh, ties


def retie(ties: list[list[Slot]]) -> None:
    """Put the first tensor of each group into all its places."""
    for first, *others in ties:
        for other in others:
            other.put(first.tensor)


def check_ties(ties: list[list[Slot]]) -> None:
    """Refuse where an initialization has broken a tie.

    Raises:
        WriteError: naming both.
    """
    for first, *others in ties:
        for other in others:
            if other.tensor is not first.tensor:
                raise WriteError(
                    f"{first.name!r} and {other.name!r} were one tensor and are two after the model's own initialization",
                    "let the model's init_weights write in place, or tie again afterwards (model.tie_weights())",
                )


def local(tensor: Tensor) -> Tensor:
    """This rank's part of a sharded tensor, or the tensor."""
    whole = tensor.detach()
    return whole.to_local() if hasattr(whole, "to_local") else whole


def can_be_marked(tensor: Tensor) -> bool:
    """Whether entries of this dtype can say that they are not set; bool and unsigned integers cannot."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex or tensor.dtype in _SIGNED


def mark_unset(tensor: Tensor) -> None:
    """Fill with the mark of what is not set."""
    part = local(tensor)
    if part.dtype.is_floating_point or part.dtype.is_complex:
        part.fill_(float("nan"))
    elif part.dtype in _SIGNED:
        part.fill_(torch.iinfo(part.dtype).min)
    else:
        part.zero_()


def count_unset(tensor: Tensor) -> int:
    """How many entries of this rank's part still hold the mark; 0 for dtypes that have none (bool, unsigned).

    Examples:
        >>> x = torch.empty(3); mark_unset(x); x[0] = 1.0
        >>> count_unset(x)
        2
    """
    part = local(tensor)
    if part.dtype.is_floating_point or part.dtype.is_complex:
        # fp8 has no isnan of its own.
        wide = part.float() if part.dtype.itemsize == 1 else part
        return int(torch.isnan(wide).sum())
    if part.dtype in _SIGNED:
        return int((part == torch.iinfo(part.dtype).min).sum())
    return 0
