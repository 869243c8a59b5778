"""Simultaneous intervals: exact cases, bounds, and coverage by simulation."""

import itertools

import numpy as np
import pytest
from scipy import stats

from kappaone.errors import StudyError
from kappaone.studies.statistics.contrasts import estimates, simultaneous_level, spread, t_interval

ARMS = 6


def dunnett_weights(arms=ARMS):
    """Each arm against the first."""
    return np.concatenate([-np.ones((arms - 1, 1)), np.eye(arms - 1)], axis=1)


def with_two_by_two():
    """Five arms against the first, and the three effects of a 2x2 of four of the six arms (first is dS)."""
    dS, cL, cS, dL = np.eye(ARMS)[:4]
    return np.concatenate([dunnett_weights(), [(cL - cS + dL - dS) / 2, (cL - dL + cS - dS) / 2, cL - cS - dL + dS]])


def test_one_contrast_is_scipys_paired_t_test():
    rng = np.random.default_rng(1)
    a, b = rng.normal(size=(2, 9))
    d = (a - b)[:, None]
    level = simultaneous_level(d, np.array([[1.0, -1.0]]))
    (found,) = estimates(d, level)
    oracle = stats.ttest_rel(a, b)
    assert level == 0.05
    np.testing.assert_allclose(found.interval, oracle.confidence_interval(0.95), rtol=1e-12)
    np.testing.assert_allclose(found.interval90, oracle.confidence_interval(0.90), rtol=1e-12)
    assert found.n == 9
    assert found.mean == pytest.approx(np.mean([x - y for x, y in zip(a, b, strict=True)]))


def test_independent_contrasts_need_sidaks_level():
    # disjoint pairs of arms: the contrasts are independent, where Sidak is exact
    rng = np.random.default_rng(2)
    m, n = 4, 150  # many seeds, so that the estimated correlation is near the identity too
    weights = np.kron(np.eye(m), [[1.0, -1.0]])
    level = simultaneous_level(rng.normal(size=(n, m)), weights, draws=20_000)
    # 20,000 draws: standard error sqrt(.05 * .95 / 20000) / 4 = .0004; the level is the smaller of two
    assert level == pytest.approx(1 - 0.95 ** (1 / m), abs=0.0016)


def test_dunnetts_own_critical_value():
    # with many seeds the separate standard deviations are known, and scipy's normal orthant probabilities are an oracle
    rng = np.random.default_rng(3)
    m, n = 3, 200
    values = rng.normal(size=(n, m + 1))
    weights = dunnett_weights(m + 1)
    level = simultaneous_level(values @ weights.T, weights, draws=20_000)
    corr = 0.5 * np.eye(m) + 0.5

    def outside(c):
        box = stats.multivariate_normal(cov=corr)
        return 1 - box.cdf(np.full(m, c), lower_limit=np.full(m, -c))

    grid = np.linspace(2.0, 2.8, 161)
    critical = grid[np.argmin([abs(outside(c) - 0.05) for c in grid])]
    assert level == pytest.approx(2 * stats.norm.sf(critical), abs=0.002)


def test_between_no_adjustment_and_bonferroni():
    rng = np.random.default_rng(4)
    for n, weights in itertools.product((3, 8, 30), (dunnett_weights(), with_two_by_two())):
        d = rng.normal(size=(n, ARMS)) @ weights.T
        level = simultaneous_level(d, weights, draws=4000)
        assert 0.05 / len(weights) <= level <= 0.05
        # copies of one contrast need no allowance by the estimate, and get one only from the design
        copies = np.repeat(d[:, :1], 4, axis=1)
        assert simultaneous_level(copies, np.repeat(weights[:1], 4, axis=0), draws=20_000) > 0.046


