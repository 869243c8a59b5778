import pytest

from kappaone.errors import SpecError
from kappaone.reports.pages import render

from .samples import conditioning
from .tree import Tree


@pytest.fixture(scope="module")
def page():
    return Tree(render(conditioning()))


def test_the_sections(page):
    assert [e.text for e in page.all("h2")] == [
        "Layers",
        "Weights",
        "On the example input",
        "The bound of Theorem 3.1",
        "All numbers of the weights",
        "About this report",
        "The data of this page",
    ]


def test_heat_maps_hold_every_head_of_every_layer(page):
    result = conditioning()
    maps = [t for t in page.json("weights-0-json")["data"] if t.get("coloraxis")]
    for role, drawn in zip("qkvo", maps, strict=True):
        wanted = [
            [h["condition_number"] for h in layer["weights"]["roles"][role]["heads"]] for layer in result["layers"]
        ]
        assert len(drawn["z"]) == 12
        for levels, values in zip(drawn["z"], wanted, strict=True):
            for level, value in zip(levels, values, strict=True):
                assert (level is None) == (value == "NaN")
                assert level is None or 10**level == pytest.approx(value)
    kappa_J = page.json("activations-5-json")["data"][0]["z"]
    assert kappa_J[9][3] is None
    assert 10 ** kappa_J[0][0] == pytest.approx(result["layers"][0]["heads"][0]["kappa_J"]["condition_number"])


def test_statuses_are_in_the_table_in_the_tooltip_and_in_the_list(page):
    row = next(r for r in page.table("Condition number of the attention Jacobian J") if r[0].startswith("9:"))
    assert row[2 + 3] == "zero_operator"
    row = next(r for r in page.table("Condition number of the attention Jacobian J") if r[0].startswith("5:"))
    assert row[2 + 7].endswith("(bounded)")
    assert "kappa(J): bounded in 1 head" in [e.text for e in page.all("li")]
    assert "kappa of W_V: rank_deficient in 1 head" in [e.text for e in page.all("li")]
    tips = page.json("activations-5-json")["data"][0]["text"]
    assert "numerical rank 3100" in tips[5][7].replace("<br>", " ")


def test_every_block_is_in_the_table(page):
    rows = page.table("Weights of every block")[1:]
    assert len(rows) == 12 * (12 + 4 + 4 + 12 + 4 + 1)
    assert rows[0][:3] == ["0: blocks.0.attn", "W_Q", "0"]
    assert [r[8] for r in rows if r[8] != "ok"] == ["rank_deficient", "zero"]


def test_the_bound_is_infinite_and_its_repair_a_heuristic(page):
    rows = page.table("Theorem 3.1 by head")[1:]
    assert len(rows) == 144
    assert {r[3] for r in rows} == {"∞"}
    said = [e.text for e in page.all("p")]
    assert "B is infinite: every block of Lambda(P) maps the all-ones vector to zero." in said
    assert "B+ is a heuristic, not a bound: kappa(J) can exceed it." in said
    assert [r[13] for r in rows if r[13] != "ok"] == ["P: rank_deficient"]


def test_notes_of_the_report_and_of_layers_are_shown(page):
    said = [e.text for e in page.all("li")]
    assert "one sample was measured" in said
    assert "blocks.2.attn: W_V of the example's layer is shared by three query heads" in said


def test_without_an_example_there_are_weights_only():
    tree = Tree(render(conditioning(layers=2, example=False)))
    assert not {"On the example input", "The bound of Theorem 3.1"} & {e.text for e in tree.all("h2")}
    assert len(tree.all("figure")) == 3


def test_a_layer_that_the_example_did_not_reach_and_a_head_without_a_jacobian():
    result = conditioning(layers=2)
    result["layers"][0]["heads"] = []
    for head in result["layers"][1]["heads"]:
        del head["kappa_J"]
    tree = Tree(render(result))
    assert not [t for t in tree.all("figure") if "Jacobian" in t.text]
    assert len(tree.table("Entropy of the attention (nats)")) == 2


def test_no_layers_is_an_error():
    with pytest.raises(SpecError, match="found none"):
        render(conditioning() | {"layers": []})
