import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaone.reports.numbers import finite, number, pair, show, show_apart, show_interval, show_with_interval


def read(text: str) -> float:
    return float(text.replace("−", "-").replace("∞", "inf"))


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_what_is_shown_is_the_number_to_four_digits(x):
    assert read(show(x)) == pytest.approx(x, rel=5.1e-4, abs=1e-320)


@given(st.floats(-1e5, 1e5, allow_subnormal=False), st.floats(0, 1e4, allow_subnormal=False), st.floats(0, 1))
def test_ends_are_shown_to_a_hundredth_of_the_width(low, width, where):
    high = low + width
    value = low + where * width
    middle, ends = show_apart(value, [low, high], signed=True)
    shown = [read(part) for part in ends.strip("[]").split(", ")]
    tolerance = max(
        0.0051 * (high - low),
        6e-4 * max(abs(low), abs(high)) if high - low < 1e-7 or max(abs(low), abs(high)) < 1e-3 else 0,
    )
    assert shown[0] == pytest.approx(low, abs=tolerance + 1e-320)
    assert shown[1] == pytest.approx(high, abs=tolerance + 1e-320)
    assert read(middle) == pytest.approx(value, abs=max(tolerance, 6e-4 * abs(value) if width < 1e-7 else 0) + 1e-320)


def test_numbers_that_json_cannot_hold():
    assert math.isnan(number("NaN"))
    assert number("-Infinity") == -math.inf
    assert number(True) is None
    assert finite("Infinity") is None
    assert show("NaN") == "NaN"
    assert show("Infinity", signed=True) == "+∞"
    assert show(None) == "–"


def test_an_interval_needs_two_finite_ends():
    assert pair(["NaN", 1]) is None
    assert pair("12") is None
    assert pair([1, 2, 3]) is None
    assert show_interval(None) == "–"
    assert show_with_interval(0.25, None) == "0.25 (no interval)"
    assert show_with_interval(None, None) == "–"


def test_a_rounded_zero_claims_no_direction():
    assert show_with_interval(-0.000004, [-0.011, 0.012], signed=True) == "0.0000 [−0.0110, +0.0120]"


def test_an_interval_of_no_width():
    assert show_with_interval(0.0, [0.0, 0.0], signed=True) == "0 [0, 0]"
