"""Layers of a configuration of transformers: of every kind that its per-layer lists tell apart, one, in order."""

from __future__ import annotations

import re
from typing import Any

from kappaone.coverage.transformers_stages import numbers

_MOST_LAYERS = 12
_LAYER_KEYS = re.compile(
    r"^(\w+_)?(num_hidden_layers|num_layers|n_layer|n_layers|encoder_layers|decoder_layers|depth|layers|num_decoder_layers"
    r"|num_encoder_layers|num_blocks|l_layers|x_layers|r_layers)$"
)
_NOT_LAYERS = re.compile(
    r"(nextn|kv_shared|adapter|conv|feat_extract|residual|lstm|iou_head|mtp|proj|predictor|depth_mult|dense)"
)

_INDEX_LISTS = re.compile(
    r"(indexes|indices|idxs|_layer_ids|mlp_only_layers|moe_layers|cross_attention_layers|_blocks|_idx|layers_idx|source_layers"
    r"|layer_ids|_layers)$"
)
_THRESHOLDS = (
    "first_k_dense_replace",
    "num_dense_layers",
    "first_num_dense_layers",
    "n_dense_layers",
    "moe_layer_start_index",
    "num_kv_shared_layers",
)


def layers(old: dict[str, Any]) -> dict[str, Any]:
    """Layer counts and all that goes by layer: one layer of every kind, in order."""
    counts = {
        key: value
        for key, value in old.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > 0
        and _LAYER_KEYS.match(key) and not _NOT_LAYERS.search(key)
    }  # fmt: skip
    new: dict[str, Any] = {}
    for key, count in counts.items():
        main = key in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth", "layers", "encoder_layers")
        by_layer = _by_layer(old, count) if main else {}
        by_index = _by_index(old, count) if main else {}
        kept = _kept_layers(old, count, by_layer, by_index, main)
        new[key] = len(kept)
        new.update({name: type(values)(values[i] for i in kept) for name, values in by_layer.items()})
        for name, values in by_index.items():
            new[name] = type(values)(kept.index(i) for i in dict.fromkeys(values) if i in kept)
        if main and outputs(old):
            new["out_indices"] = list(range(len(kept) - len(outputs(old)) + 1, len(kept) + 1))
        if main:
            for name in _THRESHOLDS:
                limit = old.get(name)
                if isinstance(limit, int) and limit > 0:
                    threshold = count - limit if "shared" in name else limit
                    below = sum(i < threshold for i in kept)
                    new[name] = len(kept) - below if "shared" in name else below
    return new


def _by_layer(old: dict[str, Any], count: int) -> dict[str, Any]:
    return {
        name: values
        for name, values in old.items()
        if isinstance(values, (list, tuple)) and len(values) == count and count > 3 and name not in ("stage_names",)
        and not (name.startswith("conv_") or "kernel" in name or "stride" in name)
    }  # fmt: skip


def _by_index(old: dict[str, Any], count: int) -> dict[str, Any]:
    return {
        name: values
        for name, values in old.items()
        if isinstance(values, (list, tuple)) and not name.startswith("_") and _INDEX_LISTS.search(name) and values and len(values) < count
        and all(isinstance(i, int) and not isinstance(i, bool) and 0 <= i < count for i in values)
    }  # fmt: skip


def _kept_layers(
    old: dict[str, Any], count: int, by_layer: dict[str, Any], by_index: dict[str, Any], main: bool
) -> list[int]:
    thresholds = [old[name] if "shared" not in name else count - old[name] for name in _THRESHOLDS
                  if main and isinstance(old.get(name), int) and old[name] > 0]  # fmt: skip
    seen: dict[str, int] = {}
    for i in range(count):
        kind = repr((
            [values[i] for values in by_layer.values()],
            [i if name.startswith("out_") else i in values for name, values in by_index.items()],
            [i < limit for limit in thresholds],
        ))  # fmt: skip
        seen.setdefault(kind, i)
    kept = sorted(seen.values())[:_MOST_LAYERS]
    least = max(2, len(outputs(old))) if main else 2
    kept += [i for i in range(count) if i not in kept][: max(0, least - len(kept))]
    return sorted(kept)


def outputs(old: dict[str, Any]) -> list[int]:
    """Which stages a backbone hands out; empty for the last one alone, or where stages are not layers."""
    indices = old.get("_out_indices")
    return list(indices) if numbers(indices) and len(indices) > 1 and not numbers(old.get("depths")) else []  # type: ignore[arg-type]
