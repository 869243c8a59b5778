from __future__ import annotations

import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import SpecError


def _model() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 1)


def _centred_std(model: nn.Module, x: torch.Tensor) -> float:
    """Standard deviation of the logits of the first layer less each query's mean, by hand in float64."""
    attention = model.layers[0].self_attn
    q, k, _ = (
        (x.double() @ w.T + b).unflatten(-1, (4, 4)).transpose(1, 2)
        for w, b in zip(
            attention.in_proj_weight.double().chunk(3), attention.in_proj_bias.double().chunk(3), strict=True
        )
    )
    logits = q @ k.mT / 2
    logits = logits - logits.mean(-1, keepdim=True)
    return float((logits.detach() ** 2).mean().sqrt())


@pytest.mark.parametrize("std", [0.5, 1.0, 3.0])
def test_the_logits_have_the_std_that_was_asked_for(std):
    model, x = _model(), torch.randn(2, 7, 16, generator=torch.Generator().manual_seed(1))
    values = model.layers[0].self_attn.in_proj_weight[32:].clone()
    kappaone.init_(model, f"unit_logits(std={std})", seed=0, example=x)
    assert _centred_std(model, x) == pytest.approx(std, rel=1e-4)
    assert torch.equal(model.layers[0].self_attn.in_proj_weight[32:], values)


def test_it_needs_an_example_with_spread():
    with pytest.raises(SpecError, match="example"):
        kappaone.init_(_model(), "unit_logits", seed=0)
    with pytest.raises(SpecError, match="no spread"):
        kappaone.init_(_model(), "unit_logits", seed=0, example=torch.ones(1, 3, 16))
    with pytest.raises(SpecError, match="std=0"):
        kappaone.init_(_model(), "unit_logits(std=0)", seed=0, example=torch.eye(16)[None])
