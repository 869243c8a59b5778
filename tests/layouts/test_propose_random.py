"""Proposals against the truth: modules whose rows are spread at random by index lists, which know nothing of orders."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from kappaone.layouts.propose import NoProposal, propose


class Spread(nn.Module):
    """Softmax attention; row `at[role][head][i]` of one weight is entry i of that head of that role."""

    def __init__(self, at: dict[str, list[list[int]]], width: int, scale: float, *, out: bool, bias: bool) -> None:
        super().__init__()
        rows = sum(len(block) for blocks in at.values() for block in blocks)
        self.wires = nn.Linear(width, rows, bias=bias)
        self.back = nn.Linear(len(at["q"]) * len(at["v"][0]), width) if out else None
        self.at, self.scale = at, scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y, group = self.wires(x), len(self.at["q"]) // len(self.at["k"])
        heads = []
        for head, rows in enumerate(self.at["q"]):
            q, k, v = y[..., rows], y[..., self.at["k"][head // group]], y[..., self.at["v"][head // group]]
            heads.append((self.scale * q @ k.mT).softmax(-1) @ v)
        mixed = torch.cat(heads, -1)
        return mixed if self.back is None else self.back(mixed)


def evenly_spread(random: np.random.Generator) -> dict[str, list[list[int]]]:
    """A true layout: axes of the weight in a random order, whatever a name for that order may be."""
    kv, group, size = int(random.integers(1, 4)), int(random.integers(1, 3)), int(random.integers(2, 5))
    roles = list(random.permutation(["q", "k", "v"]))
    counts = {"q": kv * group, "k": kv, "v": kv}
    cells = [(role, head, i) for role in roles for head in range(counts[role]) for i in range(size)]
    share = {"q": group, "k": 1, "v": 1}  # heads of each role in one key/value group
    keys = [
        lambda c: (roles.index(c[0]), c[1], c[2]),  # role, head, row
        lambda c: (c[1] // share[c[0]], roles.index(c[0]), c[1], c[2]),  # group, role, head, row
        lambda c: (c[2], roles.index(c[0]), c[1]),  # row, role, head
        lambda c: (c[2], c[1] // share[c[0]], roles.index(c[0]), c[1]),  # row, group, role, head
    ]
    cells.sort(key=keys[int(random.integers(len(keys)))])
    at = {role: [[0] * size for _ in range(counts[role])] for role in "qkv"}
    for row, (role, head, i) in enumerate(cells):
        at[role][head][i] = row
    return at


@pytest.mark.parametrize("seed", range(12))
def test_a_proposal_is_the_truth_or_there_is_none(seed):
    random = np.random.default_rng(seed)
    at = evenly_spread(random)
    width, scale = 12, float(random.uniform(0.2, 0.8))
    torch.manual_seed(seed)
    model = nn.Sequential(Spread(at, width, scale, out=bool(seed % 3), bias=bool(seed % 2)))
    (found,) = propose(model, torch.randn(2, 6, width))
    if isinstance(found, NoProposal):
        # Three columns of output tell heads from each other poorly; anything larger must be found.
        assert len(at["q"]) * len(at["v"][0]) <= 3, found.why
        return
    for role in "qkv":
        rows = found.layout.role(role)
        assert [list(range(s.start, s.stop, s.step)) for s in map(rows.span, range(rows.heads))] == at[role]
    assert found.layout.scale == pytest.approx(scale, rel=1e-4)
