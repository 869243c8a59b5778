"""Rows for people: the percentages, a terminal table, Markdown for docs/, and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kappaone.coverage.rows import STATUSES, Kind, Row, Verdict

SCHEMA = 1
_MEANING = {
    "handled": "all attention that was noticed is described",
    "refused": "some attention is refused by name; nothing is guessed",
    "outside": "only attention without softmax(Q K^T) V, left alone by name",
    "no attention": "none was noticed",
    "error": "could not be built or looked at",
}


@dataclass(frozen=True)
class Totals:
    """What a set of rows adds up to.

    Attributes:
        architectures: rows.
        by_status: how many rows have each status.
        kinds: distinct kinds of attention that are described.
        confirmed: kinds that the probe confirmed.
        contradicted: kinds that the probe contradicted.
        probed: whether the probe was run at all.
    """

    architectures: int
    by_status: dict[str, int]
    kinds: int
    confirmed: int
    contradicted: int
    probed: bool

    @property
    def handled(self) -> float | None:
        """Percentage handled of those with attention that is softmax(Q K^T) V; None if there are none."""
        return _percent(self.by_status["handled"], self.by_status["handled"] + self.by_status["refused"])

    @property
    def strictly(self) -> float | None:
        """The same with those that have only other attention counted as not handled."""
        counts = self.by_status
        return _percent(counts["handled"], counts["handled"] + counts["refused"] + counts["outside"])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {**vars(self), "handled_percent": self.handled, "strictly_percent": self.strictly}

    def lines(self) -> list[str]:
        r"""The totals in words.

        Examples:
            >>> print(*totals([Row("timm", "a", "handled"), Row("timm", "b", "no attention")]).lines(), sep="\n")
            2 architectures: 1 handled, 0 refused, 0 outside, 1 no attention, 0 error
            handled: 100.0 % of architectures with softmax attention, 100.0 % of those with any attention
            not probed: 0 distinct kinds of attention are described
        """
        counts = ", ".join(f"{self.by_status[status]} {status}" for status in STATUSES)
        out = [f"{self.architectures} architectures: {counts}"]
        if self.handled is not None or self.strictly is not None:
            first = "none" if self.handled is None else f"{_down(self.handled)} %"
            out.append(
                f"handled: {first} of architectures with softmax attention, "
                f"{_down(self.strictly or 0.0)} % of those with any attention"
            )
        if not self.probed:
            return [*out, f"not probed: {self.kinds} distinct kinds of attention are described"]
        unsure = self.kinds - self.confirmed - self.contradicted
        return [
            *out,
            f"probe: {self.confirmed} of {self.kinds} distinct kinds of attention confirmed, {self.contradicted} contradicted, "
            f"{unsure} could not be probed",
        ]


def totals(rows: Sequence[Row]) -> Totals:
    """Count rows and kinds."""
    counts = Counter(row.status for row in rows)
    states = {key: verdict.confirmed for key, verdict in _verdicts(rows).items()}
    keys = {kind.key for row in rows for kind in row.details}
    return Totals(
        architectures=len(rows),
        by_status={status: counts[status] for status in STATUSES},
        kinds=len(keys),
        confirmed=sum(states.get(key) is True for key in keys),
        contradicted=sum(states.get(key) is False for key in keys),
        probed=any(row.verdicts for row in rows),
    )


def cells(row: Row) -> list[str]:
    """One row of the terminal table: architecture, status, layers, classes, probe, reason."""
    probe = "-" if not row.details else {True: "yes", False: "NO", None: "no"}[row.confirmed] if row.verdicts else "-"
    why = "; ".join(filter(None, [*row.refused, *row.outside, row.note]))
    return [row.name, row.status, str(row.layers or "-"), ", ".join(row.kinds) or "-", probe, why]


COLUMNS = ("architecture", "status", "layers", "attention classes", "confirmed", "why, or by whom")


def to_json(rows: Sequence[Row]) -> dict[str, Any]:
    """Totals and rows as plain data."""
    return {"schema": SCHEMA, "totals": totals(rows).to_dict(), "rows": [row.to_dict() for row in rows]}


def markdown(library: str, version: str, rows: Sequence[Row], command: str) -> str:
    """A page for docs/: the totals, the kinds of attention, what is refused, every architecture.

    Args:
        library: its name.
        version: its version.
        rows: from `Coverage.results`.
        command: what makes this page again.
    """
    sections = [
        f"# Coverage of {library} {version}",
        f"Made by `{command}`; do not edit. Every architecture is built as registered, on the meta device, and surveyed; "
        "every distinct kind of attention (module class, children, switches and layout, sizes aside) is probed on a small "
        "instance, row by row for each role and head (docs/layouts.md). Architectures whose kinds were all confirmed on "
        "others are confirmed by kind.",
        "\n".join(f"* {line}" for line in totals(rows).lines()),
        "## Kinds of attention that are described",
        *_kinds(rows),
        "## Attention that is refused",
        _reasons(rows, "refused", "Nothing is refused."),
        "## Attention without softmax(Q K^T) V",
        _reasons(rows, "outside", "None was recognised."),
        "## Architectures",
        "\n".join(f"* {status}: {meaning}" for status, meaning in _MEANING.items()),
        _architectures(rows),
        "## Architectures without attention",
        ", ".join(row.name for row in rows if row.status == "no attention") + ".",
    ]
    return "\n\n".join(sections) + "\n"


def _kinds(rows: Sequence[Row]) -> list[str]:
    """One line for each class and layout; kinds that differ in their children only are counted together."""
    verdicts = _verdicts(rows)
    groups: dict[tuple[str, str], list[tuple[Row, Kind]]] = {}
    for row in rows:
        for kind in row.details:
            groups.setdefault((kind.name, kind.switches), []).append((row, kind))
    if not groups:
        return ["None."]
    lines = []
    for (name, switches), members in sorted(groups.items()):
        keys = {kind.key for _, kind in members}
        states = [verdicts.get(key, Verdict(None)) for key in sorted(keys)]
        yes = sum(verdict.confirmed is True for verdict in states)
        by = sorted({verdict.by for verdict in states if verdict.confirmed})
        wrong = " **contradicted**" if any(verdict.confirmed is False for verdict in states) else ""
        on = f" ({', '.join(by[:2])}{', ...' if len(by) > 2 else ''})" if by else ""
        lines.append([name, switches, str(len({row.name for row, _ in members})), f"{yes} of {len(keys)}{wrong}{on}"])
    return [_table(["class", "described by: how", "architectures", "variants confirmed, on"], lines)]


def _reasons(rows: Sequence[Row], which: str, none: str) -> str:
    groups: dict[str, list[str]] = {}
    for row in rows:
        for item in row.refused if which == "refused" else row.outside:
            groups.setdefault(item.rpartition(" (")[0], []).append(row.name)
    if not groups:
        return none
    lines = [
        [reason, str(len(names)), ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")]
        for reason, names in sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
    return _table(["class: reason", "architectures", "such as"], lines)


def _architectures(rows: Sequence[Row]) -> str:
    shown = [row for row in rows if row.status != "no attention"]
    return _table(list(COLUMNS), [cells(row) for row in shown]) if shown else "None."


def _table(columns: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    def line(items: Sequence[str]) -> str:
        return "| " + " | ".join(item.replace("|", "\\|").replace("\n", " ") for item in items) + " |"

    return "\n".join([line(columns), "|" + "---|" * len(columns), *map(line, lines)])


def _verdicts(rows: Iterable[Row]) -> dict[str, Verdict]:
    return {key: verdict for row in rows for key, verdict in row.verdicts.items()}


def _percent(part: int, whole: int) -> float | None:
    return 100.0 * part / whole if whole else None


def _down(percent: float) -> str:
    """One decimal, rounded down: 99.96 is not 100."""
    return f"{int(percent * 10 + 1e-9) / 10:.1f}"
