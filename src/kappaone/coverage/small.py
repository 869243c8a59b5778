"""A shrunken architecture with an input that runs the whole of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Small:
    """A model that is small enough to probe, of the same attention classes and switches as the real one.

    Attributes:
        model: the shrunken model, in evaluation mode on the CPU, with fresh random weights.
        example: an input that runs it: a tensor, a tuple of positional, or a dict of keyword inputs.
        note: what the instance leaves out, if anything.
    """

    model: nn.Module
    example: Any
    note: str = ""
