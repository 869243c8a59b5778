import json

from hypothesis import given
from hypothesis import strategies as st

from kappaone.reports.parts import plot_lines, plot_text, script_json, strict

from .samples import HOSTILE


@given(
    st.recursive(
        st.text() | st.integers(-(2**53), 2**53) | st.none(), lambda c: st.lists(c) | st.dictionaries(st.text(), c)
    )
)
def test_json_in_a_script_reads_back_and_cannot_end_it(value):
    text = script_json(value)
    assert json.loads(text) == value
    assert not set("<>&\u2028\u2029") & set(text)


def test_what_is_not_finite_becomes_text():
    assert strict([float("inf"), {"a": float("nan")}]) == ["Infinity", {"a": "NaN"}]


@given(st.text())
def test_plots_get_no_markup(text):
    for shown in (plot_text(text), plot_text(text, 12), plot_lines(text).replace("<br>", "")):
        assert not set("<>") & set(shown)


def test_shortening_cuts_before_it_escapes():
    assert plot_text("<" * 50, 5) == "&lt;&lt;…&lt;&lt;"
    assert "<" not in plot_text(HOSTILE, 20)
