"""Every way to write a spec, against rows that are counted one by one and against modules that do what it says."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from kappaone.errors import LayoutError, SpecError
from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.probe import verify
from tests.layouts.models import Fused, labels, tokens

ORDERS = [form.format(" ".join(p)) for form in ("{}", "head({})", "group({})") for p in permutations("qkv")]


def _starts(rows: list[tuple[str, int]], role: str, heads: int) -> tuple[int, ...]:
    return tuple(rows.index((role, head)) for head in range(heads))


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_is_what_the_module_does(order):
    model = Fused(order, 4, 2 if order.startswith("group") else 4, 3, 10)
    spec = AttentionSpec("", heads=4, kv_heads=model.kv_heads, fused="wires", order=order, o="out", causal=True)
    layouts = find_attention(model, layouts=[spec])
    report = verify(model, layouts, tokens(2, 5, 10), rows_per_head=None)
    assert report.ok, str(report)
    assert len(report.verdicts) == len(model.labels)


@given(
    order=st.sampled_from(ORDERS),
    kv_heads=st.integers(1, 4),
    group=st.integers(1, 4),
    head_dim=st.integers(1, 5),
    width=st.integers(1, 9),
)
@settings(max_examples=150, deadline=None)
def test_starts_are_those_that_counting_rows_gives(order, kv_heads, group, head_dim, width):
    group = 1 if order.startswith("head") else group
    heads = kv_heads * group
    rows = labels(order, heads, kv_heads, head_dim)
    module = nn.Module()
    module.w = nn.Linear(width, len(rows))
    spec = AttentionSpec("", heads=heads, kv_heads=kv_heads, fused="w", order=order)
    (layout,) = find_attention(module, layouts=[spec])
    for role, count in (("q", heads), ("k", kv_heads), ("v", kv_heads)):
        assert layout.role(role).starts == layout.role(role).bias_starts == _starts(rows, role, count)
        assert layout.role(role).size == head_dim
        assert layout.role(role).width == width
    assert (layout.heads, layout.kv_heads, layout.scale) == (heads, kv_heads, head_dim**-0.5)
    assert layout.output == "heads"


def test_separate_roles_with_grouped_keys_and_wider_values():
    module = nn.ModuleDict({"a": nn.Linear(8, 12), "b": nn.Linear(6, 6), "c": nn.Linear(6, 10), "d": nn.Linear(20, 8)})
    (layout,) = find_attention(module, layouts=[AttentionSpec("", heads=4, kv_heads=2, q="a", k="b", v="c", o="d")])
    assert layout.q.starts == (0, 3, 6, 9)
    assert layout.k.starts == (0, 3)
    assert layout.v.starts == (0, 5)
    assert layout.v.size == 5
    assert layout.o.starts == (0, 5, 10, 15)
    assert (layout.k.width, layout.o.width) == (6, 8)


def test_a_parameter_can_hold_the_rows_and_can_be_stored_the_other_way():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.in_weight = nn.Parameter(torch.zeros(8, 24))
            self.in_bias = nn.Parameter(torch.zeros(24))

    (layout,) = find_attention(Bare(), layouts=[AttentionSpec("", heads=2, fused="in_weight", transposed=True)])
    assert layout.q.transposed
    assert layout.k.starts == (8, 12)
    assert layout.k.bias == "in_bias"


def test_globs_choose_the_modules():
    model = nn.ModuleDict({name: nn.ModuleDict({"mix": Fused("k v q", 2, 2, 2, 4)}) for name in ("a", "b")})
    found = find_attention(model, layouts=[AttentionSpec("?.mix", heads=2, fused="wires", order="k v q")])
    assert [layout.name for layout in found] == ["a.mix", "b.mix"]


@pytest.mark.parametrize(
    ("options", "error", "what"),
    [
        ({"heads": 0, "fused": "wires"}, SpecError, "heads=0"),
        ({"heads": 2}, SpecError, "no role named apart"),
        ({"heads": 2, "q": "wires"}, SpecError, "q named apart"),
        ({"heads": 2, "fused": "wires", "q": "a"}, SpecError, "each of q, k, v once"),
        ({"heads": 2, "fused": "wires", "order": "q k"}, SpecError, "holds k q by its order"),
        ({"heads": 2, "fused": "wires", "order": "q q v"}, SpecError, "order="),
        ({"heads": 2, "fused": "wires", "order": "row(q k v)"}, SpecError, "order="),
        ({"heads": 2, "fused": "nope"}, SpecError, "no projection 'nope'"),
        ({"heads": 7, "fused": "wires"}, SpecError, "outputs"),
        ({"heads": 2, "fused": "wires", "head_dim": 5}, SpecError, "2 q x 5"),
        (
            {"heads": 4, "kv_heads": 2, "fused": "wires", "order": "head(q k v)", "head_dim": 3},
            SpecError,
            "as many of each",
        ),
        ({"match": "no.*", "heads": 2, "fused": "wires"}, LayoutError, "matches none"),
    ],
)
def test_what_does_not_fit_is_said(options, error, what):
    model = Fused("q k v", 2, 2, 4, 8)
    with pytest.raises(error) as raised:
        find_attention(model, layouts=[AttentionSpec(**{"match": "", **options})])
    assert what in raised.value.what
    assert raised.value.todo
