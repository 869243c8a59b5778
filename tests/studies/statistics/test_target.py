"""Steps to target: a slow reading of the rule as the oracle, censoring, and what noise alone makes of it."""

import numpy as np
import pytest

from kappaone.errors import StudyError
from kappaone.studies.plan import TargetRule
from kappaone.studies.statistics.target import steps_to_target


def rule(**changes):
    return TargetRule(**{"metric": "score", "higher_is_better": True, **changes})


def slow(curve, reference, window, consecutive, tail, higher):
    """The rule read out: step of the first of `consecutive` smoothed values at or beyond the target."""

    def smooth(c):
        steps = sorted(c)
        return [
            (steps[i], sum(c[s] for s in steps[i - window + 1 : i + 1]) / window) for i in range(window - 1, len(steps))
        ]

    end = [v for _, v in smooth(reference)]
    last = max(1, int(tail * len(end) + 1e-9))
    target = sum(end[-last:]) / last
    own = smooth(curve)
    for i in range(len(own) - consecutive + 1):
        if all((v >= target) if higher else (v <= target) for _, v in own[i : i + consecutive]):
            return own[i][0]
    return None


def curves(rng, arms, seeds, count=40, sign=1):
    steps = 10 * np.arange(1, count + 1)
    return {
        (a, s): dict(
            zip(steps.tolist(), (sign * (1 - np.exp(-steps / 100)) + 0.03 * rng.normal(size=count)), strict=True)
        )
        for a in arms
        for s in seeds
    }


@pytest.mark.parametrize("higher", [True, False])
@pytest.mark.parametrize(("window", "consecutive", "tail"), [(1, 1, 0.05), (3, 3, 0.05), (5, 2, 0.3)])
def test_against_the_slow_reading(higher, window, consecutive, tail):
    found = curves(np.random.default_rng(1), "rab", range(5), sign=1 if higher else -1)
    used = rule(window=window, consecutive=consecutive, tail=tail, higher_is_better=higher)
    rows, horizon, notes = steps_to_target(found, rule=used, arms="rab", seeds=range(5), reference="r")
    assert horizon == 400
    assert notes == []
    for row in rows:
        for seed in range(5):
            expected = slow(found[row.arm, seed], found["r", seed], window, consecutive, tail, higher)
            assert row.steps[seed] == expected
    assert any(row.steps[s] is not None for row in rows for s in range(5))


def test_the_target_is_counted_at_exactly_the_target():
    flat = dict.fromkeys(range(1, 9), 1.0)
    (row,), _, _ = steps_to_target({("r", 0): flat}, rule=rule(window=1), arms="r", seeds=[0], reference="r")
    assert row.steps == {0: 1}


def test_two_evaluations_at_the_end_are_not_three():
    reference = dict.fromkeys(range(1, 11), 1.0)
    late = {**dict.fromkeys(range(1, 9), 0.0), 9: 1.0, 10: 1.0}
    args = {"arms": "rx", "seeds": [0], "reference": "r"}
    _, x = steps_to_target({("r", 0): reference, ("x", 0): late}, rule=rule(window=1), **args)[0]
    assert x.steps == {0: None}
    _, x = steps_to_target({("r", 0): reference, ("x", 0): late}, rule=rule(window=1, consecutive=2), **args)[0]
    assert x.steps == {0: 9}


def test_grids():
    reference = {s: s / 100 for s in range(5, 105, 5)}
    for grid, horizon in ((10, 100), ((20, 40, 60, 80), 80), (None, 100)):
        (row,), found, _ = steps_to_target(
            {("r", 0): reference}, rule=rule(grid=grid, window=1, consecutive=1), arms="r", seeds=[0], reference="r"
        )
        assert found == horizon
        assert row.steps == {0: horizon}
    with pytest.raises(StudyError, match=r"at steps \[7\]"):
        steps_to_target({("r", 0): reference}, rule=rule(grid=(5, 7)), arms="r", seeds=[0], reference="r")


def test_different_evaluations_and_too_few_are_refused():
    reference = dict.fromkeys(range(1, 9), 1.0)
    args = {"rule": rule(), "arms": "rx", "seeds": [0], "reference": "r"}
    with pytest.raises(StudyError, match="not the 8 of r"):
        steps_to_target({("r", 0): reference, ("x", 0): dict.fromkeys(range(1, 8), 1.0)}, **args)
    with pytest.raises(StudyError, match="needs at least 5"):
        steps_to_target({("r", 0): dict.fromkeys(range(1, 5), 1.0)}, **args)


def test_diverged_and_absent_runs():
    flat = dict.fromkeys(range(1, 9), 1.0)
    found = {("r", 0): flat, ("x", 0): flat, ("r", 1): flat, ("x", 2): flat, ("r", 3): flat, ("x", 3): flat}
    (r, x), _, notes = steps_to_target(
        found, rule=rule(), arms="rx", seeds=range(4), reference="r", diverged=frozenset([("x", 0), ("r", 3)])
    )
    assert r.steps == {0: 3, 1: 3}
    assert x.steps == {0: None}  # seed 1 has no run, seeds 2 and 3 no target
    assert [n.split(" has no target")[0] for n in notes] == ["steps to target: seed 2", "steps to target: seed 3"]


def test_nan_in_a_curve_is_local():
    curve = {**dict.fromkeys(range(1, 11), 1.0), 2: float("nan")}
    (r, x), _, _ = steps_to_target(
        {("r", 0): dict.fromkeys(range(1, 11), 1.0), ("x", 0): curve}, rule=rule(), arms="rx", seeds=[0], reference="r"
    )
    assert (r.steps[0], x.steps[0]) == (3, 5)


def test_identical_arms_gain_nothing_where_the_naive_rule_sees_speed():
    # 200 pairs of identical plateauing arms: the naive first crossing of the other's last value is early; ours is paired
    # with the reference's own crossing and shows no gain
    rng = np.random.default_rng(2)
    seeds = range(200)
    found = curves(rng, "ra", seeds)
    (r, a), horizon, _ = steps_to_target(found, rule=rule(), arms="ra", seeds=seeds, reference="r")
    capped = {row.arm: np.array([row.steps[s] or horizon for s in seeds]) for row in (r, a)}
    d = capped["a"] - capped["r"]
    assert abs(d.mean()) < 3.5 * d.std(ddof=1) / np.sqrt(len(d))
    naive = [next((t for t, v in found["a", s].items() if v >= found["r", s][400]), 400) for s in seeds]
    assert np.mean(np.array(naive) <= 0.8 * horizon) > 0.5
