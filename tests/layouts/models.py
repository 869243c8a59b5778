"""Small attention modules by hand, whose every row is labelled by nested loops; the oracle of spec and probe."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def labels(order: str, heads: int, kv_heads: int, head_dim: int) -> list[tuple[str, int]]:
    """(role, head) of every row of a fused weight, row by row."""
    kind, letters = ("blocked", order) if "(" not in order else (order.partition("(")[0], order.partition("(")[2])
    letters = [letter for letter in letters if letter in "qkv"]
    count = {"q": heads, "k": kv_heads, "v": kv_heads}
    group = heads // kv_heads
    out: list[tuple[str, int]] = []
    if kind == "blocked":
        for letter in letters:
            for head in range(count[letter]):
                for _ in range(head_dim):
                    out.append((letter, head))
        return out
    for g in range(kv_heads):
        for letter in letters:
            members = [g * group + i for i in range(group)] if letter == "q" else [g]
            for head in members:
                for _ in range(head_dim):
                    out.append((letter, head))
    return out


class Fused(nn.Module):
    """Causal attention on one fused weight whose rows lie as `labels` says; the weight may be a 1x1 convolution."""

    def __init__(self, order: str, heads: int, kv_heads: int, head_dim: int, width: int, *, conv: bool = False) -> None:
        super().__init__()
        self.labels = labels(order, heads, kv_heads, head_dim)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        rows = len(self.labels)
        self.wires = nn.Conv1d(width, rows, 1) if conv else nn.Linear(width, rows)
        self.out = nn.Linear(heads * head_dim, width)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for parameter in self.parameters():
                parameter.data.copy_(torch.randn_like(parameter) * width**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.wires(x.mT).mT if isinstance(self.wires, nn.Conv1d) else self.wires(x)
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        outputs = []
        for head in range(self.heads):
            kv = head // (self.heads // self.kv_heads)
            q, k, v = (
                y[..., [i for i, label in enumerate(self.labels) if label == (role, h)]]
                for role, h in (("q", head), ("k", kv), ("v", kv))
            )
            logits = (q @ k.mT * self.head_dim**-0.5).masked_fill(future, float("-inf"))
            outputs.append(logits.softmax(-1) @ v)
        return self.out(torch.cat(outputs, -1))


def tokens(batch: int, count: int, width: int, seed: int = 1) -> Tensor:
    return torch.randn(batch, count, width, generator=torch.Generator().manual_seed(seed))
