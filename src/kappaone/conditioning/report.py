"""The result of `inspect`: typed numbers by layer, role and head; a table for people, JSON for programs."""

from __future__ import annotations

import io
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from kappaone._version import __version__
from kappaone.conditioning.activity import AttentionActivity
from kappaone.conditioning.bound import AttentionBound
from kappaone.conditioning.extremes import JacobianCondition
from kappaone.conditioning.weights import WeightSpectra
from kappaone.linalg.spectra import Spectrum

SCHEMA = "kappaone/conditioning-report"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class HeadCondition:
    """One query head on the example.

    Attributes:
        head: index of the query head.
        kv_head: the key/value head that it reads.
        activity: logit spread and entropy.
        kappa_X: kappa of the tokens that the queries read, over their numerical rank (a layer norm without affine part
            makes them rank deficient by design).
        rank_X: that rank.
        probabilities: spectrum of P (queries by keys).
        bound: Theorem 3.1's bound with its parts, or None where the theorem does not describe the layer.
        jacobian: kappa(J), or None if it was not asked for. J is of this query head alone, before the output
            projection: under grouped keys and values its W_K and W_V are shared with the group's other heads.
    """

    head: int
    kv_head: int
    activity: AttentionActivity
    kappa_X: float
    rank_X: int
    probabilities: Spectrum
    bound: AttentionBound | None = None
    jacobian: JacobianCondition | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be inf or NaN."""
        P, J = self.probabilities, self.jacobian
        return {
            "head": self.head,
            "kv_head": self.kv_head,
            **self.activity.to_dict(),
            "kappa_X": self.kappa_X,
            "rank_X": self.rank_X,
            "kappa_P": P.to_dict(),
            **({} if J is None else {"kappa_J": J.to_dict()}),
            **({} if self.bound is None else {"bound": self.bound.to_dict()}),
        }


@dataclass(frozen=True)
class LayerCondition:
    """One attention layer.

    Attributes:
        name: qualified name.
        kind: class name of the module.
        weights: spectra of its weights.
        heads: by query head, empty without an example or where the example does not reach the layer.
        notes: what a reader must know about this layer: what was left out, and why.
        facts: what its layout states (kappaone.layouts.facts).
    """

    name: str
    kind: str
    weights: WeightSpectra
    heads: tuple[HeadCondition, ...] = ()
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be inf or NaN."""
        return {
            "name": self.name,
            "kind": self.kind,
            "weights": self.weights.to_dict(),
            "heads": [head.to_dict() for head in self.heads],
            "summary": self.summary(),
            "notes": list(self.notes),
            "facts": dict(self.facts),
        }

    def summary(self) -> dict[str, dict[str, float | int]]:
        """Minimum, median and maximum over the heads of each quantity, with the number of heads that have it.

        Lower bounds of kappa (rank-deficient matrices) are not averaged with values: they are left out of all three
        and counted as `bounds`.
        """
        columns: dict[str, list[float]] = {}
        bounds: dict[str, int] = {}
        for name, role in self.weights.roles.items():
            columns[f"kappa_W_{name.upper()}"] = [s.condition_number for s in role.heads if s.status == "ok"]
            bounds[f"kappa_W_{name.upper()}"] = sum(s.status == "rank_deficient" for s in role.heads)
            columns[f"frobenius_W_{name.upper()}"] = [s.frobenius_norm for s in role.heads]
            columns[f"stable_rank_W_{name.upper()}"] = [s.stable_rank for s in role.heads]
        for head in self.heads:
            for key, value in head.activity.to_dict().items():
                columns.setdefault(key, []).append(value)
            columns.setdefault("kappa_X", []).append(head.kappa_X)
            exact = head.probabilities.status == "ok"
            columns.setdefault("kappa_P", []).extend([head.probabilities.condition_number] if exact else [])
            bounds["kappa_P"] = bounds.get("kappa_P", 0) + (head.probabilities.status == "rank_deficient")
            if head.bound is not None:
                columns.setdefault("kappa_plus_Lambda", []).append(head.bound.kappa_plus_Lambda)
                columns.setdefault("b_plus", []).append(head.bound.b_plus)
            if head.jacobian is not None:
                known = head.jacobian.status in ("ok", "rank_deficient")
                columns.setdefault("kappa_J", []).extend([head.jacobian.condition_number] if known else [])
                bounds["kappa_J"] = bounds.get("kappa_J", 0) + (head.jacobian.status == "bounded")
        return {key: _three(values, bounds.get(key, 0)) for key, values in columns.items()}


