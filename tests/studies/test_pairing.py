"""What pairing bought: the definition by sums over cells, an equivalent by variances, coverage, and degenerate tables."""

import numpy as np
import pytest
from scipy import stats

from kappaone.errors import StudyError
from kappaone.studies import Contrast
from kappaone.studies.pairing import PairedTable, paired_table, pairing


def table(values):
    values = np.asarray(values, float)
    return PairedTable(tuple(f"a{j}" for j in range(values.shape[1])), tuple(range(len(values))), values)


def test_against_variances_of_paired_and_unpaired_differences():
    # averaged over all pairs of arms, (variance if unpaired) / (variance of the paired difference) is what a pair is worth
    rng = np.random.default_rng(1)
    values = rng.normal(size=(7, 1)) + 0.5 * rng.normal(size=(7, 4)) * [1, 2, 0.5, 1]
    unpaired = paired = 0.0
    for i in range(4):
        for j in range(i):
            unpaired += np.var(values[:, i], ddof=1) + np.var(values[:, j], ddof=1)
            paired += np.var(values[:, i] - values[:, j], ddof=1)
    found = pairing(table(values))
    assert found.variance_ratio == pytest.approx(unpaired / paired, rel=1e-12)
    assert found.correlation == pytest.approx(1 - paired / unpaired, rel=1e-10)


def test_interval_covers_by_simulation():
    rng = np.random.default_rng(2)
    rho, reps, inside = 0.6, 500, 0
    for _ in range(reps):
        values = np.sqrt(rho) * rng.normal(size=(8, 1)) + np.sqrt(1 - rho) * rng.normal(size=(8, 5))
        low, high = pairing(table(values)).interval
        inside += low <= rho <= high
    assert inside / reps == pytest.approx(0.95, abs=3.5 * np.sqrt(0.05 * 0.95 / reps))


def test_pairing_that_hurts_says_so():
    values = np.array([[1.0, -1], [-1, 1], [2, -2], [-2.5, 2.5]])
    found = pairing(table(values))
    assert found.correlation == pytest.approx(-1)
    assert found.variance_ratio == pytest.approx(0.5)
    assert "did not help" in found.words


def test_degenerate_tables():
    shifted = pairing(table([[1.0, 1.1], [2.0, 2.1], [5.0, 5.1]]))
    assert (shifted.correlation, shifted.variance_ratio) == (1.0, None)
    assert "removed all noise" in shifted.words
    assert pairing(table(np.ones((3, 2)))).correlation is None
    assert "cannot be judged" in pairing(table([[1.0, 2.0], [np.nan, 1.0]])).words


def test_only_complete_seeds_are_used():
    values = np.random.default_rng(3).normal(size=(6, 3))
    holed = values.copy()
    holed[0, 1] = np.nan
    assert pairing(table(holed)).n == 5
    assert pairing(table(holed)).correlation == pairing(table(values[1:])).correlation


def test_differences_lose_only_seeds_of_their_own_arms():
    found = paired_table(("a", "b", "c"), (5, 6), {("a", 5): 1.0, ("b", 5): 3.0, ("a", 6): 2.0, ("c", 6): float("nan")})
    contrasts = [
        Contrast("ab", "arm", {"a": 2, "b": -2}),
        Contrast("ac", "arm", {"a": 1, "c": -1}),
    ]
    np.testing.assert_array_equal(found.differences(contrasts), [[-4.0, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(found.weights(contrasts), [[2, -2, 0], [1, 0, -1]])


def test_shape_is_checked():
    with pytest.raises(StudyError, match="shape"):
        PairedTable(("a",), (0, 1), np.zeros((1, 2)))


def test_interval_ends_leave_a_fortieth_each():
    # (1 + k rho / (1 - rho)) F is the law of the ratio of mean squares; each end makes what was seen a 2.5 % event
    values = np.random.default_rng(4).normal(size=(9, 1)) + np.random.default_rng(5).normal(size=(9, 4))
    n, k = values.shape
    rows, columns = values.mean(1, keepdims=True), values.mean(0, keepdims=True)
    between = k * rows.var(ddof=1)
    within = ((values - rows - columns + values.mean()) ** 2).sum() / ((n - 1) * (k - 1))
    low, high = pairing(table(values)).interval
    law = stats.f(n - 1, (n - 1) * (k - 1))
    assert law.sf(between / within / (1 + k * low / (1 - low))) == pytest.approx(0.025)
    assert law.cdf(between / within / (1 + k * high / (1 - high))) == pytest.approx(0.025)
