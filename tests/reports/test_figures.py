import pytest

from kappaone.reports.figures import Row, curves, first_and_last, rows_chart
from kappaone.reports.palette import PLAIN, Look, looks


def test_equal_dots_stand_under_each_other():
    dots = [(f"seed {s}", x) for s, x in enumerate([1.0, 2.0, 1.0, 1.0])]
    plot = rows_chart([Row("arm", "", PLAIN, dots=dots)], x_title="steps")
    (trace,) = plot["data"]
    assert trace["x"] == [1.0, 2.0, 1.0, 1.0]
    assert len(set(zip(trace["x"], trace["y"], strict=True))) == 4


def test_an_interval_is_drawn_where_it_is():
    row = Row("arm", "better", PLAIN, mean=0.2, interval=(0.1, 0.3), inner=(0.15, 0.25))
    plot = rows_chart([row], x_title="x", zero=True, margin=0.05)
    assert [t["x"] for t in plot["data"]] == [[0.1, 0.3], [0.15, 0.25], [0.2]]
    kinds = [(s["type"], s["x0"], s["x1"]) for s in plot["layout"]["shapes"]]
    assert kinds == [("rect", -0.05, 0.05), ("line", 0, 0)]
    assert [n["text"] for n in plot["layout"]["annotations"]] == ["<b>arm</b>", "better"]


def test_gaps_of_a_curve_stay_gaps_and_bands_skip_them():
    curve = {"steps": [0, 10, 20], "mean": [1.0, "NaN", 3.0], "low": [0.5, None, 2.5], "high": [1.5, None, 3.5]}
    band, line = curves({"a": curve}, looks(["a"], None), metric="m")["data"]
    assert line["y"] == [1.0, None, 3.0]
    assert line["connectgaps"] is False
    assert band["x"] == [0, 20, 20, 0]
    assert band["y"] == [0.5, 2.5, 3.5, 1.5]


def test_a_log_axis_leaves_out_what_it_cannot_show():
    ends = {"first": {"mean": 0.0, "low": -1.0, "high": 1.0}, "last": {"mean": 10.0, "low": 5.0, "high": 20.0}}
    found = {"a": Look("#123456", "solid", "circle", "a0")}
    drawn = first_and_last({"a": ends}, found, quantity="kappa", log=True, remarks={})
    assert [t["x"] for t in drawn["data"]] == [[5.0, 20.0], [10.0]]
    linear = first_and_last({"a": ends}, found, quantity="std", log=False, remarks={})
    assert [-1.0, 1.0] in [t["x"] for t in linear["data"]]


@pytest.mark.parametrize("rows", [[], [Row("", "", PLAIN)]])
def test_empty_charts_are_charts(rows):
    assert rows_chart(rows, x_title="x")["layout"]["height"] > 0
