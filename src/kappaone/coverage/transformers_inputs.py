"""An input that runs a small model of transformers, from what its `forward` takes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from kappaone.coverage.transformers_shrink import entries, is_config

BATCH, LENGTH = 2, 16


def example(name: str, model: Any) -> dict[str, Tensor]:
    """Keyword inputs for a small model.

    Args:
        name: the model type; only the table of exceptions asks for it.
        model: the small model.

    Returns:
        Keyword arguments of its `forward`.
    """
    takes = inspect.signature(model.forward).parameters
    config = model.config
    inputs: dict[str, Any] = {}
    if "input_ids" in takes:
        inputs["input_ids"] = _ids(config)
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = _ids(config, LENGTH - 4)
    if "pixel_values" in takes:
        inputs["pixel_values"] = _pixels(config)
    return inputs


def lookup(config: Any, key: str, default: Any = None) -> Any:
    """The first entry of that name in a configuration or, breadth first, in its parts."""
    level = [config]
    while level:
        for part in level:
            if getattr(part, key, None) is not None:
                return getattr(part, key)
        level = [value for part in level for value in entries(part).values() if is_config(value)]
    return default


def _ids(config: Any, length: int = LENGTH) -> Tensor:
    size = int(lookup(config, "vocab_size", 100))
    high = max(8, size // 4)
    return torch.randint(min(5, high // 2), high, (BATCH, length))


def _pixels(config: Any) -> Tensor:
    size = lookup(config, "image_size", 64)
    height, width = (size, size) if isinstance(size, int) else size[-2:]
    return torch.randn(BATCH, int(lookup(config, "num_channels", 3)), int(height), int(width))
