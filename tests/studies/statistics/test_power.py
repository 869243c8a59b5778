"""Minimum detectable effect: against statsmodels and by simulation."""

import numpy as np
import pytest
from scipy import stats

from kappaone.errors import StudyError
from kappaone.studies.statistics.power import minimum_detectable, t_test_power


@pytest.mark.parametrize(("n", "level"), [(3, 0.05), (6, 0.05), (8, 0.008), (30, 0.01)])
def test_against_statsmodels(n, level):
    from statsmodels.stats.power import TTestPower

    found = minimum_detectable(n, 0.3, level)
    oracle = TTestPower().power(found.value / 0.3, n, level, alternative="two-sided")
    assert oracle == pytest.approx(0.8, abs=1e-6)


def test_two_seeds_where_the_noncentral_t_of_libraries_is_nan():
    # one degree of freedom, where a plain simulation is the oracle
    rng = np.random.default_rng(3)
    effect = minimum_detectable(2, 1.0, 0.05).value
    d = rng.normal(effect, 1, size=(40_000, 2))
    t = d.mean(1) / d.std(1, ddof=1) * np.sqrt(2)
    assert (np.abs(t) > stats.t.isf(0.025, 1)).mean() == pytest.approx(0.8, abs=4 * np.sqrt(0.16 / 40_000))
    assert t_test_power(500.0, 2, 0.005) == pytest.approx(1.0, abs=1e-3)


def test_power_by_simulation():
    rng = np.random.default_rng(1)
    n, level, sd = 8, 0.01, 2.0
    effect = minimum_detectable(n, sd, level).value
    reps = 20_000
    d = rng.normal(effect, sd, size=(reps, n))
    t = d.mean(1) / d.std(1, ddof=1) * np.sqrt(n)
    share = (np.abs(t) > stats.t.isf(level / 2, n - 1)).mean()
    assert share == pytest.approx(0.8, abs=4 * np.sqrt(0.8 * 0.2 / reps))


def test_range_covers_the_truth_by_simulation():
    rng = np.random.default_rng(2)
    n, reps = 8, 400
    truth = minimum_detectable(n, 1.0, 0.05).value
    sds = rng.normal(size=(reps, n)).std(1, ddof=1)
    inside = [(f := minimum_detectable(n, s, 0.05)).low <= truth <= f.high for s in sds]
    assert np.mean(inside) == pytest.approx(0.95, abs=3.5 * np.sqrt(0.05 * 0.95 / reps))


def test_without_effect_power_is_the_level():
    assert t_test_power(0.0, 8, 0.03) == pytest.approx(0.03, rel=1e-9)


def test_linear_in_the_noise_and_refusals():
    assert minimum_detectable(8, 2.0, 0.05).value == pytest.approx(2 * minimum_detectable(8, 1.0, 0.05).value)
    assert minimum_detectable(8, 0.0, 0.05).high == 0.0
    found = minimum_detectable(8, 1.0, 0.05)
    assert found.high / found.value == pytest.approx(np.sqrt(7 / stats.chi2.ppf(0.025, 7)))
    assert found.low / found.value == pytest.approx(np.sqrt(7 / stats.chi2.ppf(0.975, 7)))
    for n, sd in ((1, 1.0), (8, -1.0), (8, float("nan"))):
        with pytest.raises(StudyError, match="expected at least two seeds"):
            minimum_detectable(n, sd, 0.05)
