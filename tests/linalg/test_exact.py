"""Exact norms: against rational arithmetic, and the same bits however the entries are cut."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaone.linalg.exact import LIMBS, exact_norm, norm_of, squares

numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e150, max_value=1e150)


def oracle(values: list[float]) -> float:
    """The root of the exact sum of the squares, each rounded to float64 once."""
    total = sum((Fraction(x * x) for x in values), Fraction(0))
    with mpmath.workdps(60):
        return float(mpmath.sqrt(mpmath.mpf(total.numerator) / mpmath.mpf(total.denominator)))


@given(st.lists(numbers, min_size=1, max_size=30))
def test_norm_is_that_of_rational_arithmetic(values):
    found = exact_norm(np.array(values))
    assert found == pytest.approx(oracle(values), rel=2**-52, abs=0)


@given(st.lists(numbers, min_size=2, max_size=30), st.randoms())
def test_any_cut_and_any_order_gives_the_same_bits(values, rng):
    whole = exact_norm(np.array(values))
    shuffled = list(values)
    rng.shuffle(shuffled)
    cut = rng.randrange(len(values) + 1)
    parts = squares(np.array(shuffled[:cut])) + squares(np.array(shuffled[cut:]))
    assert norm_of(parts) == whole


def test_extremes():
    tiny, large = np.array([5e-324, 1e-160]), np.full(4, 1e154)
    assert exact_norm(tiny) == pytest.approx(oracle(list(tiny)), rel=1e-15)
    assert exact_norm(large) == 2e154
    assert exact_norm(np.zeros((3, 0))) == 0.0
    assert math.isnan(exact_norm(np.array([1.0, np.nan]))) and math.isnan(exact_norm(np.array([1e200])))
    assert squares(np.ones((2, 3))).shape == (LIMBS,)


def test_large_blocks_agree_with_numpy():
    x = np.random.default_rng(0).standard_normal((300, 700)).astype(np.float32).astype(np.float64)
    assert exact_norm(x) == pytest.approx(np.linalg.norm(x), rel=1e-14)
    assert exact_norm(x[:, :123]) ** 2 + exact_norm(x[:, 123:]) ** 2 == pytest.approx(exact_norm(x) ** 2, rel=1e-14)
