"""Outcomes by seed and arm, and what it was worth to give every arm the same seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from kappaone.errors import StudyError
from kappaone.studies._extras import scipy_special
from kappaone.studies.plan import Contrast

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class PairedTable:
    """One outcome a run.

    Attributes:
        arms: names of the columns.
        seeds: names of the rows.
        values: outcomes, shape (seeds, arms), in the unit of the metric; NaN where a run has none.
    """

    arms: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Array

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.seeds), len(self.arms)):
            raise StudyError(
                f"the table of outcomes has shape {self.values.shape}; expected {(len(self.seeds), len(self.arms))}",
                "give one row a seed and one column an arm",
            )

    def column(self, arm: str) -> Array:
        """Outcomes of one arm, shape (seeds,)."""
        return self.values[:, self.arms.index(arm)]

    def weights(self, contrasts: Sequence[Contrast]) -> Array:
        """Weights of contrasts by arm, shape (contrasts, arms)."""
        return np.array([[c.weights.get(arm, 0.0) for arm in self.arms] for c in contrasts]).reshape(-1, len(self.arms))

    def differences(self, contrasts: Sequence[Contrast]) -> Array:
        """Each contrast formed within each seed, shape (seeds, contrasts).

        NaN where an arm that a contrast uses has no outcome; arms that take no part do not matter.

        Examples:
            >>> table = PairedTable(("a", "b"), (0, 1), np.array([[3.0, 1.0], [5.0, np.nan]]))
            >>> table.differences([Contrast("a vs b", "arm", {"a": 1, "b": -1})]).tolist()
            [[2.0], [nan]]
        """
        columns = []
        for contrast in contrasts:
            # summed over its own arms only: 0 * NaN would lose seeds to arms that take no part
            columns.append(
                sum((w * self.column(arm) for arm, w in contrast.weights.items()), np.zeros(len(self.seeds)))
            )
        return np.stack(columns, axis=1) if columns else np.zeros((len(self.seeds), 0))


@dataclass(frozen=True)
class Pairing:
    """What pairing bought.

    Attributes:
        correlation: consistency of outcomes within a seed across arms, ICC(C,1); None where it is not defined.
        interval: its 95 % interval, or None.
        variance_ratio: how many unpaired seeds one paired seed is worth for a difference of two arms, 1 / (1 - ICC);
            None where the arms differ by a constant or it is not defined.
        n: complete seeds that were used.
        words: the same in words.
    """

    correlation: float | None
    interval: tuple[float, float] | None
    variance_ratio: float | None
    n: int
    words: str


def pairing(table: PairedTable) -> Pairing:
    """Within-seed correlation over all arms, and the seeds that it saved.

    The estimate is the intraclass correlation for consistency, ICC(C,1), of the two-way table without replication, with
    the F interval of McGraw and Wong (Psychological Methods 1, 1996, case 3). It treats all arms as equally variable
    and equally correlated, and uses the seeds in which every arm has an outcome.

    Examples:
        >>> table = PairedTable(("a", "b"), (0, 1, 2), np.array([[1.0, 2.0], [2.0, 3.5], [4.0, 4.5]]))
        >>> round(pairing(table).correlation, 3)
        0.936
    """
    values = table.values[np.isfinite(table.values).all(axis=1)]
    n, k = values.shape
    if n < 2 or k < 2:
        return Pairing(
            None, None, None, n, f"Pairing cannot be judged: only {n} seed(s) in which every arm has an outcome."
        )
    grand = values.mean()
    rows, columns = values.mean(axis=1), values.mean(axis=0)
    between = k * float(((rows - grand) ** 2).sum()) / (n - 1)
    residual = values - rows[:, None] - columns[None, :] + grand
    within = float((residual**2).sum()) / ((n - 1) * (k - 1))
    scale = float(np.abs(values).max()) or 1.0
    tiny = (1e-12 * scale) ** 2
    if within <= tiny:
        words = (
            "Within a seed all arms differ by the same amount in every seed: pairing removed all noise between seeds."
        )
        if between <= tiny:
            return Pairing(None, None, None, n, "Outcomes do not vary between seeds: pairing had nothing to remove.")
        return Pairing(1.0, (1.0, 1.0), None, n, words)
    ratio = between / within
    correlation = (between - within) / (between + (k - 1) * within)
    fdtri = scipy_special().fdtri
    low = ratio / float(fdtri(n - 1, (n - 1) * (k - 1), 0.975))
    high = ratio * float(fdtri((n - 1) * (k - 1), n - 1, 0.975))
    interval = ((low - 1) / (low + k - 1), (high - 1) / (high + k - 1))
    worth = (between + (k - 1) * within) / (k * within)
    words = (
        f"Outcomes of one seed correlate by {correlation:.2f} across arms (95 % interval {interval[0]:.2f} to "
        f"{interval[1]:.2f}); one paired seed is worth {worth:.1f} unpaired ones"
        + ("." if worth >= 1 else ": pairing did not help here.")
    )
    return Pairing(correlation, interval, worth, n, words)


def paired_table(arms: Sequence[str], seeds: Sequence[int], outcomes: Mapping[tuple[str, int], Any]) -> PairedTable:
    """The table of outcomes by (arm, seed); what is missing or not finite becomes NaN."""
    values = np.full((len(seeds), len(arms)), np.nan)
    for i, seed in enumerate(seeds):
        for j, arm in enumerate(arms):
            value = outcomes.get((arm, seed))
            if value is not None and np.isfinite(value):
                values[i, j] = value
    return PairedTable(tuple(arms), tuple(seeds), values)
