"""The probe must catch every kind of wrong layout, and leave the model as it was."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError, MeasureError
from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.probe import verify
from tests.layouts.models import Fused, tokens


@pytest.fixture
def model():
    return Fused("q k v", 4, 4, 3, 12)


@pytest.fixture
def layout(model):
    return find_attention(model, layouts=[AttentionSpec("", heads=4, fused="wires", o="out")])[0]


def _wrong(model, layout):
    return verify(model, [layout], tokens(2, 6, 12), rows_per_head=None).wrong


def test_the_right_layout_is_confirmed_and_nothing_moves(model, layout):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    model.train()
    assert not _wrong(model, layout)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_queries_and_keys_swapped(model, layout):
    wrong = _wrong(model, replace(layout, q=layout.k, k=layout.q))
    assert {(v.expected_role, v.role) for v in wrong} == {("q", "k"), ("k", "q")}
    assert len(wrong) == 24


def test_values_taken_for_queries(model, layout):
    wrong = _wrong(model, replace(layout, q=layout.v, v=layout.q))
    assert {(v.expected_role, v.role) for v in wrong} == {("q", "v"), ("v", "q")}


def test_heads_shifted_by_one_row(model, layout):
    shifted = replace(layout.q, starts=tuple(start + 1 for start in layout.q.starts))
    wrong = _wrong(model, replace(layout, q=shifted))
    # The last row of each head is the next head's first, and that of the last head a key row.
    assert [(v.row, v.role, v.heads) for v in wrong] == [
        (3, "q", (1,)), (6, "q", (2,)), (9, "q", (3,)), (12, "k", (0,)),
    ]  # fmt: skip


def test_heads_in_another_order(model, layout):
    turned = replace(layout.v, starts=layout.v.starts[::-1])
    assert len(_wrong(model, replace(layout, v=turned))) == 12


def test_twice_as_many_heads(model, layout):
    with_six = replace(
        layout,
        q=replace(layout.q, starts=tuple(range(0, 12, 2)), size=2, bias_starts=tuple(range(0, 12, 2))),
        k=replace(layout.k, starts=tuple(range(12, 24, 2)), size=2, bias_starts=tuple(range(12, 24, 2))),
        v=replace(layout.v, starts=tuple(range(24, 36, 2)), size=2, bias_starts=tuple(range(24, 36, 2))),
    )
    assert _wrong(model, with_six)


def test_a_wrong_kv_map():
    model = Fused("q k v", 4, 2, 3, 12)
    spec = AttentionSpec("", heads=4, kv_heads=2, fused="wires", o="out")
    (right,) = find_attention(model, layouts=[spec])
    assert not _wrong(model, right)
    wrong = _wrong(model, replace(right, facts={"kv_map": "modulo"}))
    assert {v.expected_role for v in wrong} == {"k", "v"}
    assert {v.heads for v in wrong} == {(0, 1), (2, 3)}


def test_what_is_wrong_is_said_by_row(model, layout):
    report = verify(model, [replace(layout, q=layout.k, k=layout.q)], tokens(2, 6, 12))
    with pytest.raises(LayoutError, match=r"wires.weight row \d+: the layout says q of heads \[0\]; it behaves as k"):
        report.require()


def test_a_dead_row_is_called_dead(model, layout):
    model.out.weight.data.zero_()  # the output projection is opened, so zero W_O hides nothing
    assert not _wrong(model, layout)
    model.wires.weight.data[12:24] = 0  # without keys no query matters
    model.wires.bias.data[12:24] = 0
    assert {v.role for v in _wrong(model, layout) if v.expected_role == "q"} == {"dead"}


def test_tokens_that_are_all_alike_are_an_error(model, layout):
    with pytest.raises(MeasureError, match="alike"):
        verify(model, [layout], torch.ones(2, 6, 12))


def test_an_unreached_layer_is_no_confirmation(model, layout):
    both = nn.ModuleDict({"used": model, "idled": Fused("q k v", 4, 4, 3, 12)})
    both.forward = both["used"].forward
    layouts = find_attention(both, layouts=[AttentionSpec("*d", heads=4, fused="wires", o="out")])
    report = verify(both, layouts, tokens(2, 6, 12))
    assert not report.ok
    assert "idled" in report.unreached
    with pytest.raises(LayoutError, match="does not reach"):
        report.require()


def test_a_layer_that_draws_numbers_cannot_be_probed(model, layout):
    model.register_forward_hook(lambda _m, _a, out: out + torch.rand(()))
    layout = replace(layout, o=None, output="heads")
    with pytest.raises(MeasureError, match="two outputs"):
        verify(model, [layout], tokens(2, 6, 12))


def test_a_spec_that_leaves_out_the_output_projection_is_told_so(model):
    without = find_attention(model, layouts=[AttentionSpec("", heads=4, fused="wires")])
    with pytest.raises(LayoutError, match="name the output projection"):
        verify(model, without, tokens(2, 6, 12)).require()