@pytest.mark.parametrize("law", ["equal", "unequal"])
def test_coverage_by_simulation(law):
    # 300 studies of 8 seeds with 8 contrasts; true differences are not 0. Errors: 5 % within 3.5 standard errors (.044)
    rng = np.random.default_rng(5)
    weights = with_two_by_two()
    reps, n = 300, 8
    sds = np.ones(ARMS) if law == "equal" else np.array([1, 3, 0.3, 1, 2, 0.5])
    means = np.linspace(-1, 1, ARMS)
    missed = missed_unadjusted = 0
    for _ in range(reps):
        values = means + rng.normal(size=(n, 1)) + rng.normal(size=(n, ARMS)) * sds
        d = values @ weights.T
        truth = weights @ means
        found = estimates(d, simultaneous_level(d, weights, draws=600))
        missed += not all(e.interval[0] <= t <= e.interval[1] for e, t in zip(found, truth, strict=True))
        missed_unadjusted += (np.abs(d.mean(0) - truth) > 2.365 * d.std(0, ddof=1) / np.sqrt(n)).any()
    assert missed / reps < 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / reps)
    assert missed / reps > 0.01  # nor are they needlessly wide
    assert missed_unadjusted / reps > 0.10  # the allowance is needed: this test can fail


def test_missing_seeds_keep_each_contrasts_own_degrees_of_freedom():
    d = np.array([[1.0, 2.0], [2.0, np.nan], [0.5, 1.0], [1.5, 2.5], [np.nan, 3.0]])
    level = simultaneous_level(d, np.array([[1.0, -1, 0], [1, 0, -1]]), draws=4000)
    first, second = estimates(d, level)
    for found, kept in ((first, [1.0, 2.0, 0.5, 1.5]), (second, [2.0, 1.0, 2.5, 3.0])):
        half = stats.t.isf(level / 2, 3) * np.std(kept, ddof=1) / 2
        np.testing.assert_allclose(found.interval, (np.mean(kept) - half, np.mean(kept) + half))


def test_no_variance_and_too_few_seeds():
    d = np.array([[0.0, 0.1, np.nan, 1.0], [0.0, 0.1, np.nan, 2.0], [0.0, 0.1, 0.3, 4.0]])
    weights = np.array([[1.0, -1, 0, 0, 0], [1, 0, -1, 0, 0], [1, 0, 0, -1, 0], [1, 0, 0, 0, -1]])
    level = simultaneous_level(d, weights)
    assert level == 0.05  # only one contrast varies
    same, constant, one, usual = estimates(d, level)
    assert same.interval == (0.0, 0.0)
    assert constant.interval == pytest.approx((0.1, 0.1), abs=1e-15)
    assert (constant.sd, one.n, one.sd, one.interval, one.interval90) == (0.0, 1, None, None, None)
    assert usual.interval[0] < usual.mean < usual.interval[1]


def test_seeded_and_global_state_unmoved():
    d = np.random.default_rng(6).normal(size=(8, 5))
    before = np.random.get_state()[1].copy()  # noqa: NPY002  the legacy state is what must not move
    first = simultaneous_level(d, dunnett_weights(), draws=4000)
    assert first == simultaneous_level(d, dunnett_weights(), draws=4000)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_shapes_are_checked():
    with pytest.raises(StudyError, match="shape"):
        simultaneous_level(np.zeros((3, 2)), np.zeros((3, 4)))


def test_spread_of_equal_values_with_rounding():
    assert spread(np.array([0.1, 0.3 - 0.2, 0.1])) == 0.0
    assert t_interval(np.array([1.0]), 0.05) is None


def test_the_more_cautious_of_the_two_correlations_counts():
    rng = np.random.default_rng(7)
    column = rng.normal(size=(8, 1))
    copies = np.repeat(column, 5, axis=1) * [1, 2, 3, 4, 5]
    # the data say one contrast, the design says five
    assert simultaneous_level(copies, dunnett_weights(), draws=10_000) < 0.025
    # the design says one contrast, the data say five
    same = np.repeat([[1.0, -1.0]], 5, axis=0)
    assert simultaneous_level(rng.normal(size=(8, 5)), same, draws=10_000) < 0.025


def test_never_wider_than_bonferroni_whatever_the_draws():
    rng = np.random.default_rng(8)
    weights = np.kron(np.eye(4), [[1.0, -1.0]])
    levels = [simultaneous_level(rng.normal(size=(40, 4)), weights, draws=100, seed=s) for s in range(40)]
    assert min(levels) == 0.05 / 4
