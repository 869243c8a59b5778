"""A model to test on: how it is built, an input, and what must be found in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn


@dataclass(frozen=True)
class ModelCase:
    """One row of the conformance suite.

    Attributes:
        name: for test ids.
        build: makes a fresh model, small.
        example: makes an input.
        layers: attention layers that must be found.
        heads: heads of each.
        kv_heads: key/value heads of each; heads if None.
        source: the adapter that must describe them.
        has_output: whether the output projection is known.
        facts: facts that each layout must state.
    """

    name: str
    build: Callable[[], nn.Module]
    example: Callable[[], Any]
    layers: int
    heads: int
    kv_heads: int | None = None
    source: str = ""
    has_output: bool = True
    facts: Mapping[str, Any] = field(default_factory=dict)

    def model(self, dtype: torch.dtype = torch.float32, *, seed: int = 0) -> nn.Module:
        """A fresh model, always the same, drawn in float32; the caller's random state is kept."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self.build().to(dtype)

    def input(self) -> Any:
        """An input, always the same."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            return self.example()
