"""What a write owes to weights that are not alone: parametrizations behind them, copies beside them, marks on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from kappaone.apply import copies, parametrized
from kappaone.apply.flags import mark_written
from kappaone.apply.notes import notes
from kappaone.apply.report import InitReport
from kappaone.apply.write import Transaction
from kappaone.errors import SpecError
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.layout import AttentionLayout
from kappaone.schemes.registry import InitSpec


class Special:
    """The special weights among those of one `init_`.

    Args:
        model: the model.
        written: the layers that will be written.
        parameters: the model's parameters by name, parametrized ones as copies.
        spec: the scheme.

    Attributes:
        remarks: what the report says of them.

    Raises:
        SpecError: for a scheme that measures what it has written where a parametrization stands in between.
        WriteError: for projections that are held twice where it is unclear which of them runs.
    """

    def __init__(
        self, model: nn.Module, written: Sequence[AttentionLayout], parameters: Mapping[str, Tensor], spec: InitSpec
    ) -> None:
        modules = dict(named_modules(model))
        self._model, self._written, self._parameters = model, list(written), parameters
        self._computed = parametrized.parametrized(model, _weights(written))
        if self._computed and spec.scale.kind == "logit":
            raise SpecError(
                f"{spec.text}: {sorted(self._computed)[0]!r} is parametrized, so that scale=logit cannot watch it while it is set",
                "register the parametrization after kappaone.init_, or use another scale=",
            )
        self._copies = copies.find_copies(modules, written, parameters)
        self.remarks = (
            notes(modules, written, parameters) + copies.remarks(self._copies) + parametrized.remarks(self._computed)
        )

    def follow(self, report: InitReport, transaction: Transaction) -> None:
        """After the blocks are written: parametrizations take them, copies get them."""
        parametrized.settle(self._computed, self._parameters, report, transaction)
        copies.set_copies(self._copies, self._written, self._parameters, transaction)

    def mark(self, report: InitReport) -> None:
        """When all is done: the library's marks say that these weights are set."""
        names = {entry.parameter for layer in report.layers for entry in layer.roles.values() if entry.status == "set"}
        mark_written(self._model, self._parameters, sorted(names | {copy.parameter for copy in self._copies}))


def _weights(layouts: Sequence[AttentionLayout]) -> list[str]:
    roles = ("q", "k", "v", "o")
    return [layout.role(role).parameter for layout in layouts for role in roles if role != "o" or layout.o is not None]  # type: ignore[arg-type]
