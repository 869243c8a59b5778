"""Modules that make numbers of their own, or cast to float32, run in float64 on the bench; nothing global stays changed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.precision import double_precision
from kappaone.layouts.probe import verify


class Masked(nn.Module):
    """Causal attention in the ways of XGLM, CANINE and Gemma 4's audio."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t(x).unflatten(-1, (2, 4)).transpose(1, 2) for t in (self.q, self.k, self.v))
        if self.way == "float":
            q, k, v = q.float() * self.gain, k.to(torch.float32), v.to(dtype=torch.float32)
        logits = q @ k.mT * 0.5
        least, allowed = torch.finfo(logits.dtype).min, torch.ones(x.shape[1], x.shape[1], dtype=torch.long).tril()
        if self.way == "overflow":
            logits = logits + (1 - allowed) * -1e30
            logits = torch.max(logits, torch.full((), least))
        elif self.way == "product":
            logits = logits + (1.0 - allowed.float()) * least
        probabilities = logits.softmax(-1, dtype=torch.float32)
        out: Tensor = self.o((probabilities @ v).transpose(1, 2).flatten(2).to(x.dtype))
        return out


@pytest.mark.parametrize("way", ["overflow", "product", "float"])
def test_modules_with_numbers_of_their_own_are_probed(way: str) -> None:
    torch.manual_seed(0)
    model = Masked(way)
    told = {"heads": 2, "q": "q", "k": "k", "v": "v", "o": "o"}
    x = torch.randn(2, 6, 8)
    right, swapped = (
        find_attention(model, layouts=[AttentionSpec("", **{**told, **m})]) for m in ({}, {"q": "k", "k": "q"})
    )
    assert verify(model, right, x, rows_per_head=None).ok
    assert len(verify(model, swapped, x, rows_per_head=None).wrong) == 16
    assert torch.get_default_dtype() == torch.float32


def test_the_default_dtype_comes_back_after_an_error() -> None:
    def broken() -> None:
        with double_precision():
            assert torch.zeros(1).dtype == torch.float64
            assert torch.zeros(1, dtype=torch.float32).dtype == torch.float64
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        broken()
    assert torch.get_default_dtype() == torch.float32
