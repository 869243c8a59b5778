"""The bench under norms that lie over all heads at once, and modules that return two streams."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.probe import verify


class Normed(nn.Module):
    """Attention whose q and k, and whose output, are normalized over all heads at once."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(12, 12) for _ in range(4))
        self.norm_q, self.norm_k, self.norm_out = nn.RMSNorm(12), nn.RMSNorm(12), nn.LayerNorm(12)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            t.unflatten(-1, (3, 4)).transpose(1, 2) for t in (self.norm_q(self.q(x)), self.norm_k(self.k(x)), self.v(x))
        )
        out: Tensor = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.o(self.norm_out(out))


@pytest.fixture
def model() -> Normed:
    torch.manual_seed(0)
    return Normed()


def _wrong(model: nn.Module, **options: object) -> int:
    said = {"heads": 3, "q": "q", "k": "k", "v": "v", "o": "o", **options}
    layouts = find_attention(model, layouts=[AttentionSpec("", **said)])
    return len(verify(model, layouts, torch.randn(2, 6, 12), rows_per_head=None).wrong)


def test_heads_are_told_apart_under_norms_over_all_of_them(model: Normed) -> None:
    facts = {"qk_norm": "whole", "output_norm": True}
    assert _wrong(model, facts=facts) == 0
    assert _wrong(model, facts=facts, q="k", k="q") == 24
    assert _wrong(model, facts=facts, heads=6) > 0
    assert _wrong(model, facts=facts, order="dim") > 0


def test_norms_that_nobody_stated_are_seen(model: Normed) -> None:
    assert _wrong(model) == 36
