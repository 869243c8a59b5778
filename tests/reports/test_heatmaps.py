import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaone.reports.heatmaps import Cell, Panel, _colour_ticks, heatmaps


def draw(rows, log=True):
    return heatmaps([Panel("W_Q", rows)], layers=[f"l{i}" for i in range(len(rows))], quantity="kappa", log=log)


def test_colours_follow_the_logarithm():
    plot = draw([[Cell(10.0), Cell(1000.0)], [Cell(100.0)]])
    assert plot["data"][0]["z"] == [[1.0, pytest.approx(3.0)], [2.0, None]]
    assert (plot["layout"]["coloraxis"]["cmin"], plot["layout"]["coloraxis"]["cmax"]) == pytest.approx((1, 3))
    assert draw([[Cell(10.0)]], log=False)["data"][0]["z"] == [[10.0]]


def test_what_has_a_status_is_struck_and_what_has_no_number_is_grey():
    cells = [
        Cell(2.0),
        Cell(1e15, "rank_deficient", "numerical rank 3", exact=False),
        Cell(math.nan, "zero"),
        Cell(5.0),
    ]
    plot = draw([cells])
    coloured, grey, *strokes = plot["data"]
    assert [z is None for z in coloured["z"][0]] == [False, False, True, False]
    assert [z is None for z in grey["z"][0]] == [True, True, False, True]
    assert {(tuple(s["x"]), tuple(s["y"])) for s in strokes} == {((1, 2), (0, 0))}
    assert "rank_deficient" in coloured["text"][0][1]
    assert "numerical rank 3" in coloured["text"][0][1]
    assert "zero" in grey["text"][0][2]
    assert plot["layout"]["coloraxis"]["cmax"] == pytest.approx(math.log10(5))


def test_a_value_that_has_no_logarithm_is_grey_and_struck():
    plot = draw([[Cell(0.0), Cell(1.0)]])
    assert len(plot["data"]) == 4
    assert plot["data"][2]["x"] == [0]


def test_panels_do_not_overlap():
    rows = [[Cell(1.0 + i)] for i in range(48)]
    plot = heatmaps([Panel(r, rows) for r in "qkvo"], layers=["x"] * 48, quantity="kappa", log=True)
    domains = [plot["layout"][f"yaxis{s}"]["domain"] for s in ("", "2", "3", "4")]
    assert all(0 <= low < high <= 1 for low, high in domains)
    assert all(below[1] < above[0] for above, below in itertools.pairwise(domains))


@given(st.floats(-8, 8), st.floats(0, 20), st.booleans())
def test_the_scale_is_labelled_inside_its_ends_with_what_stands_there(low, width, log):
    values, words = _colour_ticks(low, low + width, log)
    assert 1 <= len(values) <= 5
    for value, word in zip(values, words, strict=True):
        assert low - 1e-6 * max(1, abs(low)) <= value <= low + width + 1e-6 * max(1, abs(low + width))
        wanted = 10**value if log else value
        assert float(word.replace("−", "-")) == pytest.approx(wanted, rel=0.006, abs=1e-300)
