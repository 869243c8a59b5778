"""The fixed rule, case by case, and that the words say what limits it."""

import pytest

from kappaone.studies import Contrast, Plan
from kappaone.studies.statistics import Estimate
from kappaone.studies.verdict import decide, describe


def estimate(low, high, low90=None, high90=None, n=8, sd=0.1):
    low90 = low + 0.1 * (high - low) if low90 is None else low90
    high90 = high - 0.1 * (high - low) if high90 is None else high90
    return Estimate(n, (low + high) / 2, sd, (low, high), (low90, high90))


@pytest.mark.parametrize(
    ("interval", "p", "higher", "kind", "verdict"),
    [
        ((0.2, 0.6), 0.01, True, "arm", "better"),
        ((0.2, 0.6), 0.05, True, "arm", "better"),
        ((0.2, 0.6), 0.0501, True, "arm", "inconclusive"),
        ((0.2, 0.6), 0.01, False, "arm", "worse"),
        ((-0.6, -0.2), 0.01, True, "arm", "worse"),
        ((-0.6, -0.2), 0.01, False, "arm", "better"),
        ((-0.01, 0.6), 0.01, True, "arm", "inconclusive"),
        ((0.0, 0.6), 0.01, True, "arm", "inconclusive"),
        ((-0.05, 0.05), 0.9, True, "arm", "equivalent"),
        ((-0.05, 0.05), 0.9, False, "causal", "equivalent"),
        ((-0.6, 0.6), 0.9, True, "arm", "inconclusive"),
        ((0.2, 0.6), 0.01, True, "causal", "positive"),
        ((0.2, 0.6), 0.01, False, "causal", "negative"),
        ((-0.6, -0.2), 0.01, False, "causal", "positive"),
        ((0.01, 0.05), 0.01, True, "arm", "better"),  # better comes first, though inside the margin
        ((0.01, 0.05), 0.2, True, "arm", "equivalent"),
    ],
)
def test_rule(interval, p, higher, kind, verdict):
    assert decide(estimate(*interval), p, margin=0.1, higher_is_better=higher, kind=kind) == verdict


def test_equivalence_needs_the_90_percent_interval_strictly_inside():
    assert decide(estimate(-1, 1, -0.0999, 0.0999), 1.0, margin=0.1, higher_is_better=True) == "equivalent"
    assert decide(estimate(-1, 1, -0.1, 0.05), 1.0, margin=0.1, higher_is_better=True) == "inconclusive"
    assert decide(estimate(-1, 1, -0.05, 0.1), 1.0, margin=0.1, higher_is_better=True) == "inconclusive"


def test_too_little_data_is_inconclusive():
    for e in (Estimate(0, None, None, None, None), Estimate(1, 0.5, None, None, None)):
        assert decide(e, None, margin=0.1, higher_is_better=True) == "inconclusive"


def words(e, p, kind="arm", higher=True):
    plan = Plan(
        name="s", arms=("a", "b"), reference="b", seeds=(0, 1), margin=0.1, metric="acc", higher_is_better=higher
    )
    contrast = Contrast("a vs b", kind, {"a": 1, "b": -1})
    verdict = decide(e, p, margin=0.1, higher_is_better=higher, kind=kind)
    return describe(contrast, e, p, verdict, plan)


def test_words():
    assert "Better." in words(estimate(0.2, 0.6), 0.01)
    assert "smaller than the margin" in words(estimate(0.01, 0.05), 0.01)
    assert "[+0.2, +0.6]" in words(estimate(0.2, 0.6), 0.01)
    assert "exact p 0.01" in words(estimate(0.2, 0.6), 0.01)
    few = words(estimate(0.2, 0.6, n=5), 0.0625)
    assert "With 5 seeds no exact test can reject at .05" in few
    assert "no exact test" not in words(estimate(0.2, 0.6, n=6), 0.03125)
    assert "the exact check does not confirm it" in words(estimate(0.2, 0.6), 0.2)
    assert "raises acc, which is bad" in words(estimate(0.2, 0.6), 0.01, "causal", higher=False)
    assert "lowers acc, which is good" in words(estimate(-0.6, -0.2), 0.01, "causal", higher=False)
    assert "identical in every seed" in words(Estimate(8, 0.0, 0.0, (0, 0), (0, 0)), 1.0)
    assert "the same in every seed" in words(Estimate(8, 0.5, 0.0, (0.5, 0.5), (0.5, 0.5)), 0.0078)
    assert "nothing can be said" in words(Estimate(0, None, None, None, None), None)
    assert "no interval" in words(Estimate(1, 0.5, None, None, None), 1.0)
