"""What a run leaves behind beside its metrics: `record.json`, digests of tensors, seconds by part."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kappaone._version import __version__
from kappaone.layouts import find_attention

RECORD_SCHEMA = 1
RECORD_NAME = "record.json"


def write_record(folder: Path, record: Mapping[str, Any]) -> Path:
    """Write `record.json` into a run's folder, whole or not at all, with its schema and kappaone's version.

    Args:
        folder: the run's folder; it exists.
        record: plain JSON values.

    Returns:
        The file.
    """
    path = folder / RECORD_NAME
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = {"schema": RECORD_SCHEMA, "kappaone": __version__, **record}
    temporary.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    os.replace(temporary, path)
    return path


def non_attention_digest(model: nn.Module) -> str:
    """SHA-256 over every parameter and buffer that no attention layer owns: names, dtypes, shapes, bits.

    Two arms of one seed must agree on it; the roles q, k, v and o of every layer, with their biases, are left out.

    Args:
        model: a model whose attention kappaone finds.

    Returns:
        64 hexadecimal digits.

    Examples:
        >>> from kappaone.recipes.images import ImageOptions, build_model
        >>> options = ImageOptions(embed_dim=16, depth=1, heads=2)
        >>> len({non_attention_digest(build_model(options, seed)) for seed in (0, 0, 1)})
        2
    """
    return digests(model)[0]


def digests(model: nn.Module) -> tuple[str, dict[str, str]]:
    """`non_attention_digest`, and the digest of each parameter and buffer by name.

    Args:
        model: a model whose attention kappaone finds.

    Returns:
        The digest of all that is not attention, and SHA-256 digests by name.
    """
    owned = set()
    for layer in find_attention(model):
        for role in (layer.q, layer.k, layer.v, layer.o):
            if role is not None:
                owned |= {role.parameter, role.bias}
    each = {name: _tensor_digest(tensor) for name, tensor in sorted(model.state_dict().items())}
    outside = hashlib.sha256()
    for name, digest in each.items():
        if name not in owned:
            outside.update(f"{name}:{digest}\n".encode())
    return outside.hexdigest(), each


def _tensor_digest(tensor: Tensor) -> str:
    found = hashlib.sha256(f"{tensor.dtype}:{tuple(tensor.shape)}:".encode())
    # As bytes, whatever the dtype: numpy has no bfloat16. A scalar has no last axis to view, hence the flattening.
    found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


class Clock:
    """Seconds by part of a run: a lap is added to its part.

    Examples:
        >>> clock = Clock()
        >>> clock.lap("data")
        >>> sorted(clock.seconds)
        ['data']
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, part: str) -> None:
        """End a part: the seconds since the last lap are its."""
        now = time.perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now
