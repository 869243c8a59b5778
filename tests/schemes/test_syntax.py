"""The scheme syntax: round trips, errors that point at the place, and meaning."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaone.errors import SpecError
from kappaone.schemes import ENTRIES, lookup, understand
from kappaone.schemes.syntax import Call, Range, parse

names = st.sampled_from(["conditioned", "a", "x_1", "matched", "true"])
numbers = st.one_of(st.integers(-99, 99), st.floats(0.001, 99))
values = st.recursive(
    st.one_of(
        numbers,
        st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(tuple),
        st.builds(Range, st.none() | st.integers(0, 9), st.integers(0, 9)),
        st.builds(Call, names),
    ),
    lambda inner: st.builds(
        Call,
        names,
        st.lists(
            st.tuples(st.sampled_from(["k", "group", "std"]), inner), max_size=2, unique_by=lambda pair: pair[0]
        ).map(tuple),
    ),
    max_leaves=6,
)


@given(
    st.builds(
        Call,
        names,
        st.lists(st.tuples(st.sampled_from(["", "a", "b"]), values), max_size=3, unique_by=lambda pair: pair[0]).map(
            tuple
        ),
    )
)
def test_what_is_printed_is_read_back(call):
    assert parse(str(call)) == call


@given(st.text(max_size=30))
def test_any_text_is_read_or_refused_in_one_message(text):
    try:
        understand(text)
    except SpecError as error:
        assert error.what and error.todo


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("conditioned()", "conditioned"),
        (" conditioned( scale = matched , value=per_head )", "conditioned(value=per_head, scale=matched)"),
        ("default(redraw, std=faithful)", "default(std=faithful, redraw)"),
        ("default(redraw=true)", "default(redraw)"),
        ("mimetic(as_published=false)", "mimetic(as_published=false)"),
        ("trunc_normal(std=2e-2)", "trunc_normal(std=0.02)"),
        ("conditioned(parts=kq)", "conditioned(parts=kq)"),
        ("fan_in(layers=-1)", "fan_in(layers=-1)"),
    ],
)
def test_canonical_form(text, canonical):
    assert str(understand(text)) == canonical
    assert str(understand(canonical)) == canonical


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("condtioned", "did you mean conditioned"),
        ("conditioned(valu=fused)", "did you mean value"),
        ("conditioned(value=fusd)", "fused or per_head"),
        ("conditioned(per_head)", "stands without a name"),
        ("default(redraw, redraw)", "given twice"),
        ("default(std=own, std=own)", "given twice"),
        ("conditioned(scale=matched(norm=l2))", "expected fro"),
        ("conditioned(scale=matched(group=layer))", "head or role"),
        ("conditioned(scale=logit(a=1))", "logit(STD)"),
        ("conditioned(scale=unit_logits)", "name a scheme"),
        ("unit_logits(scale=2)", "sets its own scale"),
        ("conditioned(scale=0)", "positive number"),
        ("conditioned(parts=qq)", "letters qkv"),
        ("conditioned(layers=1.5)", "a range 0:6"),
        ("trunc_normal(std=-1)(", "expected the end"),
        ("conditioned(value=)", "expected a name or a value"),
    ],
)
def test_errors_list_what_is_right(text, says):
    with pytest.raises(SpecError) as caught:
        understand(text)
    assert says in str(caught.value)


@pytest.mark.parametrize(("text", "count", "chosen"), [
    ("default(layers=first)", 4, {0}), ("default(layers=last)", 4, {3}), ("default(layers=1:3)", 4, {1, 2}),
    ("default(layers=[0, -1])", 4, {0, 3}), ("default(layers=2:)", 4, {2, 3}), ("default", 2, {0, 1}),
])  # fmt: skip
def test_layers(text, count, chosen):
    assert understand(text).chosen(count) == chosen


@pytest.mark.parametrize("text", ["default(layers=4)", "default(layers=[0, 9])", "default(layers=7:9)"])
def test_layers_that_are_not_there(text):
    with pytest.raises(SpecError, match="layer"):
        understand(text).chosen(4)


def test_every_entry_says_what_it_is():
    for name in ENTRIES:
        entry = lookup(name)
        assert entry.name == name
        assert entry.summary and entry.source
