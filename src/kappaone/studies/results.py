"""The analysis of a study as typed values, and as the JSON from which pages and tables are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from kappaone.studies.pairing import Pairing
from kappaone.studies.plan import Plan

ANALYSIS_SCHEMA = 1
Interval = tuple[float, float]


@dataclass(frozen=True)
class ArmSummary:
    """Outcomes of one arm; `values` holds None for a run that failed, is missing, or diverged with no stated value."""

    name: str
    n: int
    mean: float | None
    sd: float | None
    values: Mapping[int, float | None]
    diverged: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """Mean over seeds by step, with a pointwise 95 % t band; None where fewer than two seeds have a value."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True)
class NoiseFloor:
    """The A/A arm against the reference: what a difference of nothing but chance looks like."""

    arm: str
    mean: float | None
    sd: float | None
    interval: Interval | None
    n: int
    words: str


@dataclass(frozen=True)
class MinimumDetectable:
    """Minimum detectable effect, with the range that the uncertainty of the noise gives."""

    value: float | None
    low: float | None
    high: float | None
    power: float
    alpha: float
    words: str


@dataclass(frozen=True)
class ExactTest:
    """What the sign-flip check could have found; `exact` is False where sign vectors were drawn at random."""

    n: int
    smallest_p: float
    words: str
    exact: bool
    vectors: int


@dataclass(frozen=True)
class ContrastResult:
    """One declared contrast; differences by seed, in the metric's unit."""

    name: str
    kind: str
    weights: Mapping[str, float]
    differences: Mapping[int, float]
    n: int
    mean: float | None
    sd: float | None
    interval: Interval | None
    interval90: Interval | None
    p_maxt: float | None
    verdict: str
    words: str


@dataclass(frozen=True)
class CausalResult:
    """The 2x2: names of its contrasts, and the mean outcome of each cell."""

    effects: tuple[str, ...]
    cells: Mapping[str, float | None]
    arms: Mapping[str, str]
    words: str


@dataclass(frozen=True)
class TargetRow:
    """Steps to target of one arm; `steps` is None where the target was not reached by the horizon.

    `difference` is the mean paired difference of min(steps, horizon) against the reference, with an unadjusted 95 % t
    interval; None for the reference itself.
    """

    arm: str
    steps: Mapping[int, int | None]
    reached: int
    n: int
    difference: float | None
    interval: Interval | None
    words: str


@dataclass(frozen=True)
class TargetResult:
    """Steps to target by one rule for all arms; without rows where it could not be counted, and `words` say why."""

    rule: Mapping[str, Any] | None
    rows: tuple[TargetRow, ...]
    horizon: int | None
    words: str


@dataclass(frozen=True)
class Level:
    """A mean over seeds with a 95 % t interval; None where it is not defined. `n` counts finite values."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


@dataclass(frozen=True)
class StudyAnalysis:
    """What a study says. `str()` gives the sentences, `to_dict()` everything, plain and JSON-ready.

    Attributes:
        plan: the plan.
        provenance: versions, machine, times, hash of the plan.
        arms: outcomes by arm.
        curves: by metric, then arm.
        noise_floor: the A/A arm, or None without one.
        pairing: what pairing bought.
        mde: minimum detectable effect.
        exact_test: the sign-flip check's reach.
        level: two-sided error of each simultaneous interval (alpha*).
        contrasts: the declared contrasts, with verdicts.
        causal: the 2x2, or None.
        target: steps to target.
        tracked: by metric, then arm, then "first" and "last".
        warnings: everything that limits these results.
    """

    plan: Plan
    provenance: Mapping[str, Any]
    arms: tuple[ArmSummary, ...]
    curves: Mapping[str, Mapping[str, Curve]]
    noise_floor: NoiseFloor | None
    pairing: Pairing
    mde: MinimumDetectable
    exact_test: ExactTest
    level: float
    contrasts: tuple[ContrastResult, ...]
    causal: CausalResult | None
    target: TargetResult
    tracked: Mapping[str, Mapping[str, Mapping[str, Level]]]
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form, with its schema version; keys are text, what is not finite is None."""
        plain: dict[str, Any] = _plain({f.name: getattr(self, f.name) for f in fields(self)})
        return {"schema": ANALYSIS_SCHEMA, **plain}

    def __str__(self) -> str:
        first = [self.noise_floor.words] if self.noise_floor else []
        lines = [*first, self.pairing.words, self.mde.words, self.exact_test.words]
        lines += [c.words for c in self.contrasts]
        lines += [self.causal.words] if self.causal else []
        lines += [row.words for row in self.target.rows] or [self.target.words]
        return "\n".join([*lines, *(f"Warning: {w}" for w in self.warnings)])


def _plain(value: Any) -> Any:
    if isinstance(value, Plan):
        return value.to_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
