"""One architecture, one row: which attention it has, who describes it, what is refused, what the probe says.

Attention is told apart by its *kind*: what the module is made of (class, children, parameters, switches) together
with what the layout says of it, sizes aside. A kind that the probe has confirmed on one small instance is confirmed
for every architecture that has it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Protocol

from torch import nn

from kappaone.coverage.small import Small
from kappaone.coverage.structure import structure
from kappaone.coverage.switches import switches
from kappaone.errors import KappaoneError
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.find import Refused, Survey, survey
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.probe import verify

Status = Literal["handled", "refused", "outside", "no attention", "error"]
STATUSES: tuple[Status, ...] = ("handled", "refused", "outside", "no attention", "error")


class Zoo(Protocol):
    """What a library's zoo offers (`timm_zoo`, `transformers_zoo`: modules)."""

    __name__: str

    def names(self) -> list[str]:
        """Every architecture."""
        ...

    def on_meta(self, name: str) -> nn.Module:
        """One on the meta device."""
        ...

    def small(self, name: str) -> Small | None:
        """A small instance, or None."""
        ...

    def why_not_small(self, name: str) -> str:
        """Why there is no small instance."""
        ...


@dataclass(frozen=True)
class Kind:
    """One distinct attention of one architecture.

    Attributes:
        name: class name, for people.
        structure: what the module is made of, sizes aside.
        switches: what its layout says, sizes aside.
        layers: how many layers of the architecture are of this kind.
    """

    name: str
    structure: str
    switches: str
    layers: int = 1

    @property
    def key(self) -> str:
        """What two architectures must share for one probe to count for both."""
        return f"{self.structure} | {self.switches}"


@dataclass(frozen=True)
class Verdict:
    """What the probe said of one kind.

    Attributes:
        confirmed: True, False (rows do something else than the layout says) or None (it could not be run).
        words: the first verdict or the reason.
        by: the architecture whose small instance was probed.
    """

    confirmed: bool | None
    words: str = ""
    by: str = ""


@dataclass(frozen=True)
class Row:
    """What is known of one architecture.

    Attributes:
        library: "timm" or "transformers".
        name: the architecture.
        status: "handled" (all attention that was noticed is described), "refused" (some is not), "outside" (only
            attention without softmax(Q K^T) V), "no attention", or "error" (it could not be built or looked at).
        layers: attention layers that are described.
        adapters: who described them.
        kinds: their class names.
        facts: names of the facts that they state.
        refused: classes that are refused, with the reason and the number of layers.
        outside: classes recognised as attention without softmax(Q K^T) V, with the reason and the number of layers.
        confirmed: True if the probe confirmed every kind, False if it contradicted one, None if one was not probed.
        note: the reason of an error, the probe's words where a kind is not confirmed, or who confirmed it.
        seconds: how long the row took.
        parameters: of the architecture.
        details: the distinct kinds.
        verdicts: the probe's verdicts on this architecture's small instance, by `Kind.key`.
    """

    library: str
    name: str
    status: Status
    layers: int = 0
    adapters: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    confirmed: bool | None = None
    note: str = ""
    seconds: float = 0.0
    parameters: int = 0
    details: tuple[Kind, ...] = ()
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        out = {item.name: getattr(self, item.name) for item in fields(self)}
        out["details"] = [dict(vars(kind)) for kind in self.details]
        out["verdicts"] = {key: dict(vars(verdict)) for key, verdict in self.verdicts.items()}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in out.items()}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Row:
        """The inverse of `to_dict`."""
        plain: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
        }
        plain["details"] = tuple(Kind(**kind) for kind in data["details"])
        plain["verdicts"] = {key: Verdict(**verdict) for key, verdict in data["verdicts"].items()}
        return cls(**plain)


def examine(zoo: Zoo, name: str, probe: bool = False) -> Row:
    """Build one architecture on the meta device, survey it, and probe a small instance if asked.

    What the library raises becomes a row with status "error" or an unconfirmed row: it never passes.

    Args:
        zoo: `timm_zoo` or `transformers_zoo`.
        name: the architecture.
        probe: also build the small instance and verify each kind of layer on it.
    """
    start = time.perf_counter()
    library = zoo.__name__.rpartition(".")[2].removesuffix("_zoo")
    try:
        row = _surveyed(library, name, zoo.on_meta(name))
    except Exception as error:  # whatever a library or an adapter raises on one of a thousand architectures
        row = Row(library, name, "error", note=_words(error))
    if probe and row.details:
        row = confirmed_by(row, probed(zoo, name))
    return replace(row, seconds=round(time.perf_counter() - start, 3))