@dataclass(frozen=True)
class ConditioningReport:
    """What `inspect` measured. Prints as a table; `to_dict` and `to_json` hold everything.

    Attributes:
        layers: by layer, in the order of the model.
        model: class name of the model.
        example: description of the example and of the sample that was measured, or None.
        notes: what holds for the whole report.
    """

    layers: tuple[LayerCondition, ...]
    model: str = ""
    example: str | None = None
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form with schema and version; inf and NaN are the strings "inf", "-inf" and "nan"."""
        plain = {
            "schema": SCHEMA,
            "schema_version": SCHEMA_VERSION,
            "kappaone_version": __version__,
            "model": self.model,
            "example": self.example,
            "notes": list(self.notes),
            "layers": [layer.to_dict() for layer in self.layers],
        }
        safe: dict[str, Any] = _json_safe(plain)
        return safe

    def to_json(self, *, indent: int | None = None) -> str:
        """`to_dict` as strict JSON."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    def __str__(self) -> str:
        return self.to_text()

    def to_text(self, *, width: int = 120, color: bool = False) -> str:
        """The tables as text.

        Args:
            width: columns of the terminal.
            color: with ANSI styles.
        """
        console = Console(
            file=io.StringIO(),
            width=width,
            force_terminal=color,
            no_color=not color,
            color_system="truecolor" if color else None,
            highlight=False,
            legacy_windows=False,
        )
        console.print(self._weights_table())
        if any(layer.heads for layer in self.layers):
            console.print(self._example_table())
        for note in self._all_notes():
            console.print(f"- {note}", markup=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
        return "\n".join(line.rstrip() for line in text.splitlines())

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.text import Text

        tables = [self._weights_table()]
        if any(layer.heads for layer in self.layers):
            tables.append(self._example_table())
        return Group(*tables, *(Text(f"- {note}") for note in self._all_notes()))

    def _all_notes(self) -> list[str]:
        """Every note once, with the layers that it is about; and why a kappa(J) is not there."""
        about: dict[str, list[str]] = {}
        for layer in self.layers:
            missing = {
                f"kappa(J) {head.jacobian.status}: {head.jacobian.note}"
                for head in layer.heads
                if head.jacobian is not None
                and head.jacobian.note
                and head.jacobian.status not in ("ok", "rank_deficient")
            }
            # what is not supported is said by the layer's own note
            for note in (*layer.notes, *sorted(text for text in missing if "not_supported" not in text)):
                names = about.setdefault(note, [])
                if _name(layer) not in names:
                    names.append(_name(layer))
        grouped = (
            f"{names[0]}{f' and {len(names) - 1} more layers' if len(names) > 1 else ''}: {note}"
            for note, names in about.items()
        )
        return [*self.notes, *grouped]

    def _weights_table(self) -> Table:
        title = "kappa of the weights: by head (min/median/max), by role, fused"
        table = Table(title=title, box=box.SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("layer", overflow="fold")
        roles = [r for r in ("q", "k", "v", "o") if any(r in layer.weights.roles for layer in self.layers)]
        for role in roles:
            table.add_column(f"W_{role.upper()} by head", justify="right", overflow="fold")
            table.add_column("role", justify="right", overflow="fold")
        table.add_column("fused", justify="right", overflow="fold")
        for layer in self.layers:
            cells = [_name(layer)]
            for role in roles:
                spectra = layer.weights.roles.get(role)
                cells += ["-", "-"] if spectra is None else [_heads(spectra.heads), _role(spectra.stacked)]
            fused = layer.weights.fused
            table.add_row(*cells, "-" if fused is None else _role(fused))
        return table

    def _example_table(self) -> Table:
        title = f"on {self.example}: median over heads, for kappa(J) min/median/max"
        table = Table(title=title, box=box.SIMPLE, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("layer", overflow="fold")
        for name in (
            "logit std",
            "entropy",
            "of log n",
            "kappa(X)",
            "kappa(P)",
            "kappa+(L)",
            "B",
            "B+",
            "kappa(J)",
        ):
            table.add_column(name, justify="right", overflow="fold")
        for layer in self.layers:
            if not layer.heads:
                continue
            summary = layer.summary()
            keys = ("logit_std", "attention_entropy", "relative_entropy", "kappa_X", "kappa_P", "kappa_plus_Lambda")
            cells = [_name(layer)] + [_median(summary, key) for key in keys]
            cells += [
                "inf" if "b_plus" in summary else "-",
                _median(summary, "b_plus"),
                _jacobians(layer.heads),
            ]
            table.add_row(*cells)
        return table


def _name(layer: LayerCondition) -> str:
    return layer.name or "(the model itself)"


def _three(values: Sequence[float], bounds: int) -> dict[str, float | int]:
    finite = [value for value in values if math.isfinite(value)]
    nan = math.nan
    low, mid, high = (min(finite), statistics.median(finite), max(finite)) if finite else (nan, nan, nan)
    return {"min": low, "median": mid, "max": high, "heads": len(finite), "bounds": bounds}


def _range(values: Iterable[float]) -> str:
    found = sorted(values)
    low, mid, high = (_short(v) for v in (found[0], statistics.median(found), found[-1]))
    return low if low == high else f"{low}/{mid}/{high}"


def _short(value: float) -> str:
    """Three digits, in as few characters as possible: tables of many layers must fit a terminal."""
    return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")


def _role(found: Spectrum) -> str:
    return _short(found.condition_number) if found.status == "ok" else found.kappa_text()


def _counted(values: Sequence[float], others: Sequence[str]) -> str:
    parts = [_range(values)] if values else []
    parts += [f"{name} x{others.count(name)}" for name in sorted(set(others))]
    return ", ".join(parts) or "-"


def _heads(spectra: Sequence[Any]) -> str:
    known = [s.condition_number for s in spectra if s.status == "ok"]
    return _counted(known, [s.status for s in spectra if s.status != "ok"])


def _jacobians(heads: Sequence[HeadCondition]) -> str:
    measured = [head.jacobian for head in heads if head.jacobian is not None]
    known = [j.condition_number for j in measured if j.status in ("ok", "rank_deficient")]
    return _counted(known, [j.status for j in measured if j.status not in ("ok", "rank_deficient")])


def _median(summary: dict[str, dict[str, float | int]], key: str) -> str:
    entry = summary.get(key)
    if entry is None:
        return "-"
    if entry["heads"]:
        return _short(entry["median"])
    return "lower bounds" if entry["bounds"] else "-"


def _json_safe(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {str(key): _json_safe(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_json_safe(item) for item in value]
    return value
