"""The plan of a study: everything that is decided before the first run, as one value with a hash.

Arms are opaque strings here (kappaone's recipes read them as schemes); nothing in this folder knows what they mean.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kappaone.errors import StudyError

PLAN_SCHEMA = 1
AUTO = "auto"
NOISE_ARM = "default(redraw)"
DEFAULT_RUNNER: Mapping[str, Any] = {"callable": "kappaone.recipes.images:run", "options": {}}

#: The cells of the 2x2, spectrum x scale: c, d = conditioned, default; L, S = conditioned's, default's scale.
DEFAULT_CELLS: Mapping[str, str] = {
    "cL": "conditioned",
    "cS": "conditioned(scale=matched)",
    "dL": "default(scale=conditioned)",
    "dS": "default",
}

#: The effects of the 2x2 by cell: scale 1/2[(cL-cS)+(dL-dS)], spectrum 1/2[(cL-dL)+(cS-dS)], interaction (cL-cS)-(dL-dS).
EFFECTS: Mapping[str, Mapping[str, float]] = {
    "scale": {"cL": 0.5, "cS": -0.5, "dL": 0.5, "dS": -0.5},
    "spectrum": {"cL": 0.5, "cS": 0.5, "dL": -0.5, "dS": -0.5},
    "interaction": {"cL": 1.0, "cS": -1.0, "dL": -1.0, "dS": 1.0},
}

_PLACEHOLDER = re.compile(r"\{(arm|seed|out|spec)\}")


@dataclass(frozen=True)
class Contrast:
    """One declared comparison: a weighted sum of arms, formed within each seed.

    Attributes:
        name: what tables call it; unique within a plan.
        kind: "arm" (one arm against the reference: better or worse) or "causal" (an effect of the 2x2: positive or
            negative).
        weights: weight of each arm that takes part; they sum to 0, so that what a seed adds to every arm cancels.

    Raises:
        StudyError: an empty name, an unknown kind, or weights that are zero, not finite or do not sum to 0.

    Examples:
        >>> Contrast("conditioned vs default", "arm", {"conditioned": 1, "default": -1}).weights["default"]
        -1.0
    """

    name: str
    kind: Literal["arm", "causal"]
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        where = f"contrast {self.name!r}"
        if not isinstance(self.name, str) or not self.name.strip():
            raise StudyError(f"a contrast has the name {self.name!r}; expected some text", "give the contrast a name")
        if self.kind not in ("arm", "causal"):
            raise StudyError(f"{where} has kind {self.kind!r}; expected 'arm' or 'causal'", "correct its kind")
        weights = {str(arm): float(weight) for arm, weight in self.weights.items()}
        if len(weights) < 2 or not all(math.isfinite(w) and w != 0 for w in weights.values()):
            raise StudyError(
                f"{where} has weights {weights}; expected at least two arms, with finite weights other than 0",
                "leave out arms that do not take part",
            )
        total = math.fsum(weights.values())
        if abs(total) > 1e-9 * max(abs(w) for w in weights.values()):
            raise StudyError(
                f"the weights of {where} sum to {total:g}; expected 0",
                "balance the weights: what a seed adds must cancel",
            )
        object.__setattr__(self, "weights", weights)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {"name": self.name, "kind": self.kind, "weights": dict(self.weights)}


@dataclass(frozen=True)
class TargetRule:
    """How steps-to-target is counted; the same rule for every arm, the reference included.

    Attributes:
        metric: the metric whose curve is followed; "" takes the plan's primary metric.
        higher_is_better: direction of that metric; None takes the plan's (only where the metric is the plan's).
        grid: which evaluations count: None for all that were recorded, a whole number for the multiples of it, or the
            steps themselves.
        window: length of the trailing mean, in evaluations; the curve begins at the `window`-th evaluation.
        consecutive: evaluations in a row that must be at or beyond the target; the first of them is the crossing.
        tail: fraction of the reference's smoothed evaluations, at its end, whose mean is the target of that seed.
    """

    metric: str = ""
    higher_is_better: bool | None = None
    grid: int | tuple[int, ...] | None = None
    window: int = 3
    consecutive: int = 3
    tail: float = 0.05

    def __post_init__(self) -> None:
        if isinstance(self.grid, Sequence):
            object.__setattr__(self, "grid", tuple(self.grid))
        grid_ok = (
            self.grid is None
            or (_is_int(self.grid) and self.grid > 0)  # type: ignore[operator]
            or (
                isinstance(self.grid, tuple)
                and len(self.grid) > 0
                and all(_is_int(s) and s >= 0 for s in self.grid)
                and list(self.grid) == sorted(set(self.grid))
            )
        )
        if not grid_ok:
            raise StudyError(
                f"the target rule has grid {self.grid!r}; expected None, a positive whole number or increasing steps",
                "correct the grid",
            )
        for name in ("window", "consecutive"):
            value = getattr(self, name)
            if not _is_int(value) or value < 1:
                raise StudyError(
                    f"the target rule has {name} {value!r}; expected a whole number of at least 1", f"correct {name}"
                )
        if not 0 < self.tail <= 1:
            raise StudyError(f"the target rule has tail {self.tail!r}; expected a fraction in (0, 1]", "correct tail")

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "grid": list(self.grid) if isinstance(self.grid, tuple) else self.grid,
            "window": self.window,
            "consecutive": self.consecutive,
            "tail": self.tail,
        }


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study will run and how it will be judged, fixed before the first run.

    Attributes:
        name: name of the study.
        arms: the arms, as the recipe or command understands them (schemes, for kappaone's own recipes).
        seeds: the seeds; every arm is run with every seed, and comparisons are made within a seed.
        margin: differences smaller than this, in the metric's unit, count as equivalent.
        reference: the arm that the others are compared with.
        noise_arm: the A/A arm (the reference with another random draw); "auto" takes "default(redraw)" where it is
            among the arms and the reference is "default"; None for none.
        metric: the primary metric; its last recorded value in a run is that run's outcome.
        higher_is_better: whether a larger value of the metric is good.
        contrasts: the declared comparisons, the family over which intervals are simultaneous. () declares each arm
            against the reference and, where the four cells are among the arms, the three effects of the 2x2.
        cells: arms of the 2x2 by cell (cL, cS, dL, dS); "auto" takes the default names where all four are present.
        target: the rule for steps-to-target, or None to leave it out.
        tracked: further metrics, shown at their first and last record.
        diverged_value: the outcome with which a diverged run enters; None leaves it out (and the analysis warns).
        runner: {"callable": "package.module:function" or "path/to/file.py:function", "options": {...}} or
            {"command": [...], "options": {...}} whose words may hold {arm}, {seed}, {out} and {spec}.

    Raises:
        StudyError: anything is missing, unknown, doubled or inconsistent; the message names it.

    Examples:
        >>> plan = Plan(name="demo", arms=("default", "conditioned"), seeds=range(8), margin=0.01)
        >>> [c.name for c in plan.contrasts]
        ['conditioned vs default']
        >>> Plan.from_dict(plan.to_dict()) == plan
        True
    """

    name: str
    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    margin: float
    reference: str = "default"
    noise_arm: str | None = AUTO
    metric: str = "test_accuracy"
    higher_is_better: bool = True
    contrasts: tuple[Contrast, ...] = ()  # () and "auto" are resolved in __post_init__
    cells: Mapping[str, str] | str | None = AUTO
    target: TargetRule | None = field(default_factory=TargetRule)
    tracked: tuple[str, ...] = ()
    diverged_value: float | None = None
    runner: Mapping[str, Any] = field(default_factory=lambda: dict(DEFAULT_RUNNER))

    def __post_init__(self) -> None:
        def put(name: str, value: object) -> None:
            object.__setattr__(self, name, value)

        put("arms", _texts("arms", self.arms))
        put("tracked", _texts("tracked", self.tracked))
        put("seeds", tuple(self.seeds))
        for name in ("name", "metric", "reference"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name).strip():
                raise StudyError(f"the plan's {name} is {getattr(self, name)!r}; expected some text", f"give {name}")
        if len(self.arms) < 2:
            raise StudyError(
                f"the plan has arms {list(self.arms)}; expected at least two", "add an arm to compare with"
            )
        if self.reference not in self.arms:
            raise StudyError(
                f"the reference {self.reference!r} is not among the arms {list(self.arms)}",
                "add it to the arms or name another reference",
            )
        if len(self.seeds) < 2 or not all(_is_int(s) and s >= 0 for s in self.seeds):
            raise StudyError(
                f"the plan has seeds {list(self.seeds)}; expected at least two whole numbers, none negative",
                "give more seeds: with fewer than two there is no interval, with fewer than six no exact test at .05",
            )
        if len(set(self.seeds)) != len(self.seeds):
            raise StudyError(f"seeds are doubled in {list(self.seeds)}", "give each seed once")
        if not math.isfinite(self.margin) or self.margin <= 0:
            raise StudyError(
                f"the equivalence margin is {self.margin!r}; expected a positive number in the unit of {self.metric}",
                "state the largest difference that would not matter",
            )
        put("margin", float(self.margin))
        if self.diverged_value is not None:
            if not math.isfinite(self.diverged_value):
                raise StudyError(
                    f"diverged_value is {self.diverged_value!r}; expected a finite number or None", "correct it"
                )
            put("diverged_value", float(self.diverged_value))
        put("noise_arm", self._noise_arm())
        put("cells", self._cells())
        put("contrasts", self._contrasts())
        put("target", self._target())
        put("runner", _runner(self.runner))

    def _noise_arm(self) -> str | None:
        if self.noise_arm == AUTO:
            return NOISE_ARM if NOISE_ARM in self.arms and self.reference == "default" else None
        if self.noise_arm is not None and (self.noise_arm not in self.arms or self.noise_arm == self.reference):
            raise StudyError(
                f"the noise arm {self.noise_arm!r} must be one of the arms {list(self.arms)}, other than the reference",
                "add it to the arms, or set noise_arm=None",
            )
        return self.noise_arm

    def _cells(self) -> dict[str, str] | None:
        if self.cells == AUTO:
            return dict(DEFAULT_CELLS) if set(DEFAULT_CELLS.values()) <= set(self.arms) else None
        if self.cells is None:
            return None
        cells = dict(self.cells) if isinstance(self.cells, Mapping) else {}
        if (
            set(cells) != set(DEFAULT_CELLS)
            or len(set(cells.values())) != 4
            or not set(cells.values()) <= set(self.arms)
        ):
            raise StudyError(
                f"the cells of the 2x2 are {self.cells!r}; expected cL, cS, dL and dS, each a different arm of "
                f"{list(self.arms)}",
                "correct the cells, or set cells=None",
            )
        return {cell: cells[cell] for cell in DEFAULT_CELLS}

    def _contrasts(self) -> tuple[Contrast, ...]:
        cells = self.cells if isinstance(self.cells, Mapping) else None
        declared = tuple(self.contrasts or ()) or default_contrasts(self.arms, self.reference, cells)
        names = [c.name for c in declared]
        if len(set(names)) != len(names):
            raise StudyError(f"contrasts share a name: {names}", "give each contrast its own name")
        for contrast in declared:
            if unknown := sorted(set(contrast.weights) - set(self.arms)):
                raise StudyError(
                    f"contrast {contrast.name!r} uses {unknown}, not among the arms {list(self.arms)}",
                    "add the arms or correct the contrast",
                )
        return declared

    def _target(self) -> TargetRule | None:
        rule = self.target
        if rule is None:
            return None
        metric = rule.metric or self.metric
        better = rule.higher_is_better
        if better is None:
            if metric != self.metric:
                raise StudyError(
                    f"the target rule follows {metric!r} but does not say whether higher is better",
                    "set higher_is_better",
                )
            better = self.higher_is_better
        return TargetRule(metric, better, rule.grid, rule.window, rule.consecutive, rule.tail)

    @property
    def digest(self) -> str:
        """Hash of everything in the plan: SHA-256 of its canonical JSON, in hexadecimal."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form, with its schema version; everything that was left to a default is spelled out."""
        return {
            "schema": PLAN_SCHEMA,
            "name": self.name,
            "arms": list(self.arms),
            "seeds": list(self.seeds),
            "reference": self.reference,
            "noise_arm": self.noise_arm,
            "metric": self.metric,
            "higher_is_better": self.higher_is_better,
            "margin": self.margin,
            "diverged_value": self.diverged_value,
            "contrasts": [c.to_dict() for c in self.contrasts],
            "cells": dict(self.cells) if isinstance(self.cells, Mapping) else None,
            "target": self.target.to_dict() if self.target else None,
            "tracked": list(self.tracked),
            "runner": json.loads(json.dumps(self.runner)),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """The plan that `to_dict` wrote.

        Raises:
            StudyError: another schema version, an unknown or a missing entry.
        """
        data = dict(data)
        schema = data.pop("schema", None)
        if schema != PLAN_SCHEMA:
            raise StudyError(
                f"the plan has schema {schema!r}; this version reads {PLAN_SCHEMA}",
                "open it with the kappaone that wrote it",
            )
        known = set(cls.__dataclass_fields__)
        if unknown := sorted(set(data) - known):
            raise StudyError(f"the plan has unknown entries {unknown}; known are {sorted(known)}", "correct the plan")
        try:
            data["contrasts"] = tuple(Contrast(**c) for c in data["contrasts"])
            data["target"] = TargetRule(**data["target"]) if data["target"] else None
            return cls(**data)
        except (KeyError, TypeError) as error:
            raise StudyError(
                f"the plan is incomplete or malformed: {error}", "write plans with Plan.to_dict"
            ) from error


def default_contrasts(arms: Sequence[str], reference: str, cells: Mapping[str, str] | None) -> tuple[Contrast, ...]:
    """Each arm against the reference and, given the cells of the 2x2, its three effects.

    Examples:
        >>> [c.name for c in default_contrasts(["a", "b", "r"], "r", None)]
        ['a vs r', 'b vs r']
    """
    found = [Contrast(f"{arm} vs {reference}", "arm", {arm: 1.0, reference: -1.0}) for arm in arms if arm != reference]
    if cells is not None:
        found += [
            Contrast(name, "causal", {cells[cell]: w for cell, w in by_cell.items()})
            for name, by_cell in EFFECTS.items()
        ]
    return tuple(found)


def plan_differences(old: Plan, new: Plan) -> list[str]:
    """What differs between two plans, one line an entry, for people.

    Examples:
        >>> a = Plan(name="s", arms=("x", "y"), reference="x", seeds=(0, 1), margin=1)
        >>> b = Plan(name="s", arms=("x", "y"), reference="x", seeds=(0, 1, 2), margin=1)
        >>> plan_differences(a, b)
        ['seeds: [0, 1] in the folder, [0, 1, 2] now']
    """
    a, b = old.to_dict(), new.to_dict()
    return [f"{key}: {a.get(key)!r} in the folder, {b.get(key)!r} now" for key in a if a.get(key) != b.get(key)]


def fill_command(command: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """A command with {arm}, {seed}, {out} and {spec} replaced; other braces are left alone.

    Examples:
        >>> fill_command(["train", "--init={arm}", '{"a": 1}'], {"arm": "x", "seed": "0", "out": "o", "spec": "s"})
        ['train', '--init=x', '{"a": 1}']
    """
    return [_PLACEHOLDER.sub(lambda m: values[m.group(1)], word) for word in command]


def _runner(runner: Mapping[str, Any]) -> dict[str, Any]:
    kinds = [k for k in ("callable", "command") if k in runner]
    if len(kinds) != 1 or (unknown := sorted(set(runner) - {"callable", "command", "options"})):
        raise StudyError(
            f"the runner is {dict(runner)!r}; expected 'callable' or 'command', and perhaps 'options'"
            + (f"; unknown: {unknown}" if len(kinds) == 1 else ""),
            "give {'callable': 'package.module:function', 'options': {...}} or {'command': [...]}",
        )
    try:
        # the round trip makes tuples lists now, so that a plan equals itself read from disk
        options = json.loads(json.dumps(dict(runner.get("options") or {}), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise StudyError(
            f"the runner's options are not plain JSON: {error}", "use numbers, text, lists and dicts"
        ) from error
    if kinds == ["callable"]:
        target = runner["callable"]
        if not isinstance(target, str) or not re.fullmatch(r".+:[A-Za-z_]\w*", target):
            raise StudyError(
                f"the callable is {target!r}; expected 'package.module:function' or 'path/to/file.py:function'",
                "name the function after a colon",
            )
        return {"callable": target, "options": options}
    command = runner["command"]
    if isinstance(command, str) or not command or not all(isinstance(w, str) and w for w in command):
        raise StudyError(
            f"the command is {command!r}; expected a list of words", "no shell is used: split it into words"
        )
    held = {m for word in command for m in _PLACEHOLDER.findall(word)}
    if "spec" not in held and not {"arm", "seed"} <= held:
        raise StudyError(
            f"the command {list(command)!r} does not say which arm and seed to run",
            "put {spec}, or both {arm} and {seed}, among its words",
        )
    return {"command": list(command), "options": options}


def _texts(name: str, values: Sequence[str]) -> tuple[str, ...]:
    if isinstance(values, str):
        raise StudyError(f"{name} is the text {values!r}; expected a list of texts", f"write [{values!r}]")
    values = tuple(values)
    if not all(isinstance(v, str) and v.strip() for v in values) or len(set(values)) != len(values):
        raise StudyError(f"{name} is {list(values)}; expected different, non-empty texts", f"correct {name}")
    return values


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
