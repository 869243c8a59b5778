"""A zoo of our own, whose architectures go right and wrong in every way that a row can tell."""

from __future__ import annotations

import os
import time

import torch
from torch import nn

from kappaone.coverage.small import Small
from kappaone.errors import SpecError


class Shuffled(nn.Module):
    """Attention that no adapter describes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.to_q(x) @ self.to_k(x).mT).softmax(-1) @ self.to_v(x)


def encoder(width: int, layers: int) -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(width, 4, 32, batch_first=True), layers)


BUILDERS = {
    "convolution": lambda: nn.Conv2d(3, 4, 3),
    "encoder_large": lambda: encoder(64, 6),
    "encoder_small": lambda: encoder(32, 3),
    "mixed": lambda: nn.Sequential(nn.MultiheadAttention(16, 4), Shuffled()),
    "shuffled": Shuffled,
    "stubborn": lambda: nn.MultiheadAttention(16, 4, bias=False),
}


def names() -> list[str]:
    return sorted([*BUILDERS, "broken"])


def on_meta(name: str) -> nn.Module:
    if name == "broken":
        raise SpecError("toys:broken cannot be built: its builder raises", "mend it")
    if name == "dies":
        os._exit(3)
    if name == "hangs":
        time.sleep(600)
    with torch.device("meta"):
        return BUILDERS[name]()


def small(name: str) -> Small | None:
    if name == "stubborn":
        return None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "mixed":
            return Small(nn.MultiheadAttention(16, 4), (torch.randn(5, 2, 16),) * 3)
        return Small(encoder(16, 2).eval(), torch.randn(2, 5, 16))


def why_not_small(name: str) -> str:
    return "it is stubborn"
