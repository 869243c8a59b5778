"""The analysis of made-up runs whose answer is known, and its JSON."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from kappaone.errors import StudyError
from kappaone.studies import Contrast, Plan, RunRecord, RunResult, TargetRule, analyse
from kappaone.studies.plan import DEFAULT_CELLS

cL, cS, dL, dS = DEFAULT_CELLS.values()
NOISE = "default(redraw)"
ARMS = (dS, NOISE, cL, cS, dL, "same")
SEEDS = tuple(range(8))
STEPS = tuple(range(10, 210, 10))


def plan(**changes):
    given = {
        "name": "known",
        "arms": ARMS,
        "seeds": SEEDS,
        "margin": 0.02,
        "metric": "acc",
        "tracked": ("logit_std", "kappa_J"),
        "runner": {"callable": "a:b"},
    }
    return Plan(**{**given, **changes})


def record(arm, seed, final, *, status="ok", versions=None):
    records = [
        {
            "step": s,
            "acc": final * (1 - math.exp(-s / 40)) / (1 - math.exp(-5)),
            "train_loss": 1 / s,
            "kappa_J": 2.0 * s,
        }
        for s in STEPS
    ]
    records[0]["logit_std"], records[-1]["logit_std"] = 0.1 + seed / 100, 1.0
    metrics = {**{k: v for k, v in records[-1].items() if k != "step"}, "acc": final}
    return RunRecord(arm, seed, RunResult(status, metrics, 1.0, versions=versions or {}), tuple(records))


def finals(spectrum=0.0, scale=0.0, both=0.0, noise=0.005):
    """Outcomes of the 2x2 with known effects; "same" is the reference itself."""
    rng = np.random.default_rng(11)
    found = {}
    for seed in SEEDS:
        base = 0.7 + 0.05 * rng.normal()
        for arm in ARMS[:-1]:
            c, large = arm in (cL, cS), arm in (cL, dL)
            found[arm, seed] = base + spectrum * c + scale * large + both * (c and large) + noise * rng.normal()
        found["same", seed] = found[dS, seed]
    return found


def runs(values, **options):
    return [record(a, s, v, **options) for (a, s), v in values.items()]


def by_name(analysis):
    return {c.name: c for c in analysis.contrasts}


def test_json_has_the_agreed_shape_and_is_strict():
    data = analyse(plan(), runs(finals(scale=0.1)), provenance={"machine": "m"}).to_dict()
    again = json.loads(json.dumps(data, allow_nan=False))
    assert again == data
    assert set(data) == {
        *("schema", "plan", "provenance", "arms", "curves", "noise_floor", "pairing", "mde", "exact_test", "level"),
        *("contrasts", "causal", "target", "tracked", "warnings"),
    }
    assert set(data["arms"][0]) == {"name", "n", "mean", "sd", "values", "diverged", "failed"}
    assert set(data["curves"]) == {"acc", "train_loss"}
    assert set(data["curves"]["acc"][dS]) == {"steps", "mean", "low", "high"}
    assert {"arm", "mean", "sd", "interval", "n", "words"} <= set(data["noise_floor"])
    assert {"correlation", "interval", "variance_ratio", "words"} <= set(data["pairing"])
    assert {"value", "low", "high", "power", "alpha", "words"} <= set(data["mde"])
    assert {"n", "smallest_p", "words"} <= set(data["exact_test"])
    assert {
        *(
            "name",
            "kind",
            "weights",
            "differences",
            "mean",
            "sd",
            "interval",
            "interval90",
            "p_maxt",
            "verdict",
            "words",
        )
    } <= set(data["contrasts"][0])
    assert set(data["contrasts"][0]["differences"]) == {str(s) for s in SEEDS}
    assert data["causal"]["effects"] == ["scale", "spectrum", "interaction"]
    assert set(data["causal"]["cells"]) == {"cL", "cS", "dL", "dS"}
    assert {"rule", "rows", "horizon"} <= set(data["target"])
    assert set(data["target"]["rows"][0]) == {"arm", "steps", "reached", "n", "difference", "interval", "words"}
    assert {"mean", "low", "high"} <= set(data["tracked"]["kappa_J"][dS]["first"])
    assert data["provenance"]["plan_hash"] == plan().digest
    assert data["warnings"] == []


def test_a_scale_effect_is_found_and_the_spectrum_is_not_credited():
    values = finals(scale=0.1)
    analysis = analyse(plan(), runs(values))
    found = by_name(analysis)
    truth = {
        "scale": [(values[cL, s] - values[cS, s] + values[dL, s] - values[dS, s]) / 2 for s in SEEDS],
        "spectrum": [(values[cL, s] - values[dL, s] + values[cS, s] - values[dS, s]) / 2 for s in SEEDS],
        "interaction": [values[cL, s] - values[cS, s] - values[dL, s] + values[dS, s] for s in SEEDS],
    }
    for name, d in truth.items():
        assert list(found[name].differences.values()) == pytest.approx(d)
        assert found[name].mean == pytest.approx(np.mean(d))
        half = stats.t.isf(analysis.level / 2, 7) * np.std(d, ddof=1) / np.sqrt(8)
        assert found[name].interval == pytest.approx((np.mean(d) - half, np.mean(d) + half))
        assert found[name].interval90 == pytest.approx(stats.ttest_1samp(d, 0).confidence_interval(0.9))
    assert found["scale"].verdict == "positive"
    assert found["spectrum"].verdict == "equivalent"
    assert found["interaction"].verdict == "equivalent"
    assert found[f"{cL} vs {dS}"].verdict == "better"  # yes, but not because of the spectrum:
    assert "the larger scale by itself improves acc" in analysis.causal.words
    assert "the conditioned spectrum by itself does not matter for acc" in analysis.causal.words
    assert "independently" in analysis.causal.words
    assert analysis.causal.cells["dL"] == pytest.approx(np.mean([values[dL, s] for s in SEEDS]))


def test_lower_is_better_turns_the_words():
    analysis = analyse(plan(higher_is_better=False), runs(finals(scale=0.1)))
    found = by_name(analysis)
    assert found["scale"].verdict == "negative"
    assert found[f"{cL} vs {dS}"].verdict == "worse"
    assert "by itself worsens acc" in analysis.causal.words


def test_interaction_is_told():
    analysis = analyse(plan(), runs(finals(both=0.2)))
    assert by_name(analysis)["interaction"].verdict == "positive"
    assert "do not act independently" in analysis.causal.words


def test_identical_arms_are_equivalent_and_do_not_disturb():
    analysis = analyse(plan(), runs(finals()))
    same = by_name(analysis)["same vs default"]
    assert (same.mean, same.sd, same.interval, same.p_maxt, same.verdict) == (0.0, 0.0, (0.0, 0.0), 1.0, "equivalent")
    assert "identical" in same.words
    row = next(r for r in analysis.target.rows if r.arm == "same")
    assert (row.difference, row.interval) == (0.0, (0.0, 0.0))
    # and if nothing at all differs
    flat = analyse(plan(), runs({(a, s): 0.5 for a in ARMS for s in SEEDS}))
    assert all(c.verdict == "equivalent" and c.p_maxt == 1.0 for c in flat.contrasts)
    assert flat.mde.value == 0.0
    assert "chance was not measured" in flat.noise_floor.words
    json.dumps(flat.to_dict(), allow_nan=False)


def test_noise_floor_and_detectable_effect():
    values = finals()
    analysis = analyse(plan(), runs(values))
    d = np.array([values[NOISE, s] - values[dS, s] for s in SEEDS])
    assert analysis.noise_floor.sd == pytest.approx(d.std(ddof=1))
    assert analysis.noise_floor.interval == by_name(analysis)[f"{NOISE} vs {dS}"].interval
    assert "simultaneous" in analysis.noise_floor.words
    assert analysis.mde.low < analysis.mde.value < analysis.mde.high
    assert analysis.mde.value / d.std(ddof=1) > 1.15  # more than one contrast alone would need
    own = (Contrast("only", "arm", {cL: 1, dS: -1}),)
    outside = analyse(plan(contrasts=own), runs(values))
    assert "unadjusted" in outside.noise_floor.words
    assert outside.noise_floor.interval == pytest.approx(stats.ttest_1samp(d, 0).confidence_interval(0.95))
    without = analyse(plan(noise_arm=None), runs(values))
    assert without.noise_floor is None
    assert any("no A/A arm" in w for w in without.warnings)
    sds = [c.sd for c in without.contrasts if c.kind == "arm"]
    assert "median" in without.mde.words
    assert without.mde.value / np.median(sds) == pytest.approx(analysis.mde.value / analysis.noise_floor.sd)


def test_an_a_a_arm_that_differs_is_a_warning():
    values = finals(noise=0.001)
    values |= {(NOISE, s): values[NOISE, s] + 0.1 for s in SEEDS}
    assert any("A/A arm" in w and "better" in w for w in analyse(plan(), runs(values)).warnings)


def test_fewer_than_six_seeds():
    values = {k: v for k, v in finals(scale=0.3).items() if k[1] < 5}
    analysis = analyse(plan(seeds=SEEDS[:5]), runs(values))
    assert by_name(analysis)["scale"].interval[0] > 0
    assert all(c.verdict in ("inconclusive", "equivalent") for c in analysis.contrasts)
    assert "no exact test can reject at .05" in analysis.exact_test.words
    assert "no exact test can reject at .05" in by_name(analysis)["scale"].words


def test_diverged_runs_are_left_out_with_a_warning_or_enter_as_planned():
    values = finals()
    some = [r if (r.arm, r.seed) != (cL, 3) else record(cL, 3, math.nan, status="diverged") for r in runs(values)]
    left_out = analyse(plan(), some)
    arm = next(a for a in left_out.arms if a.name == cL)
    assert (arm.diverged, arm.n, arm.values[3]) == ((3,), 7, None)
    assert 3 not in by_name(left_out)[f"{cL} vs {dS}"].differences
    assert by_name(left_out)["scale"].n == 7
    assert by_name(left_out)[f"{dL} vs {dS}"].n == 8
    assert any("optimistic" in w and f"{cL} 3" in w for w in left_out.warnings)
    assert left_out.target.rows[ARMS.index(cL)].steps[3] is None
    json.dumps(left_out.to_dict(), allow_nan=False)

    entered = analyse(plan(diverged_value=0.1), some)
    assert by_name(entered)[f"{cL} vs {dS}"].differences[3] == pytest.approx(0.1 - values[dS, 3])
    assert any("as planned" in w for w in entered.warnings)


def test_failed_and_missing_runs():
    some = [r for r in runs(finals()) if (r.arm, r.seed) != (dL, 0)]
    some = [r if (r.arm, r.seed) != (cS, 1) else RunRecord(cS, 1, RunResult("failed", {}, 1.0, "x")) for r in some]
    analysis = analyse(plan(), some)
    assert any("interim: 1 of 48" in w for w in analysis.warnings)
    assert any("failed runs" in w and f"{cS} 1" in w for w in analysis.warnings)
    assert by_name(analysis)["scale"].n == 6
    nothing = analyse(plan(), [])
    assert all(c.verdict == "inconclusive" and c.mean is None for c in nothing.contrasts)
    json.dumps(nothing.to_dict(), allow_nan=False)
    str(nothing)


def test_runs_of_another_study_are_refused():
    (run, *_) = runs(finals())
    for wrong in ([run, run], [record("other", 0, 1.0)], [record(dS, 99, 1.0)]):
        with pytest.raises(StudyError, match="not in the plan"):
            analyse(plan(), wrong)


def test_curves_and_tracked_ends():
    analysis = analyse(plan(), runs(finals()))
    curve = analysis.curves["acc"][cL]
    assert curve.steps == STEPS
    at = [next(r["acc"] for r in run.records if r["step"] == 50) for run in runs(finals()) if run.arm == cL]
    low, high = stats.t.interval(0.95, 7, np.mean(at), stats.sem(at))
    assert (curve.mean[4], curve.low[4], curve.high[4]) == pytest.approx((np.mean(at), low, high))
    first = analysis.tracked["logit_std"][cL]["first"]
    assert first.mean == pytest.approx(0.135)
    assert first.low < 0.135 < first.high
    assert analysis.tracked["kappa_J"][cL]["last"].mean == 400.0
    assert any("was recorded by no run" in w for w in analyse(plan(tracked=("x",)), runs(finals())).warnings)


def test_targets_that_cannot_be_counted_are_told_not_hidden():
    analysis = analyse(plan(target=TargetRule(window=50)), runs(finals()))
    assert analysis.target.rows == ()
    assert "evaluations" in analysis.target.words
    assert any("could not be counted" in w for w in analysis.warnings)
    assert analyse(plan(target=None), runs(finals())).to_dict()["target"]["rows"] == []


def test_target_rows_are_paired_and_censored():
    values = finals(scale=0.1, noise=0.0)
    analysis = analyse(plan(), runs(values))
    rows = {r.arm: r for r in analysis.target.rows}
    assert analysis.target.horizon == 200
    assert rows[dS].difference is None
    d = [(rows[dL].steps[s] or 200) - (rows[dS].steps[s] or 200) for s in SEEDS]
    assert rows[dL].difference == pytest.approx(np.mean(d))
    assert rows[dL].difference < 0
    assert "A/A" in rows[NOISE].words


def test_mixed_versions_are_a_warning():
    some = [record(a, s, v, versions={"torch": "2" if s else "1"}) for (a, s), v in finals().items()]
    assert any("different versions" in w for w in analyse(plan(), some).warnings)


def test_same_runs_same_result():
    found = [analyse(plan(), runs(finals(scale=0.05))).to_dict() for _ in range(2)]
    assert found[0] == found[1]
