"""The sign-flip check against brute force, its reach, and its error rate by simulation."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from kappaone.studies.statistics.signflip import _t_squared, sign_flip_max_t


def brute_force(d):
    """Every sign vector, scipy's own t, one at a time; ties within 1e-9."""

    def ts(x):
        found = []
        for column in x.T:
            kept = column[~np.isnan(column)]
            if len(kept) < 2 or np.all(kept == 0):
                found.append(0.0)
            elif np.ptp(kept) < 1e-13 * abs(kept[0]):
                found.append(np.inf)
            else:
                found.append(abs(stats.ttest_1samp(kept, 0.0).statistic))
        return np.array(found)

    observed = ts(d)
    count = np.zeros(d.shape[1])
    vectors = list(itertools.product([1, -1], repeat=len(d)))
    for signs in vectors:
        largest = ts(d * np.array(signs)[:, None]).max()
        count += largest >= np.where(np.isinf(observed), observed, observed * (1 - 1e-9))
    return count / len(vectors)


@pytest.mark.parametrize(("n", "m", "seed"), [(2, 1, 0), (5, 3, 1), (6, 4, 2), (8, 2, 3)])
def test_against_brute_force(n, m, seed):
    rng = np.random.default_rng(seed)
    d = rng.normal(0.5, 1, size=(n, m)) + rng.normal(size=(n, 1))
    result = sign_flip_max_t(d)
    np.testing.assert_allclose(result.p, brute_force(d), atol=1e-12)
    assert (result.exact, result.vectors, result.n) == (True, 2**n, n)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 5).flatmap(
        lambda n: st.lists(st.lists(st.integers(-2, 2), min_size=n, max_size=n), min_size=1, max_size=3)
    )
)
def test_ties_against_brute_force(columns):
    # small whole numbers: many tied sign vectors, zero columns and constant columns
    d = np.array(columns, float).T
    np.testing.assert_allclose(sign_flip_max_t(d).p, brute_force(d), atol=1e-12)


def test_missing_seeds_against_brute_force():
    d = np.random.default_rng(7).normal(1, 1, size=(6, 3))
    d[0, 1] = d[3, 2] = np.nan
    np.testing.assert_allclose(sign_flip_max_t(d).p, brute_force(d), atol=1e-12)
    gone = np.concatenate([d, np.full((2, 3), np.nan)])
    assert sign_flip_max_t(gone).n == 6
    np.testing.assert_allclose(sign_flip_max_t(gone).p, sign_flip_max_t(d).p)


def test_smallest_p_is_reached_and_is_two_over_two_to_the_n():
    for n in (5, 6, 8):
        result = sign_flip_max_t(np.linspace(1, 1.5, n)[:, None])
        assert result.smallest_p == 2 / 2**n
        assert result.p[0] == 2 / 2**n
    assert 2 / 2**5 > 0.05 > 2 / 2**6


def test_identical_arms_and_constant_differences():
    d = np.stack([np.zeros(6), np.full(6, 0.1), np.array([1.0, -1, 2, -2, 0.5, 0])], axis=1)
    result = sign_flip_max_t(d)
    assert result.p[0] == 1.0
    assert result.p[1] == 2 / 2**6
    assert np.isnan(sign_flip_max_t(np.full((4, 1), np.nan)).p[0])


def test_monte_carlo_beyond_the_limit_is_seeded_labelled_and_close():
    d = np.random.default_rng(8).normal(0.6, 1, size=(10, 3))
    exact = sign_flip_max_t(d)
    drawn = sign_flip_max_t(d, exact_up_to=9, draws=20_000)
    assert not drawn.exact
    assert drawn.vectors == 20_001
    assert drawn.smallest_p == 1 / 20_001
    error = np.sqrt(exact.p * (1 - exact.p) / 20_000) + 1e-4
    assert (np.abs(drawn.p - exact.p) < 4 * error).all()
    assert (drawn.p == sign_flip_max_t(d, exact_up_to=9, draws=20_000).p).all()
    assert not sign_flip_max_t(np.ones((17, 1))).exact


def test_family_wise_error_with_heavy_tails():
    # 500 studies where nothing differs, six correlated contrasts, Student's t with 2 degrees of freedom
    rng = np.random.default_rng(9)
    reps, wrong, wrong_alone = 500, 0, 0
    for _ in range(reps):
        d = rng.standard_t(2, size=(8, 7))
        d = d[:, 1:] - d[:, :1]
        wrong += sign_flip_max_t(d).p.min() <= 0.05
        wrong_alone += min(sign_flip_max_t(d[:, [j]]).p[0] for j in range(6)) <= 0.05
    assert wrong / reps < 0.05 + 3.5 * np.sqrt(0.05 * 0.95 / reps)
    assert wrong_alone / reps > 0.10  # without the maximum it would fail: this test can fail


def test_the_statistic_is_students_t():
    # contrasts with different numbers of seeds are compared by it, so its own value matters
    d = np.random.default_rng(10).normal(0.3, 1, size=(7, 1))
    found = _t_squared(d.sum(axis=0)[None], (d**2).sum(axis=0), np.array([7]))
    assert found[0, 0] == pytest.approx(stats.ttest_1samp(d[:, 0], 0).statistic ** 2, rel=1e-12)
