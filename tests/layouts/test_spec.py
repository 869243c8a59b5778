"""Specs that cannot be meant, and models that are not ready to be described."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError, SpecError
from kappaone.layouts import AttentionSpec, find_attention


@pytest.mark.parametrize(
    "wrong",
    [
        {"heads": 0},
        {"heads": "4"},
        {"heads": 4.0},
        {"heads": True},
        {"kv_heads": 0},
        {"kv_heads": 3},
        {"head_dim": -8},
        {"scale": 0},
        {"scale": "x"},
    ],
)
def test_numbers_of_a_spec_are_checked_when_it_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match=next(iter(wrong))):
        AttentionSpec(**{"heads": 4, "fused": "in_proj_weight", **wrong})


def test_roles_over_each_other_are_refused() -> None:
    spec = AttentionSpec(match="self_attn", heads=4, q="in_proj_weight", k="in_proj_weight", v="in_proj_weight")
    with pytest.raises(LayoutError, match="lie over each other"):
        find_attention(nn.TransformerEncoderLayer(32, 4), layouts=[spec])


class _Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj = nn.LazyLinear(96), nn.LazyLinear(32)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.proj(self.qkv(x)[..., :32])  # type: ignore[no-any-return]


def test_lazy_modules_say_what_to_do() -> None:
    with pytest.raises(LayoutError, match="run one forward pass first"):
        find_attention(_Lazy())
    spec = AttentionSpec(match="", heads=4, fused="qkv", o="proj")
    with pytest.raises(LayoutError, match="no shape yet"):
        find_attention(_Lazy(), layouts=[spec])
    model = _Lazy()
    model(torch.randn(1, 3, 32))
    assert find_attention(model, layouts=[spec])[0].head_dim == 8
