"""The page of a study, read back from its HTML; what is compared with is the dict that it was made from."""

import copy

import pytest

from kappaone.errors import SpecError
from kappaone.reports.pages import render

from .samples import ARMS, study
from .tree import Tree


@pytest.fixture(scope="module")
def page():
    return Tree(render(study()))


def heads(tree):
    return [e.text for e in tree.all("h2")]


def test_the_sections_stand_in_their_order(page):
    assert heads(page) == [
        "Question and answer",
        "What this study could see",
        "Effects",
        "Curves",
        "Spectrum or scale?",
        "Steps to target",
        "Logits and Jacobian, at initialization and at the end",
        "Arms",
        "The plan, and how to run it again",
        "The data of this page",
    ]


def test_the_cards_show_power_before_effects(page):
    values = [e.text for e in page.all("p", class_="value")]
    assert len(values) == 4
    assert values[1] == "0.550 [0.210, 0.830]"
    assert values[2] == "0.00610 [0.00430, 0.01040]"
    assert values[3] == "0.007812"


def test_every_contrast_has_its_interval_verdict_and_words(page):
    rows = page.table("All contrasts")[1:]
    result = study()
    assert [r[0] for r in rows] == [c["name"] for c in result["contrasts"]]
    assert [r[5] for r in rows] == [c["verdict"] for c in result["contrasts"]]
    for row, contrast in zip(rows, result["contrasts"], strict=True):
        assert float(row[1].replace("−", "-")) == pytest.approx(contrast["mean"], abs=1e-4)
        low, high = (float(x) for x in row[2].replace("−", "-").strip("[]").split(", "))
        assert [low, high] == pytest.approx(contrast["interval"], abs=1e-4)
    said = " ".join(e.text for e in page.all("dd"))
    assert all(c["words"].replace("−", "-") in said for c in result["contrasts"])


def test_the_dots_are_the_paired_differences(page):
    plot = page.json("effects-figure-json")
    drawn = sorted(x for t in plot["data"] if (t.get("marker") or {}).get("size") == 7 for x in t["x"])
    wanted = sorted(d for c in study()["contrasts"] for d in c["differences"].values())
    assert drawn == pytest.approx(wanted, abs=0)
    margin = [s for s in plot["layout"]["shapes"] if s["type"] == "rect"]
    assert [(s["x0"], s["x1"]) for s in margin] == [(-0.005, 0.005)]


def test_an_arm_keeps_its_colour_over_all_plots(page):
    colours = {}
    for id in ("curve-0-json", "curve-1-json", "tracked-0-json", "tracked-1-json", "target-steps-json"):
        for trace in page.json(id)["data"]:
            for text in trace.get("text") or []:
                arm = text.split("<br>")[0].removesuffix(" (A/A)")
                colours.setdefault(arm, set()).add((trace.get("marker") or trace["line"])["color"])
    assert set(colours) == set(ARMS)
    assert all(len(found) == 1 for found in colours.values())
    assert len({next(iter(found)) for found in colours.values()}) == len(ARMS)


def test_kappa_is_drawn_on_a_log_axis_and_logits_are_not(page):
    assert page.json("tracked-1-json")["layout"]["xaxis"]["type"] == "log"
    assert page.json("tracked-0-json")["layout"]["xaxis"].get("type") != "log"


def test_the_target_stands_beside_the_noise_arm(page):
    rows = page.table("Steps to the target against")[1:]
    assert [r[0] for r in rows][:2] == ["default", "default(redraw) (A/A)"]
    assert rows[-1][1] == "7 of 8"
    assert page.table("Steps to the target by seed")[3][-1] == "not reached"


def test_the_interaction_plot_shows_the_four_cells(page):
    cells = study()["causal"]["cells"]
    lines = [t for t in page.json("causal-figure-json")["data"] if t["mode"] == "lines+markers"]
    assert [t["y"] for t in lines] == [[cells["cS"], cells["cL"]], [cells["dS"], cells["dL"]]]


def test_cells_are_read_from_the_plan_where_the_analysis_does_not_name_them(page):
    result = study()
    del result["causal"]["arms"]
    assert Tree(render(result)).table("Mean test_accuracy in the four cells") == page.table(
        "Mean test_accuracy in the four cells"
    )


def test_the_data_and_the_plan_can_be_copied(page):
    result = study()
    assert page.json("result")["contrasts"] == result["contrasts"]
    assert page.json("plan-json")["arms"] == result["plan"]["arms"]


def test_secrets_of_the_command_are_masked_everywhere():
    text = render(study())
    assert "hunter2" not in text
    assert "hunter3" not in text
    assert "‹redacted›" in text
    assert "were masked" in text
    result = study()
    result["plan"]["runner"] = {"callable": "kappaone.recipes.images:run", "options": {}}
    assert "were masked" not in render(result)


