from kappaone.reports.study_words import contrasted_arm, listing, outcome, question

from .samples import study


def test_the_question_names_what_is_compared():
    asked = question(study()["plan"], 8)
    assert asked.startswith("Do conditioned, conditioned(scale=matched),")
    assert asked.endswith("or mimetic change test_accuracy against default, over 8 paired seeds?")
    assert "redraw" not in asked


def test_a_study_of_noise_alone():
    plan = {"arms": ["default", "again"], "reference": "default", "noise_arm": "again", "metric": "loss"}
    assert question(plan, 1) == "How far does loss of default vary, over 1 paired seed?"


def test_the_outcome_changes_with_the_verdicts_and_with_nothing_else():
    result = study()
    said = outcome(result["plan"], result["contrasts"])
    for contrast in result["contrasts"]:
        contrast["mean"], contrast["interval"], contrast["words"] = 99.0, [98.0, 100.0], "better"
    assert outcome(result["plan"], result["contrasts"]) == said
    for contrast in result["contrasts"]:
        contrast["verdict"] = "inconclusive"
    now = outcome(result["plan"], result["contrasts"])
    assert "better" not in now
    assert "scale inconclusive, spectrum inconclusive, interaction inconclusive" in now
    assert "default(redraw) (the A/A arm)" in now


def test_an_unknown_verdict_is_said_as_it_is():
    contrast = {"name": "c", "kind": "arm", "verdict": "no data", "weights": {"a": 1, "r": -1}}
    assert outcome({"metric": "m", "reference": "r"}, [contrast]) == "On m against r: no data: a."


def test_contrasts_of_another_form_have_no_arm():
    assert contrasted_arm({"weights": {"a": 0.5, "b": 0.5, "r": -1}}, "r") is None
    assert contrasted_arm({"weights": {"a": 1, "b": -1}}, "r") is None
    assert contrasted_arm({}, "r") is None
    assert listing([]) == "nothing"
