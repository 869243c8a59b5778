"""Heads of a configuration of transformers, few and of the same grouping, with what goes by their width."""

from __future__ import annotations

import re
from typing import Any

WIDTH, HEADS, GROUPED = 64, 4, 2
_HEAD_DIM = WIDTH // HEADS

HEAD_KEYS = re.compile(r"^(\w+_)?(num_attention_heads|num_heads|n_head|n_heads|attention_heads|num_head|heads|nheads)$")
_NOT_HEADS = re.compile(r"(linear|mamba|key_value|kv|index|conv)")
_KV_KEYS = re.compile(
    r"^(\w*?)(num_key_value_heads|num_kv_heads|kv_n_heads|num_global_key_value_heads|n_kv_heads|multi_query_group_num)$"
)
_HEAD_DIMS = re.compile(
    r"^(\w+_)?(head_dim|head_size|d_kv|d_head|dim_head|kv_channels|attention_head_size|attention_head_dim|key_dim)$"
)


def few_heads(old: dict[str, Any], new: dict[str, Any]) -> None:
    """Grouped heads stay grouped, one stays one, and heads x head_dim that differs from the width still differs."""
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
        if HEAD_KEYS.match(key) and not _NOT_HEADS.search(key):
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


def latent(old: dict[str, Any], new: dict[str, Any]) -> None:
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


def rope(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any] | None:
    """Rotary parameters that go by the head's width."""
    given = old.get("rope_parameters")
    if not isinstance(given, dict):
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

    return fit(given)


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
