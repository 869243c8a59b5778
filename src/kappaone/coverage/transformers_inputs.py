"""An input that runs a small model of transformers, from what its `forward` takes.

Text is random tokens, all different; pictures and sounds are noise. Where a model mixes them, the text holds as many
placeholder tokens as its tower gives features, counted by running the tower.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.coverage.transformers_odd_inputs import CROPS, FRAMES, MASKED, ODD, VALUES
from kappaone.coverage.transformers_shrink import entries, is_config

BATCH, LENGTH = 2, 16
_GRID = 4

Inputs = dict[str, Any]


def example(name: str, model: Any) -> Inputs:
    """Keyword inputs for a small model.

    Args:
        name: the model type; only the table of exceptions asks for it.
        model: the small model.

    Returns:
        Keyword arguments of its `forward`.
    """
    takes = set(inspect.signature(model.forward).parameters)
    inputs: Inputs = {}
    _see(name, model, takes, inputs)
    _hear(name, model, takes, inputs)
    _read(model, takes, inputs)
    if name in ODD:
        inputs = ODD[name](model, inputs)
    _place(model, takes, inputs)
    if name in MASKED:
        inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    return inputs


def lookup(config: Any, *keys: str, default: Any = None) -> Any:
    """The first entry of one of these names in a configuration or, breadth first, in its parts."""
    level = [config]
    while level:
        for key in keys:
            for part in level:
                if getattr(part, key, None) is not None:
                    return getattr(part, key)
        level = [value for part in level for value in entries(part).values() if is_config(value)]
    return default


# --- pictures ---------------------------------------------------------------------------------------------------------


def _see(name: str, model: Any, takes: set[str], inputs: Inputs) -> None:
    vision = _vision(model.config)
    gridded = "image_grid_thw" in takes or "grid_thw" in takes
    if gridded and ("pixel_values" in takes or "hidden_states" in takes):
        merge = lookup(vision, "spatial_merge_size", "merge_size", default=1)
        merge = merge if isinstance(merge, int) else merge[0]
        side = max(_GRID, 2 * merge)
        grid = torch.tensor([[1, side, side]] * BATCH)
        inputs["image_grid_thw" if "image_grid_thw" in takes else "grid_thw"] = grid
        patch = lookup(vision, "patch_size", default=14)
        patch = patch if isinstance(patch, int) else patch[0]
        channels = lookup(vision, "in_channels", "num_channels", default=3)
        width = channels * lookup(vision, "temporal_patch_size", "patch_temporal", default=1) * patch**2
        key = "pixel_values" if "pixel_values" in takes else "hidden_states"
        inputs[key] = torch.randn(BATCH * side * side, width)
        return
    key = "pixel_values" if "pixel_values" in takes else "pixel_values_videos"
    if key not in takes or getattr(model.config, "vision_config", model.config) is None:
        return
    size = lookup(vision, "image_size", "input_size", default=_timm_size(model))
    height, width = (size, size) if isinstance(size, int) else (size[-2], size[-1])
    channels = lookup(vision, "num_channels", "in_channels", "in_chans", default=3)
    channels = channels if isinstance(channels, int) else 3
    shape: tuple[int, ...] = (BATCH, channels, int(height), int(width))
    if name in CROPS:
        shape = (BATCH, CROPS[name], *shape[1:])
    elif name in FRAMES or key == "pixel_values_videos":
        frames = lookup(vision, "num_frames", "frames_per_clip", default=4)
        shape = (BATCH, int(frames), *shape[1:])
    inputs[key] = torch.randn(shape)


def _timm_size(model: Any) -> int:
    """The picture size of a tower that timm built and that takes no other; 64 without one."""
    for module in model.modules():
        size = getattr(getattr(module, "patch_embed", None), "img_size", None)
        if size is not None:
            return int(size[0])
    return 64


def _vision(config: Any) -> Any:
    for key in ("vision_config", "image_config", "visual_config", "backbone_config"):
        part = getattr(config, key, None)
        if is_config(part):
            return _vision(part) if key != "backbone_config" else part
    for key in ("thinker_config",):
        if is_config(getattr(config, key, None)):
            return _vision(getattr(config, key))
    return config


# --- sounds -----------------------------------------------------------------------------------------------------------


def _hear(name: str, model: Any, takes: set[str], inputs: Inputs) -> None:
    config = model.config
    if "input_features" in takes and getattr(config, "audio_config", config) is not None:
        audio = next((getattr(config, k) for k in ("audio_config", "encoder_config", "audio_encoder_config", "speech_config")
                      if is_config(getattr(config, k, None))), config)  # fmt: skip
        bins = int(lookup(audio, "num_mel_bins", "feature_size", "input_dim", "input_feat_size", "feature_projection_input_dim",
                          "input_feat_per_channel", "num_mels", "subsampling_input_dim", default=80))  # fmt: skip
        bins *= int(lookup(audio, "num_stacked_frames", default=1))
        positions = lookup(audio, "max_source_positions", default=None)
        frames = 2 * positions if isinstance(positions, int) else 64
        first = next((m for m in model.modules() if isinstance(m, nn.Conv1d)), None)
        by_channel = first is not None and first.in_channels == bins
        inputs["input_features"] = torch.randn((BATCH, bins, frames) if by_channel else (BATCH, frames, bins))
        for mask in ("input_features_mask", "feature_attention_mask", "padding_mask"):
            if mask in takes:
                inputs[mask] = torch.ones(BATCH, frames, dtype=torch.long)
    if "input_values" in takes:
        channels = lookup(config, "audio_channels", "channels", default=None) if name in VALUES else None
        length = VALUES.get(name, 7680)
        inputs["input_values"] = torch.randn((BATCH, channels or 1, length) if name in VALUES else (BATCH, length))
        if "padding_mask" in takes:
            inputs["padding_mask"] = torch.ones(BATCH, length, dtype=torch.long)


# --- text -------------------------------------------------------------------------------------------------------------


def _read(model: Any, takes: set[str], inputs: Inputs) -> None:
    if "input_ids" in takes:
        inputs["input_ids"] = tokens(model.config)
    if "decoder_input_ids" in takes:
        inputs["decoder_input_ids"] = tokens(model.config, LENGTH - 4, "decoder_vocab_size", "vocab_size")
    if "bbox" in takes and "input_ids" in takes:
        corners = torch.randint(0, 100, (*inputs["input_ids"].shape, 2))
        inputs["bbox"] = torch.cat([corners, corners + 1 + torch.randint(0, 100, corners.shape)], dim=-1)


def tokens(config: Any, length: int = LENGTH, *keys: str) -> Tensor:
    """(2, length) token numbers, all different in a row, in the part of the vocabulary without special tokens."""
    size = int(lookup(config, *(keys or ("vocab_size",)), default=100))
    special = _special(config)
    plain = torch.tensor(
        [i for i in range(8 if size > 64 else 0, size if size < 256 else size // 2) if i not in special]
    )
    if len(plain) < length:
        return plain[torch.randint(0, len(plain), (BATCH, length))]
    return torch.stack([plain[torch.randperm(len(plain))[:length]] for _ in range(BATCH)])


def _special(config: Any) -> set[int]:
    """Every token number that the configuration names."""
    found: set[int] = set()
    for key, value in entries(config).items():
        if is_config(value):
            found |= _special(value)
        elif "token" in key or key.endswith(("_id", "_index", "_idx")):
            found |= {v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, int)}
    return found


# --- placeholders -----------------------------------------------------------------------------------------------------

_KINDS = (
    ("get_image_features", "pixel_values", ("image_token_id", "image_token_index", "img_context_token_id", "media_placeholder_token_id"), 1),
    ("get_audio_features", "input_features", ("audio_token_id", "audio_token_index"), 3),
    ("get_audio_features", "input_values", ("audio_token_id", "audio_token_index"), 3),
)  # fmt: skip


def _place(model: Any, takes: set[str], inputs: Inputs) -> None:
    """Put as many placeholder tokens into the text as there are features for each picture or sound."""
    if "input_ids" not in inputs:
        return
    ids = inputs["input_ids"]
    kinds = torch.zeros_like(ids)
    for method, key, names, kind in _KINDS:
        holders = (model.config, getattr(model, "vocabulary_mapping", None))
        token = next((getattr(h, n) for h in holders for n in names if isinstance(getattr(h, n, None), int)), None)
        parts = (model, getattr(model, "model", None), getattr(model, "encoder", None))
        tower = next((getattr(part, method) for part in parts if hasattr(part, method)), None)
        if token is None or key not in inputs or tower is None or bool((ids == token).any()):
            continue
        count = _features(model, tower, inputs) // BATCH
        held = torch.full((BATCH, count), token)
        ids = torch.cat([ids[:, :4], held, ids[:, 4:]], dim=1)
        kinds = torch.cat([kinds[:, :4], torch.full_like(held, kind), kinds[:, 4:]], dim=1)
    inputs["input_ids"] = ids
    if "mm_token_type_ids" in takes and len(ids.unique()):
        inputs["mm_token_type_ids"] = kinds


def _features(model: Any, method: Callable[..., Any], inputs: Inputs) -> int:
    """How many vectors of the text's width the tower gives."""
    takes = inspect.signature(method).parameters
    sizes = takes.get("image_sizes")
    if sizes is not None and sizes.default is inspect.Parameter.empty and "image_sizes" not in inputs:
        inputs["image_sizes"] = torch.tensor([inputs["pixel_values"].shape[-2:]] * BATCH)
    handed = {key: value for key, value in inputs.items() if key in takes and key != "input_ids"}
    with torch.no_grad():
        out = method(**handed)
    if getattr(out, "deepstack_features", None) and getattr(out, "pooler_output", None) is None:
        out = out.deepstack_features[0][1]  # (layer, features), for each layer that gets some
    for name in ("pooler_output", "last_hidden_state"):
        if getattr(out, name, None) is not None:
            out = getattr(out, name)
            break
    while isinstance(out, (list, tuple)) and out and not isinstance(out[0], Tensor):
        out = out[0]
    total = sum(int(t.numel()) for t in out) if isinstance(out, (list, tuple)) else int(out.numel())
    return total // int(model.get_input_embeddings().weight.shape[-1])
