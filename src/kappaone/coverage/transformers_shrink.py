"""Shrink a configuration of transformers: every size small, every kind of block and every switch kept.

The rules read the name and value of an entry, never the model's class. What they keep:

* widths become one width, so that parts that fit each other still do; per-stage widths keep their ratios;
* heads become few: grouped stays grouped, multi-query stays multi-query, heads x head_dim that differs from the width
  still differs;
* layers: of every kind that the per-layer lists of the configuration tell apart, one (and two layers at least);
* experts, vocabularies, positions, windows and pictures become small, special tokens move into the vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from kappaone.coverage.transformers_table import CONFIG

WIDTH, FFN, HEADS, GROUPED, VOCAB, POSITIONS = 64, 96, 4, 2, 512, 256
_HEAD_DIM = WIDTH // HEADS
_MOST_LAYERS = 12

_WIDTHS = re.compile(
    r"^(\w+_)?(hidden_size|hidden_dim|d_model|embed_dim|embedding_size|embedding_dim|emb_dim|n_embd|projection_dim|project_dim"
    r"|projection_size|projector_size|proj_dim|output_dim|model_dim|feature_size_out|hidden_channels|dim|channels_out|lru_width"
    r"|encoder_hid_dim|proj_codevector_dim|codevector_dim|classifier_proj_size|pooler_output_size|embedding_projection_dim"
    r"|latents|ple_embed_dim|hidden_size_per_layer_input|adapter_input_size|feature_dim|mask_feature_size|condition_size)$"
)
_NOT_WIDTHS = re.compile(
    r"(head|rotary|rope|codebook|conv|patch|input|output_dim_list|state|time|vocab|d_kv|kv_|v_|tdnn|index|latent|low_rank"
    r"|linear_(key|value)|quantization|query_dim|mel|spkr|position|in_dim)"
)
_FFNS = re.compile(
    r"^(\w+_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|d_inner|n_inner|mlp_dim|dim_feedforward|feedforward_dim"
    r"|feed_forward_hidden_size|linear_units|intermediate_dim|intermediate_size_mlp|intermediate_channels|feedforward_size"
    r"|ffn_size|inner_dim|hidden_dim_ff|feed_forward_size|feed_forward_dim)$"
)
_HEAD_KEYS = re.compile(
    r"^(\w+_)?(num_attention_heads|num_heads|n_head|n_heads|attention_heads|num_head|heads|nheads)$"
)
_NOT_HEADS = re.compile(r"(linear|mamba|key_value|kv|index|conv)")
_KV_KEYS = re.compile(
    r"^(\w*?)(num_key_value_heads|num_kv_heads|kv_n_heads|num_global_key_value_heads|n_kv_heads|multi_query_group_num)$"
)
_HEAD_DIMS = re.compile(
    r"^(\w+_)?(head_dim|head_size|d_kv|d_head|dim_head|kv_channels|attention_head_size|attention_head_dim|key_dim)$"
)
_LAYER_KEYS = re.compile(
    r"^(\w+_)?(num_hidden_layers|num_layers|n_layer|n_layers|encoder_layers|decoder_layers|depth|layers|num_decoder_layers"
    r"|num_encoder_layers|num_blocks|l_layers|x_layers|r_layers)$"
)
_NOT_LAYERS = re.compile(
    r"(nextn|kv_shared|adapter|conv|feat_extract|residual|lstm|iou_head|mtp|proj|predictor|depth_mult|dense)"
)
_PATCHES = ("patch_size",)
_TOKENS = re.compile(r"(_token_id|_token_ids|_token_index|_token|_idx|_index|_token_offset|_id)$")
_EXPERTS = re.compile(
    r"^(\w+_)?(num_experts|n_routed_experts|num_local_experts|moe_num_experts|n_experts|num_routed_experts|zero_expert_num)$"
)
_TOP_K = re.compile(
    r"^(\w+_)?(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|top_k_experts|moe_top_k|num_selected_experts)$"
)
_POSITIONS = re.compile(
    r"^(\w+_)?(max_position_embeddings|n_positions|n_ctx|max_source_positions|max_target_positions|max_sequence_length|seq_length"
    r"|model_max_length|max_seq_len|max_length|max_2d_position_embeddings|max_position_embedding|max_text_len|context_length)$"
)
_WINDOWS = re.compile(
    r"^(sliding_window|sliding_window_size|local_attention|attention_window|window_size|attention_chunk_size|local_window_size)$"
)

Rule = Callable[[str, Any, dict[str, Any]], Any]


def shrink(name: str, config: Any) -> Any:
    """A small configuration of the same class.

    Args:
        name: the model type; only the table of exceptions asks for it.
        config: its default configuration; it is not changed.

    Returns:
        The small configuration.
    """
    tokens = _Tokens(_vocabularies(config))
    return _shrunk(config, tokens, CONFIG.get(name, {}))


def amended(config: Any, table: dict[str, Any]) -> Any:
    """The configuration with other entries; a dict under the name of a part goes into that part."""
    new = {}
    for key, value in table.items():
        part = getattr(config, key, None)
        new[key] = amended(part, value) if is_config(part) and isinstance(value, dict) else value
    kept = {key: value for key, value in entries(config).items() if is_config(value) and key not in new}
    return _rebuilt(config, {**kept, **new})


class _Tokens:
    """Special tokens beyond the small vocabulary get new numbers at its end, the same for the same."""

    def __init__(self, vocabularies: list[int]) -> None:
        self.size = min([VOCAB, *vocabularies])
        self.moved: dict[int, int] = {}

    def fit(self, token: int) -> int:
        if token < self.size // 4 or token < 0:
            return token
        if token not in self.moved:
            self.moved[token] = self.size - 1 - len(self.moved) % (self.size // 2)
        return self.moved[token]


def is_config(value: Any) -> bool:
    """Whether a value is a configuration in its own right."""
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def entries(config: Any) -> dict[str, Any]:
    """What a configuration holds, by name, private entries aside."""
    return {key: value for key, value in vars(config).items() if not key.startswith("_")}


def _vocabularies(config: Any) -> list[int]:
    found = []
    for key, value in entries(config).items():
        if is_config(value):
            found += _vocabularies(value)
        elif key == "vocab_size" and isinstance(value, int) and value > 16:
            found.append(value)
    return found


def _shrunk(config: Any, tokens: _Tokens, table: dict[str, Any]) -> Any:
    old = {**entries(config), "_out_indices": vars(config).get("_out_indices")}
    if str(old.get("model_type", getattr(config, "model_type", ""))).startswith("timm_"):
        return _rebuilt(config, table)  # the tower is timm's own architecture
    if _convolutional(old):
        small = {"image_size": 64} if isinstance(old.get("image_size"), int) and old["image_size"] > 64 else {}
        return _rebuilt(config, {**small, **table})
    new = _layers(old)
    for key, value in old.items():
        if key in new or key.startswith("_"):
            continue
        if is_config(value):
            new[key] = _shrunk(value, tokens, table.get(key, {}))
        elif isinstance(value, dict) and key not in ("id2label", "label2id"):
            continue
        else:
            changed = _value(key, value, old, tokens)
            if changed is not value:
                new[key] = changed
    _heads(old, new)
    _latent(old, new)
    _images(old, new)
    _staged(old, new)
    rope = _rope(old, new)
    if rope is not None:
        new["rope_parameters"] = rope
    for key, value in table.items():
        if not is_config(old.get(key)):
            base = new.get(key, old.get(key))
            new[key] = {**base, **value} if isinstance(value, dict) and isinstance(base, dict) else value
    return _rebuilt(config, new)


def _convolutional(old: dict[str, Any]) -> bool:
    """A network of convolutions alone stays as it is: nothing of it is probed, and its sizes hang together."""
    parts = any(is_config(value) for value in old.values())
    pictures = "num_channels" in old or "in_channels" in old
    return (
        pictures
        and not parts
        and "num_hidden_layers" not in old
        and not any(_HEAD_KEYS.match(key) or key == "attention_heads" for key in old)
    )


def _rebuilt(config: Any, new: dict[str, Any]) -> Any:
    """A configuration of the same class with the new entries; what follows from others follows anew."""
    known = {field.name for field in fields(config)} if is_dataclass(config) else set(entries(config))
    usual, own = vars(type(config)()), vars(config)
    if len(own.get("_out_indices") or ()) > 1 and "out_indices" not in new:
        new = {**new, "out_indices": own["_out_indices"]}
    # A part of a larger configuration differs from its class's own default; what the parent chose stays.
    given = {key: value for key, value in own.items() if key in known and _differs(value, usual.get(key))}
    chosen = {
        key: value
        for key, value in {**given, **new}.items()
        if (key in (*known, "out_indices", "per_layer_config") or is_config(value))
        and key not in ("model_type", "_out_indices", "_out_features")
    }
    result = type(config)(**chosen)
    for key, value in {**{k: v for k, v in entries(config).items() if k not in entries(result)}, **new}.items():
        if key not in chosen and not isinstance(getattr(type(result), key, None), property):
            setattr(result, key, value)
    return result


def _differs(value: Any, usual: Any) -> bool:
    return not is_config(value) and bool(value != usual)


def _value(key: str, value: Any, old: dict[str, Any], tokens: _Tokens) -> Any:
    """The small value of one entry that stands alone; the same object where it stays."""
    if isinstance(value, bool):
        return False if key == "use_cache" else value
    if isinstance(value, float):
        return WIDTH**-0.5 if key in ("initializer_range", "init_std") and value != 0 else value
    if isinstance(value, (list, tuple)):
        return _list_value(key, value, old, tokens)
    if not isinstance(value, int):
        return value
    small = _int_value(key, value, old, tokens)
    return value if small == value else small


def _int_value(key: str, value: int, old: dict[str, Any], tokens: _Tokens) -> int:
    if "vocab_size" in key:
        return min(value, VOCAB)
    if key == "max_source_positions":
        return min(value, 32)  # twice as many frames of sound
    if key == "num_pos_feats":
        return min(value, WIDTH // 2)  # a sine and a cosine
    if key in ("n_window", "n_window_infer"):
        return min(value, 16 if key == "n_window" else 64)
    if key == "num_queries":
        return min(value, 12)  # a choice among the few tokens of a small picture
    if key == "upsample_groups":
        return min(value, WIDTH)  # one group for each channel
    if key in ("adapter_input_size", "adapter_in_dim", "hidden_size_global", "output_channels"):
        return min(value, WIDTH)
    if key in ("base_channels", "num_filters"):
        return min(value, 32 if key == "base_channels" else 8)  # doubled at every stage
    if _EXPERTS.match(key):
        return min(value, 4)
    if _TOP_K.match(key):
        return min(value, 2)
    if key in ("n_group", "num_expert_group"):
        return min(value, 2)
    if key in ("topk_group", "n_limited_groups"):
        return min(value, 1)
    if _TOKENS.search(key):
        return tokens.fit(value)
    if _POSITIONS.match(key):
        return min(value, POSITIONS)
    if key == "window_size" and "spatial_merge_size" in old and isinstance(old.get("patch_size"), int):
        return min(value, 2 * int(old["spatial_merge_size"]) * int(old["patch_size"]))  # in pixels
    if _WINDOWS.match(key):
        return min(value, 8)
    if _FFNS.match(key):
        return min(value, FFN if "moe" not in key and "expert" not in key else FFN // 2)
    if _WIDTHS.match(key) and not _NOT_WIDTHS.search(key):
        return min(value, WIDTH)
    return value


def _list_value(key: str, value: Any, old: dict[str, Any], tokens: _Tokens) -> Any:
    if not value or not all(isinstance(item, int) and not isinstance(item, bool) for item in value):
        return value
    if key in ("conv_dim", "decoder_in_channels"):
        return type(value)(min(item, WIDTH) for item in value)
    if _TOKENS.search(key):
        return type(value)(tokens.fit(item) for item in value)
    return value


# --- layers -----------------------------------------------------------------------------------------------------------

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


def _layers(old: dict[str, Any]) -> dict[str, Any]:
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
    return list(indices) if _numbers(indices) and len(indices) > 1 and not _numbers(old.get("depths")) else []  # type: ignore[arg-type]


# --- heads ------------------------------------------------------------------------------------------------------------


def _heads(old: dict[str, Any], new: dict[str, Any]) -> None:
    width = next(
        (
            old[key]
            for key in ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim")
            if isinstance(old.get(key), int)
        ),
        None,
    )
    small = min(width, WIDTH) if width else WIDTH
    for key, value in old.items():
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if _HEAD_KEYS.match(key) and not _NOT_HEADS.search(key):
            new[key] = min(value, HEADS)
        elif match := _KV_KEYS.match(key):
            heads = next(
                (
                    old[k]
                    for k in (f"{match[1]}num_attention_heads", "num_attention_heads", "n_heads", "num_heads")
                    if isinstance(old.get(k), int)
                ),
                value,
            )
            new[key] = min(HEADS, heads) if value == heads else 1 if value == 1 else min(GROUPED, value)
        elif _HEAD_DIMS.match(key) and not re.search(r"(qk|v_head|linear|mamba|index)", key):
            prefix = key.removesuffix("head_dim")
            heads = next(
                (
                    old[k]
                    for k in (f"{prefix}num_attention_heads", "num_attention_heads", "n_heads", "num_heads")
                    if isinstance(old.get(k), int)
                ),
                0,
            )
            few = min(heads, HEADS) or HEADS
            if not width or not heads or value * heads == width:
                new[key] = small // few
            else:
                new[key] = small // few * 2 if value * heads > width else max(8, small // few // 2)


def _latent(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Multi-head latent attention, indexers, linear attention and state spaces."""
    if isinstance(old.get("kv_lora_rank"), int):
        for key, size in (("kv_lora_rank", 32), ("q_lora_rank", 48), ("qk_nope_head_dim", 16), ("qk_rope_head_dim", 8)):
            if isinstance(old.get(key), int) and old[key] > 0:
                new[key] = size
        if old.get("qk_nope_head_dim") == old.get("qk_rope_head_dim"):
            new["qk_rope_head_dim"] = 16
        rope = new.get("qk_rope_head_dim", 0)
        if isinstance(old.get("v_head_dim"), int):
            new["v_head_dim"] = 16 if old["v_head_dim"] == old.get("qk_nope_head_dim") else 24
        if isinstance(old.get("qk_head_dim"), int):
            new["qk_head_dim"] = 16 + rope
        if isinstance(old.get("head_dim"), int):
            new["head_dim"] = rope if old["head_dim"] == old.get("qk_rope_head_dim") else 16 + rope
    sizes = {
        "index_head_dim": 16, "index_n_heads": 4, "index_topk": 8, "linear_num_heads": 4, "linear_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 16, "linear_value_head_dim": 16, "mamba_n_heads": 8, "mamba_d_head": 16,
        "mamba_chunk_size": 16, "ssm_state_size": 16, "state_size": 16, "mamba_d_state": 16,
    }  # fmt: skip
    for key, size in sizes.items():
        value = old.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and value > size and key not in new:
            new[key] = size
    if isinstance(old.get("rotary_dim"), int) and not isinstance(old["rotary_dim"], bool):
        before, after = _head_dim(old), _head_dim({**old, **new})
        if before and after:
            new["rotary_dim"] = max(4, old["rotary_dim"] * after // before // 2 * 2)
    if isinstance(old.get("v_head_dim"), int) and "v_head_dim" not in new:
        new["v_head_dim"] = new.get("head_dim", _HEAD_DIM)


def _rope(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    """Rotary parameters that go by the head's width."""
    rope = old.get("rope_parameters")
    if not isinstance(rope, dict):
        return None
    before, after = _head_dim(old), _head_dim({**old, **new})

    def fit(values: dict[str, Any]) -> dict[str, Any]:
        out = dict(values)
        section = out.get("mrope_section")
        if section and before and after:
            share = sum(section) / before
            out["mrope_section"] = _split(round(share * after), list(section))
        for key in ("short_factor", "long_factor"):
            if isinstance(out.get(key), list) and after:
                out[key] = out[key][: max(1, len(out[key]) * after // (before or after))]
        return {key: fit(value) if isinstance(value, dict) else value for key, value in out.items()}

    return fit(rope)


def _head_dim(values: dict[str, Any]) -> int | None:
    if isinstance(values.get("head_dim"), int):
        return int(values["head_dim"])
    width = next((values[k] for k in ("hidden_size", "n_embd", "d_model") if isinstance(values.get(k), int)), None)
    heads = next(
        (values[k] for k in ("num_attention_heads", "n_head", "n_heads") if isinstance(values.get(k), int)), None
    )
    return width // heads if isinstance(width, int) and isinstance(heads, int) else None


def _split(total: int, shares: list[int]) -> list[int]:
    """Whole numbers in the ratio of the shares, at least one each, that add up to the total."""
    out = [max(1, total * share // sum(shares)) for share in shares]
    while sum(out) < total:
        out[out.index(min(out))] += 1
    while sum(out) > total:
        out[out.index(max(out))] -= 1
    return out


# --- pictures ---------------------------------------------------------------------------------------------------------


def _images(old: dict[str, Any], new: dict[str, Any]) -> None:
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


def _staged(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Networks in stages: few blocks in each, widths in the same ratio, 16 for each head."""
    by_stage = [key for key in ("depths", "depth", "layer_depths") if _numbers(old.get(key))]
    if not by_stage:
        return
    for key in by_stage:
        new[key] = type(old[key])(min(int(d), 2) for d in old[key])
    heads_key = next((k for k in ("num_heads", "num_attention_heads", "num_head") if _numbers(old.get(k))), None)
    heads = [int(h) for h in old[heads_key]] if heads_key else None
    if heads_key and heads:
        few = math.gcd(*heads)
        new[heads_key] = type(old[heads_key])(h // few for h in heads)
    for key in ("hidden_sizes", "embed_dims", "embed_dim", "neck_hidden_sizes"):
        if _numbers(old.get(key)):
            new[key] = type(old[key])(stages([int(w) for w in old[key]], heads))
    if isinstance(old.get("window_size"), int) and heads:
        new["window_size"] = 4
    if heads and isinstance(old.get("embed_dim"), int):
        new["embed_dim"] = 16 * (heads[0] // math.gcd(*heads))
        new.pop("hidden_size", None)  # embed_dim times two for each stage


def _numbers(value: Any) -> bool:
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