def bare(result):
    for key in ("causal", "noise_floor", "target"):
        result[key] = None
    result["tracked"], result["curves"] = {}, {}
    result["plan"]["noise_arm"] = None
    result["plan"]["cells"] = None


def diverged(result):
    result["arms"][6] |= {"diverged": [2, 5], "failed": [7], "mean": "NaN", "sd": "NaN", "n": 5}
    result["arms"][6]["values"] |= {"2": "Infinity", "5": "NaN"}
    result["warnings"] = ["mimetic: seeds 2, 5 diverged and seed 7 failed"]
    contrast = result["contrasts"][5]
    contrast |= {"mean": "NaN", "interval": None, "interval90": None, "p_maxt": None, "verdict": "inconclusive"}
    contrast["differences"] |= {"2": "NaN", "5": None}
    for curve in result["curves"].values():
        curve["mimetic"]["mean"][-3:] = ["NaN", "Infinity", None]
        curve["mimetic"]["low"][-3:] = ["NaN", "-Infinity", None]
        curve["mimetic"]["high"][-3:] = ["NaN", "Infinity", None]
    result["tracked"]["kappa_J"]["mimetic"]["last"] = {"mean": "Infinity", "low": "NaN", "high": None}
    result["tracked"]["kappa_J"]["conditioned"]["first"] = {"mean": 0.0, "low": -1.0, "high": 1.0}


def identical(result):
    for contrast in result["contrasts"]:
        contrast |= {"mean": 0.0, "sd": 0.0, "interval": [0.0, 0.0], "interval90": [0.0, 0.0], "p_maxt": 1.0}
        contrast["differences"] = dict.fromkeys(contrast["differences"], 0.0)
    for row in result["target"]["rows"]:
        row |= {"difference": 0.0, "interval": [0.0, 0.0]}
    result["pairing"] |= {"correlation": None, "interval": None, "variance_ratio": None}


def unreached(result):
    for row in result["target"]["rows"]:
        row |= {"steps": dict.fromkeys(row["steps"]), "reached": 0, "difference": None, "interval": None}


def uncounted(result):
    result["target"] = {
        "rule": None,
        "rows": [],
        "horizon": None,
        "words": "Steps to target could not be counted: why.",
    }


def no_contrasts(result):
    result["contrasts"] = []
    result["mde"] = result["pairing"] = result["exact_test"] = None


def one_seed(result):
    result.clear()
    result.update(study(seeds=1))
    for part in (*result["contrasts"], *result["target"]["rows"], result["noise_floor"], result["pairing"]):
        part["interval"] = None
        part["sd"] = None
    result["mde"] |= {"value": None, "low": None, "high": None}


def empty_curves(result):
    result["curves"] = {"test_accuracy": {a: {"steps": [], "mean": [], "low": [], "high": []} for a in ARMS}}
    result["arms"] = [a | {"values": {}} for a in result["arms"]]


EDGES = [bare, diverged, identical, unreached, uncounted, no_contrasts, one_seed, empty_curves]


@pytest.mark.parametrize("change", EDGES, ids=lambda f: f.__name__)
def test_edges_make_whole_pages(change):
    result = study()
    change(result)
    before = copy.deepcopy(result)
    tree = Tree(render(result))
    assert result == before
    assert heads(tree)[:3] == ["Question and answer", "What this study could see", "Effects"]
    assert "None" not in " ".join(e.text for e in tree.all("main"))
    assert "nan" not in [e.text for e in tree.all("td")]


def test_a_study_without_an_aa_arm_says_so():
    result = study()
    bare(result)
    tree = Tree(render(result))
    assert "not measured" in [e.text for e in tree.all("p", class_="value")]
    assert not {"Curves", "Spectrum or scale?", "Steps to target"} & set(heads(tree))


def test_a_target_that_could_not_be_counted_says_why():
    result = study()
    uncounted(result)
    tree = Tree(render(result))
    assert "Steps to target could not be counted: why." in [e.text for e in tree.all("p")]
    assert not [e for e in tree.all("figure") if e.attributes["id"].startswith("target")]


def test_diverged_and_failed_seeds_and_warnings_are_shown():
    result = study()
    diverged(result)
    tree = Tree(render(result))
    assert tree.table("The arms")[7] == ["mimetic", "5", "NaN", "NaN", "2, 5", "7"]
    assert "mimetic: seeds 2, 5 diverged and seed 7 failed" in [e.text for e in tree.all("li")]
    last = tree.table("kappa_J at the first and the last record")[7]
    assert last[2] == "∞ (no interval)"


def test_a_metric_where_lower_is_better_points_left():
    result = study()
    result["plan"] |= {"metric": "loss", "higher_is_better": False}
    assert "further left is better" in Tree(render(result)).json("effects-figure-json")["layout"]["xaxis"]["title"][
        "text"
    ].replace("<br>", " ")


def test_a_part_that_is_missing_is_named():
    result = study()
    del result["arms"]
    with pytest.raises(SpecError, match="has no arms"):
        render(result)
