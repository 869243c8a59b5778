"""Pictures and stages of a configuration of transformers: few patches, few blocks in each stage, widths in the same ratio."""

from __future__ import annotations

import math
from typing import Any


def images(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Pictures of a few patches; of more where every stage halves their grid."""
    image, patch = old.get("image_size"), old.get("patch_size")
    if isinstance(patch, (list, tuple)) and len(set(patch)) == 1:
        patch = patch[0]
    if not isinstance(patch, int):
        return
    merge = old.get("spatial_merge_size", 1)
    side = patch * 4 * (merge if isinstance(merge, int) else 1)
    if patch <= 4:
        side = patch * 32  # windows and stages: every stage halves the grid
    if isinstance(image, int) and image > side:
        new["image_size"] = side
        if old.get("image_embedding_size") == image // patch:
            new["image_embedding_size"] = side // patch
    elif isinstance(image, (list, tuple)) and image and all(isinstance(i, int) for i in image):
        new["image_size"] = type(image)(min(i, side) for i in image)


def staged(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Networks in stages: few blocks in each, widths in the same ratio, 16 for each head."""
    by_stage = [key for key in ("depths", "depth", "layer_depths") if numbers(old.get(key))]
    if not by_stage:
        return
    for key in by_stage:
        new[key] = type(old[key])(min(int(d), 2) for d in old[key])
    heads_key = next((k for k in ("num_heads", "num_attention_heads", "num_head") if numbers(old.get(k))), None)
    heads = [int(h) for h in old[heads_key]] if heads_key else None
    if heads_key and heads:
        few = math.gcd(*heads)
        new[heads_key] = type(old[heads_key])(h // few for h in heads)
    for key in ("hidden_sizes", "embed_dims", "embed_dim", "neck_hidden_sizes"):
        if numbers(old.get(key)):
            new[key] = type(old[key])(stages([int(w) for w in old[key]], heads))
    if isinstance(old.get("window_size"), int) and heads:
        new["window_size"] = 4
    if heads and isinstance(old.get("embed_dim"), int):
        new["embed_dim"] = 16 * (heads[0] // math.gcd(*heads))
        new.pop("hidden_size", None)  # embed_dim times two for each stage


def numbers(value: Any) -> bool:
    """Whether a value is a list of whole numbers."""
    if not isinstance(value, (list, tuple)):
        return False
    return bool(value) and all(isinstance(v, int) and not isinstance(v, bool) for v in value)


def stages(widths: list[int], heads: list[int] | None = None) -> list[int]:
    """Per-stage widths in the ratio of the given ones, 16 for each head.

    Examples:
        >>> stages([96, 192, 384, 768], [3, 6, 12, 24])
        [16, 32, 64, 128]
    """
    if heads and len(heads) == len(widths):
        common = math.gcd(*heads)
        return [16 * head // common for head in heads]
    common = min(widths)
    return [max(16, round(32 * width / common / 16) * 16) for width in widths]
