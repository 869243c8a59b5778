"""Weights that share memory without being one parameter."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import WriteError


def _two_layers() -> nn.TransformerEncoder:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 16, batch_first=True), 2, enable_nested_tensor=False)


def test_two_parameters_of_the_same_memory_are_one_weight() -> None:
    model = _two_layers()
    first, second = (layer.self_attn for layer in model.layers)
    second.in_proj_weight = nn.Parameter(first.in_proj_weight.data)
    report = kappaone.init_(model, "conditioned", seed=0)
    assert [layer.roles["q"].status for layer in report.layers] == ["set", "tied"]
    assert kappaone.check(model)


def test_partly_overlapping_memory_is_refused() -> None:
    model = _two_layers()
    shared = 0.1 * torch.randn(72, 16)
    for start, layer in zip((0, 24), model.layers, strict=True):
        layer.self_attn.in_proj_weight = nn.Parameter(shared[start : start + 48])
    with pytest.raises(WriteError, match="partly over each other"):
        kappaone.init_(model, "conditioned", seed=0, overwrite=True)


def test_neighbours_in_one_flat_buffer_are_not_tied() -> None:
    model = _two_layers()
    flat = torch.randn(2 * 48 * 16)
    for i, layer in enumerate(model.layers):
        layer.self_attn.in_proj_weight = nn.Parameter(flat[i * 768 : (i + 1) * 768].view(48, 16))
    assert kappaone.init_(model, "conditioned", seed=0, overwrite=True).blocks_set == 24


def test_memory_shared_with_something_else_is_refused() -> None:
    model = _two_layers()
    model.register_parameter("table", nn.Parameter(model.layers[0].self_attn.in_proj_weight.data))
    with pytest.raises(WriteError, match="tied to 'table'"):
        kappaone.init_(model, "conditioned", seed=0)
