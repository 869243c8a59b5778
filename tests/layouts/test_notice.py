from __future__ import annotations

import pytest
import torch
from torch import nn

from kappaone.layouts.blocks import named_modules
from kappaone.layouts.notice import by_calls, by_structure


def _holding(**children: nn.Module) -> nn.Module:
    return nn.Sequential(nn.ModuleDict(children))


@pytest.mark.parametrize(
    "names",
    [
        ("qkv",), ("to_qkv",), ("c_attn",), ("query_key_value",), ("Wqkv",), ("qkv_proj",), ("in_proj_weight",),
        ("q_proj", "k_proj"), ("to_q", "to_kv"), ("wq", "wk"), ("query", "key"), ("q_lin", "k_lin"), ("c_q", "c_k"),
        ("q_a_proj", "kv_a_proj_with_mqa"),
    ],
)  # fmt: skip
def test_projections_by_name(names):
    found = by_structure(dict(named_modules(_holding(**{name: nn.Linear(4, 4) for name in names}))), set())
    assert list(found) == ["0"]
    assert any(name in found["0"] for name in names)


@pytest.mark.parametrize("names", [("fc1", "fc2"), ("key",), ("queue", "keyed"), ("w1", "w2", "w3"), ("query",)])
def test_other_layers_are_left_alone(names):
    assert not by_structure(dict(named_modules(_holding(**{name: nn.Linear(4, 4) for name in names}))), set())


def test_described_layers_and_their_shells_are_not_noticed_again():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleDict({"qkv": nn.Linear(4, 12)})
            self.dense, self.more = nn.Linear(4, 4), nn.Linear(4, 4)

    model = nn.Sequential(Attention())
    assert list(by_structure(dict(named_modules(model)), set())) == ["0"]
    assert by_structure(dict(named_modules(model)), {"0.inner"}) == {}


class _Calls(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.layer, self.call = nn.Linear(4, 4), call

    def forward(self, x):
        return self.call(self.layer(x))


@pytest.mark.parametrize(
    ("call", "seen"),
    [
        (lambda x: nn.functional.scaled_dot_product_attention(x, x, x), "calls scaled_dot_product_attention"),
        (lambda x: (x @ x.mT).softmax(-1) @ x, "calls softmax"),
        (lambda x: torch.softmax(x @ x.mT, -1) @ x, "calls softmax"),
        (lambda x: x[:, 0].softmax(-1), None),
        (lambda x: x.log_softmax(-1), None),
        (torch.relu, None),
    ],
)
def test_calls(call, seen):
    model = nn.Sequential(_Calls(call))
    state = torch.get_rng_state()
    found = by_calls(model, dict(named_modules(model)), torch.ones(1, 3, 4))
    assert found == ({"0": seen} if seen else {})
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
