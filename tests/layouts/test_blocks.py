from __future__ import annotations

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError
from kappaone.layouts import AttentionSpec, RoleRows, find_attention
from kappaone.layouts.blocks import (
    bias_blocks,
    block_view,
    named_modules,
    parameter,
    parameters_by_name,
    stacked_blocks,
)
from tests.layouts.models import Fused


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("role", ["q", "o"])
def test_a_view_is_the_block_and_writes_through(role, transposed):
    weight = nn.Parameter(torch.arange(48.0).reshape(6, 8))
    rows = RoleRows("w", (1, 3), 2, 8 if transposed == (role == "o") else 6, transposed)
    view = block_view(weight, rows, role, 1)
    stored = [[weight[i, j].item() for j in range(8)] for i in range(6)]
    outputs_first = [list(column) for column in zip(*stored, strict=True)] if transposed else stored
    expected = [row[3:5] for row in outputs_first] if role == "o" else outputs_first[3:5]
    assert view.tolist() == expected
    view.fill_(-1)
    assert int((weight == -1).sum()) == view.numel()
    assert not view.requires_grad


@pytest.mark.parametrize("shape", [(6, 4, 1), (6, 4, 1, 1)])
def test_a_1x1_convolution_is_read_as_a_matrix(shape):
    weight = torch.arange(24.0).reshape(shape)
    view = block_view(weight, RoleRows("w", (0, 3), 3, 4), "q", 1)
    assert view.tolist() == torch.arange(24.0).reshape(6, 4)[3:].tolist()
    view.zero_()
    assert float(weight[3:].abs().sum()) == 0


def test_stacked_copies_and_biases():
    model = Fused("head(v q k)", 2, 2, 3, 5)
    (layout,) = find_attention(model, layouts=[AttentionSpec("", heads=2, fused="wires", order="head(v q k)", o="out")])
    for role in "qkv":
        at = [[i for i, label in enumerate(model.labels) if label == (role, head)] for head in range(2)]
        copy, bias = stacked_blocks(model, layout, role, dtype=torch.float64), bias_blocks(model, layout, role)
        assert copy.dtype == torch.float64
        for head in range(2):
            assert torch.equal(copy[head].float(), model.wires.weight[at[head]])
            assert torch.equal(bias[head], model.wires.bias[at[head]])
        copy.zero_()
    assert stacked_blocks(model, layout, "o").shape == (2, 5, 3)
    assert float(model.wires.weight.detach().abs().min()) > 0
    model.wires.bias = None
    (layout,) = find_attention(model, layouts=[AttentionSpec("", heads=2, fused="wires", order="head(v q k)")])
    assert bias_blocks(model, layout, "q") is None


def test_wrappers_leave_no_trace_in_names_and_users_modules_do():
    plain = nn.Sequential(nn.Linear(2, 2))
    names = list(parameters_by_name(plain))
    assert list(parameters_by_name(nn.DataParallel(plain))) == names
    assert list(parameters_by_name(torch.compile(plain))) == names
    assert list(parameters_by_name(nn.DataParallel(torch.compile(plain)))) == names
    own = nn.ModuleDict({"module": nn.Linear(2, 2)})
    assert [name for name, _ in named_modules(own)] == ["", "module"]
    inside = nn.Sequential(nn.DataParallel(nn.Linear(2, 2)))
    assert sorted(parameters_by_name(inside)) == ["0.bias", "0.weight"]


def test_tied_parameters_have_both_names_and_modules_one():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    found = parameters_by_name(model)
    assert found["0.weight"] is found["1.weight"]
    shared = nn.Linear(2, 2)
    assert [name for name, _ in named_modules(nn.Sequential(shared, shared))] == ["", "0"]


def test_a_name_that_is_none():
    with pytest.raises(LayoutError, match="'nope'"):
        parameter(nn.Linear(2, 2), "nope")