def probed(zoo: Zoo, name: str) -> dict[str, Verdict]:
    """Verify one layer of each kind on the small instance of an architecture; verdicts by `Kind.key`.

    A key that the dictionary lacks belongs to a kind that the small instance does not have. If no small instance can be
    made or surveyed, the key is "" and the verdict says why.
    """
    try:
        small = zoo.small(name)
        if small is None:
            return {"": Verdict(None, f"no small instance: {zoo.why_not_small(name)}", name)}
        found = survey(small.model, small.example)
    except Exception as error:
        return {"": Verdict(None, _words(error), name)}
    out: dict[str, Verdict] = {}
    modules = dict(named_modules(small.model))
    for key, layouts in _by_kind(found.layouts, modules).items():
        verdict = Verdict(None, "not reached by the example", name)
        for layout in layouts[:3]:  # the first of a kind may be one that the example does not reach
            verdict = _verdict(small, layout, name)
            if verdict.confirmed is not None:
                break
        out[key] = verdict
    for item in found.refused:  # noticed by its calls on a real input, and by nothing else
        if item.why.startswith("calls "):
            out[f"{item.kind} | {item.why}"] = Verdict(None, f"{item.kind} {item.why} and is not described", name)
    return out


def _verdict(small: Small, layout: AttentionLayout, name: str) -> Verdict:
    try:
        report = verify(small.model, [layout], small.example, rows_per_head=1)
    except Exception as error:
        return Verdict(None, _words(error), name)
    if report.unreached:
        return Verdict(None, f"the example does not reach {layout.name}", name)
    told = [verdict for verdict in report.wrong if verdict.role not in ("dead", "?")]
    if told:
        return Verdict(False, f"{len(report.wrong)} of {len(report.verdicts)}: {told[0]}", name)
    if report.wrong:  # the example moves nothing there (queries that start at zero): neither confirmed nor contradicted
        return Verdict(
            None, f"{len(report.wrong)} of {len(report.verdicts)} rows tell nothing: {report.wrong[0]}", name
        )
    factors = [str(factor) for factor in report.factors if not factor.ok]
    return Verdict(report.ok, "; ".join(factors), name)


def confirmed_by(row: Row, verdicts: Mapping[str, Verdict]) -> Row:
    """A row with the probe's verdicts, its own or those on others' small instances.

    Args:
        row: from `examine`.
        verdicts: by `Kind.key`; under "" the reason why there are none.
    """
    if not row.details:
        return row
    nothing = verdicts.get("", Verdict(None, "the small instance has no such layer", row.name))
    each = {kind.key: verdicts.get(kind.key, nothing) for kind in row.details}
    states = [verdict.confirmed for verdict in each.values()]
    confirmed = False if False in states else None if None in states else True
    if confirmed:
        others = sorted({verdict.by for verdict in each.values()} - {row.name})
        note = f"by kind: {', '.join(others)}" if others else ""
    else:
        note = "; ".join(
            f"{kind.name}: {verdict.words}" + (f" [{verdict.by}]" if verdict.by not in ("", row.name) else "")
            for kind in row.details
            if (verdict := each[kind.key]).confirmed is not True
        )
    extra = [v.words for key, v in verdicts.items() if v.by == row.name and " | calls " in key]
    return replace(row, confirmed=confirmed, note="; ".join(filter(None, [note, *extra])), verdicts=each)


def _surveyed(library: str, name: str, model: nn.Module) -> Row:
    found: Survey = survey(model)
    modules = dict(named_modules(model))
    kinds = tuple(
        Kind(layouts[0].kind, structure(modules[layouts[0].module]), switches(layouts[0]), len(layouts))
        for layouts in _by_kind(found.layouts, modules).values()
    )
    status: Status = (
        "refused" if found.refused else "handled" if found.layouts else "outside" if found.outside else "no attention"
    )
    return Row(
        library,
        name,
        status,
        layers=len(found.layouts),
        adapters=tuple(sorted({layout.source for layout in found.layouts})),
        kinds=tuple(sorted({layout.kind for layout in found.layouts})),
        facts=tuple(sorted({fact for layout in found.layouts for fact in layout.facts})),
        refused=_grouped(found.refused),
        outside=_grouped(found.outside),
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        details=kinds,
    )


def _by_kind(
    layouts: tuple[AttentionLayout, ...], modules: Mapping[str, nn.Module]
) -> dict[str, list[AttentionLayout]]:
    out: dict[str, list[AttentionLayout]] = {}
    for layout in layouts:
        out.setdefault(f"{structure(modules[layout.module])} | {switches(layout)}", []).append(layout)
    return out


def _grouped(items: tuple[Refused, ...]) -> tuple[str, ...]:
    counts = Counter(f"{item.kind}: {item.why}" for item in items)
    return tuple(f"{words} ({count} layers)" for words, count in sorted(counts.items()))


def _words(error: Exception) -> str:
    text = error.what if isinstance(error, KappaoneError) else f"{type(error).__name__}: {error}"
    return " ".join(text.split())[:300]
