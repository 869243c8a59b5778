"""Write through parametrizations: weights that torch computes from others in every forward pass.

The weight as the forward pass sees it is read into plain memory, written there as any other, and given to the
parametrization's `right_inverse` at the end. What then comes out again is compared: weight norm gives back what it was
given, up to rounding; spectral norm and `orthogonal` (unless the weight is orthogonal as a whole) do not, and are
refused by name with everything put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kappaone.apply.memory import slots
from kappaone.apply.report import InitReport
from kappaone.apply.write import Transaction, fingerprint, norm
from kappaone.errors import WriteError
from kappaone.layouts.blocks import block_view, named_modules
from kappaone.layouts.layout import QKV
from kappaone.layouts.stored import parametrizations_of, read_weight

# Rounding steps of the dtype, relative to a block's norm, that a way through a parametrization may cost.
_STEPS = 32


@dataclass(frozen=True)
class Parametrized:
    """One weight that is computed.

    Attributes:
        name: qualified name, as if it were a parameter.
        owner: the module.
        key: its name there.
        kinds: class names of its parametrizations.
    """

    name: str
    owner: nn.Module
    key: str
    kinds: tuple[str, ...]

    def read(self) -> Tensor:
        """The weight that comes out."""
        value: Tensor = read_weight(self.owner, self.key)
        return value.detach()

    def write(self, value: Tensor) -> None:
        """Set the tensors that it is computed from, in their own memory.

        Raises:
            WriteError: if the parametrization does not take the value.
        """
        modes = [(inner, inner.training) for inner in self.owner.modules()]
        # torch rebinds the sources, or lets them point to what right_inverse returns: other memory than the optimizer's
        # and the ties'.
        homes = [(slot, slot.tensor, slot.tensor.detach()) for slot in slots(self._chain())]
        try:
            for inner, _ in modes:
                inner.training = False
            with torch.no_grad():
                setattr(self.owner, self.key, value.clone())
        except (NotImplementedError, ValueError, RuntimeError) as error:
            raise self.refused(f"cannot be set: {error}") from error
        finally:
            for inner, training in modes:
                inner.training = training
            with torch.no_grad():
                for slot, source, home in homes:
                    new = slot.tensor.detach().clone()
                    slot.put(source)
                    source.set_(home.untyped_storage(), home.storage_offset(), home.shape, home.stride())
                    source.copy_(new)

    def sources(self) -> list[Tensor]:
        """The tensors that it is computed from, as views."""
        return [slot.tensor.detach() for slot in slots(self._chain())]

    def _chain(self) -> nn.Module:
        held = self.owner._modules["parametrizations"]
        assert held is not None
        chain = held._modules[self.key]
        assert chain is not None
        return chain

    def refused(self, what: str) -> WriteError:
        """The error that names the parametrization."""
        return WriteError(
            f"{self.name!r} is parametrized by {', '.join(self.kinds)}, which {what}",
            "initialise first and register the parametrization afterwards, or remove it with "
            "torch.nn.utils.parametrize.remove_parametrizations, or leave the layer out with layers=",
        )


def parametrized(model: nn.Module, names: Iterable[str]) -> dict[str, Parametrized]:
    """Those of the names that are computed by torch's parametrizations."""
    modules = dict(named_modules(model))
    found = {}
    for name in names:
        owner_name, _, key = name.rpartition(".")
        owner = modules.get(owner_name)
        kinds = parametrizations_of(owner, key) if owner is not None else []
        if owner is not None and kinds:
            found[name] = Parametrized(name, owner, key, tuple(kinds))
    return found


def settle(
    found: Mapping[str, Parametrized], parameters: Mapping[str, Tensor], report: InitReport, transaction: Transaction
) -> None:
    """Give the written copies to their parametrizations, and see that they come out again.

    Args:
        found: the computed weights.
        parameters: parameters by name, with plain copies of the computed weights among them (`parameters_by_name`).
        report: its norms and checksums become those of what came out.
        transaction: keeps what is overwritten; an error undoes everything.

    Raises:
        WriteError: for a parametrization that gives back something else, or takes nothing.
    """
    written = {
        entry.parameter for layer in report.layers for entry in layer.roles.values() if entry.status in ("set", "tied")
    }
    for name in sorted(written & set(found)):
        item, wanted = found[name], parameters[name].detach()
        for number, source in enumerate(item.sources()):
            # Written with its own values: from here on the transaction puts them back if anything fails.
            old = source.to("cpu", copy=True)
            transaction.write(f"{name} (source {number})", source, old, old)
        item.write(wanted)
        back = item.read()
        _compare(item, wanted, back, report)
        with torch.no_grad():
            wanted.copy_(back)
    _restate(found, parameters, report)


def _compare(item: Parametrized, wanted: Tensor, back: Tensor, report: InitReport) -> None:
    for layer in report.layers:
        for role, entry in layer.roles.items():
            if entry.parameter != item.name:
                continue
            letter = next((r for r in QKV if r == role), "o")
            rows = layer.layout.role(letter)  # type: ignore[arg-type]
            for head in range(rows.heads):
                one, two = (block_view(w, rows, letter, head).double() for w in (wanted, back))  # type: ignore[arg-type]
                error, size = float((one - two).norm()), float(one.norm())
                if not error <= _STEPS * torch.finfo(wanted.dtype).eps * size:
                    raise item.refused(
                        f"gives back another weight: role {role}, head {head} differs by {error / max(size, 1e-300):.2g} of its norm",
                    )


def _restate(found: Mapping[str, Parametrized], parameters: Mapping[str, Tensor], report: InitReport) -> None:
    """Norms and checksums of what the parametrizations give."""
    for layer in report.layers:
        for role, entry in layer.roles.items():
            if entry.status == "set" and entry.parameter in found:
                letter = next((r for r in QKV if r == role), "o")
                rows = layer.layout.role(letter)  # type: ignore[arg-type]
                views = [block_view(parameters[entry.parameter], rows, letter, head) for head in range(rows.heads)]  # type: ignore[arg-type]
                entry.norms_after, entry.fingerprints = (
                    [norm(view) for view in views],
                    [fingerprint(view) for view in views],
                )


def remarks(found: Mapping[str, Parametrized]) -> list[str]:
    """What the report says of them."""
    kinds = sorted({kind for item in found.values() for kind in item.kinds})
    if not found:
        return []
    return [f"{len(found)} weights are set through their parametrizations ({', '.join(kinds)}), exactly up to rounding"]
