"""Shrink a configuration of transformers: every size small, every kind of block and every switch kept.

The rules read the name and value of an entry, never the model's class. What they keep:

* widths become one width, so that parts that fit each other still do; per-stage widths keep their ratios;
* heads become few: grouped stays grouped, multi-query stays multi-query, heads x head_dim that differs from the width
  still differs;
* layers: of every kind that the per-layer lists of the configuration tell apart, one (and two layers at least);
* experts, vocabularies, positions, windows and pictures become small, special tokens move into the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

from kappaone.coverage.transformers_heads import HEAD_KEYS, WIDTH, few_heads, latent, rope
from kappaone.coverage.transformers_layers import layers
from kappaone.coverage.transformers_stages import images, staged
from kappaone.coverage.transformers_table import CONFIG

FFN, VOCAB, POSITIONS = 96, 512, 256

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
    new = layers(old)
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
    few_heads(old, new)
    latent(old, new)
    images(old, new)
    staged(old, new)
    turned = rope(old, new)
    if turned is not None:
        new["rope_parameters"] = turned
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
        and not any(HEAD_KEYS.match(key) or key == "attention_heads" for key in old)
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
