"""A comparison, whole: plan, probe, runs in processes of their own, analysis."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kappaone.errors import KappaoneWarning, SpecError, StudyError
from kappaone.recipes import compare, comparison_folder, get_recipe, pairing_problems, plan_comparison

from .runs import lines_of

ARMS = ["default", "none", "conditioned"]
SMOKE: dict[str, Any] = {"preset": "smoke", "dataset": "mnist-5k"}


def test_a_comparison_from_the_plan_to_the_analysis(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = compare("images", ARMS, [3, 4], out=tmp_path / "study", **SMOKE).to_dict()
    said = capsys.readouterr().err
    assert "3 arms x 2 seeds = 6 runs of 6 steps on mnist-5k; seeds 3 to 4" in said
    assert "for 6 runs" in said
    assert "6 of 6 runs" in said
    arms = {arm["name"]: arm for arm in result["arms"]}
    assert list(arms) == ARMS
    for name, arm in arms.items():
        for seed in (3, 4):  # the numbers are those of a run made here
            here = [line["test_accuracy"] for line in lines_of(name, seed) if "test_accuracy" in line]
            assert arm["values"][str(seed)] == here[-1]
    contrast = next(c for c in result["contrasts"] if c["weights"] == {"none": 1.0, "default": -1.0})
    assert contrast["differences"] == {"3": 0.0, "4": 0.0}
    assert set(result["tracked"]) == {"kappa_J", "kappa_P", "logit_std", "relative_entropy"}
    assert result["target"]["rule"]["grid"] == [0, 1, 2, 3, 4, 5, 6]
    assert pairing_problems(tmp_path / "study") == []
    # the same call again finds everything done and runs nothing
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "runs").rglob("*")}
    again = compare("images", ARMS, [3, 4], out=tmp_path / "study", **SMOKE)
    assert again.to_dict() == result
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "study" / "runs").rglob("*")} == stamps
    assert "for " not in capsys.readouterr().err
    with pytest.raises(StudyError, match="another plan"):
        compare("images", ARMS, [3, 5], out=tmp_path / "study", progress=False, **SMOKE)


def test_the_plan_settles_everything_beforehand() -> None:
    plan = plan_comparison("images", seeds=8, **SMOKE)
    assert plan.seeds == tuple(range(8))
    assert plan.arms[0] == plan.reference == "default"
    assert plan.noise_arm == "default(redraw)"
    assert plan.runner["callable"] == "kappaone.recipes.images:run"
    options = plan.runner["options"]
    assert options == {**options, **get_recipe("images").presets["smoke"], "dataset": "mnist-5k"}
    assert plan.target is not None
    assert plan.target.grid == (0, 1, 2, 3, 4, 5, 6)
    assert (plan.target.consecutive, plan.target.tail) == (3, 0.6)
    assert {c.name for c in plan.contrasts if c.kind == "causal"} == {"scale", "spectrum", "interaction"}
    assert plan_comparison("images", seeds=8, preset="smoke").runner["options"]["dataset"] != "auto"
    other = plan_comparison("images", ["conditioned", "mimetic"], 2, reference="mimetic", margin=0.1, **SMOKE)
    assert (other.reference, other.noise_arm, other.margin) == ("mimetic", None, 0.1)


def test_the_same_plan_has_the_same_folder(tmp_path: Path) -> None:
    one, two = (plan_comparison("images", seeds=n, **SMOKE) for n in (2, 3))
    assert comparison_folder(one) == comparison_folder(plan_comparison("images", seeds=[0, 1], **SMOKE))
    assert comparison_folder(one) != comparison_folder(two)
    assert comparison_folder(one, tmp_path) == tmp_path


@pytest.mark.parametrize(
    ("arms", "seeds", "options", "message"),
    [
        (["default", "conditionned"], 2, {}, "no scheme is called 'conditionned'"),
        (["default", "conditioned(vlaue=fused)"], 2, {}, "vlaue"),
        (["default", "none"], 1, {}, "seeds is 1; expected at least 2"),
        (["default", "none"], True, {}, "seeds is True"),
        (["default", "none"], "8", {}, "seeds is '8'"),
        (["default", "none"], 2, {"stpes": 3}, "no option 'stpes'"),
    ],
)
def test_mistakes_are_found_before_anything_runs(
    arms: list[str], seeds: Any, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SpecError, match=message):
        compare("images", arms, seeds, out=tmp_path / "study", **SMOKE, **options)
    assert not (tmp_path / "study").exists()


def test_a_pairing_that_does_not_hold_is_told(tmp_path: Path) -> None:
    def put(arm: str, seed: int, data: str, tensors: str) -> None:
        folder = tmp_path / "runs" / f"{arm}-{seed}"
        folder.mkdir(parents=True)
        record = {
            "arm": arm,
            "seed": seed,
            "data": {"sha256": {"f": data}},
            "initialisation": {"non_attention_sha256": tensors},
        }
        (folder / "record.json").write_text(json.dumps(record))

    put("a", 0, "x", "1")
    put("b", 0, "x", "1")
    put("a", 1, "x", "2")
    assert pairing_problems(tmp_path) == []
    put("b", 1, "x", "3")
    put("c", 1, "x", "2")
    put("c", 0, "y", "1")
    problems = pairing_problems(tmp_path)
    assert len(problems) == 2
    assert problems[0].startswith("seed 0: the arms differ in their data (a, b | c)")
    assert problems[1].startswith("seed 1: the arms differ in their tensors outside attention (a, c | b)")


def test_a_run_that_fails_is_told_and_the_others_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n"
        "from kappaone.recipes import images\n"
        f"RECIPE = replace(images.RECIPE, name='mine', run={str(file) + ':run'!r})\n"
        "def run(spec, emit):\n"
        "    if spec['arm'] == 'conditioned' and spec['seed'] == 1:\n"
        "        raise RuntimeError('out of luck')\n"
        "    return images.run(spec, emit)\n"
    )
    with pytest.warns(KappaoneWarning, match="'conditioned' with seed 1 failed: RuntimeError: out of luck"):
        result = compare(
            f"{file}:RECIPE", ["default", "conditioned"], 2, out=tmp_path / "study", progress=False, **SMOKE
        )
    arms = {arm["name"]: arm for arm in result.to_dict()["arms"]}
    assert arms["conditioned"]["failed"] == [1]
    assert arms["default"]["n"] == 2
