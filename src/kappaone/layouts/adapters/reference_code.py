"""Reference implementations that people copy into files of their own: nanoGPT, nanochat, Meta's and Mistral's Llama.

No package loads them, so that they are asked about every module, and each must be known by its attributes, its shapes
and by the words of its own forward: a word that these implementations do not use (a norm, another split) makes it
another attention, which is refused and wants a spec.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.adapters import code
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Projection, Site

SOURCE = "reference.code"
# Methods and functions that change no order: shapes, masks, softmax, dropout.
_COMMON = {
    *("size", "shape", "view", "transpose", "contiguous", "reshape", "torch", "nn", "functional", "F", "math", "sqrt"),
    *("scaled_dot_product_attention", "softmax", "matmul", "masked_fill", "float", "dropout", "training", "type_as"),
    *("flash", "bias", "attn_dropout", "resid_dropout", "n_head", "n_embd", "head_dim", "dtype", "device", "bool"),
    *("tril", "ones", "zeros", "triu", "is_causal", "to", "mask", "scale", "sdpa", "Tensor", "inf"),
}
_NANOGPT = _COMMON | {"c_attn", "c_proj", "split", "chunk"}
_NANOCHAT = _COMMON | {
    *("c_q", "c_k", "c_v", "c_proj", "n_kv_head", "apply_rotary_emb", "norm", "repeat_kv", "repeat_interleave"),
    *("insert_kv", "get_layer_cache", "layer_idx", "ve_gate", "ve_gate_channels", "sigmoid", "unsqueeze", "flash_attn"),
    *("flash_attn_func", "flash_attn_with_kvcache", "get_pos", "advance", "cache_seqlens", "n_layers", "k_cache"),
    *("v_cache", "rms_norm", "cos", "sin", "prefix_len"),
}
_LLAMA = _COMMON | {
    *("wq", "wk", "wv", "wo", "n_heads", "n_kv_heads", "n_local_heads", "n_local_kv_heads", "n_rep", "repeats", "args"),
    *("apply_rotary_emb", "repeat_kv", "repeat_interleave", "cache_k", "cache_v", "expand", "freqs_cis", "q_norm"),
    *("k_norm", "inner_attention", "unflatten", "flatten", "update", "rope", "enable_gqa", "use_rope", "scaling"),
}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of one of these implementations, or None."""
    children = site.children()
    if site.own_parameters():
        return None
    if children == {"c_attn", "c_proj"}:
        return _nanogpt(site)
    if {"c_q", "c_k", "c_v", "c_proj"} <= children <= {"c_q", "c_k", "c_v", "c_proj", "ve_gate"}:
        return _nanochat(site)
    if {"wo"} <= children and (children & {"wq", "qkv_linear"}):
        return _llama(site)
    return None


def _words(site: Site) -> set[str]:
    return {name for item in code.codes(site.module) for name in item.co_names}


def _number(site: Site, *names: str) -> int | None:
    found = next((site.attribute(name) for name in names if isinstance(site.attribute(name), int)), None)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 1 else None


def _nanogpt(site: Site) -> AttentionLayout | None:
    part, out = site.projection("c_attn"), site.projection("c_proj")
    heads, width = _number(site, "n_head"), _number(site, "n_embd")
    words = _words(site)
    if part is None or out is None or heads is None or width is None or part.transposed or width % heads:
        return None
    if (part.outputs, part.inputs, out.outputs, out.inputs) != (3 * width, width, width, width):
        return None
    if not words or not words <= _NANOGPT or not code.names_in_order(site.module, "q", "k", "v"):
        return None
    if not {"c_attn", "n_head", "transpose"} <= words or not words & {"split", "chunk"}:
        return None
    if any(3 in item.co_consts for item in code.codes(site.module)):
        return None  # axes (1, 2) are swapped, and no others: head_dim outermost would need the last one
    rows = fused_rows(part, "q k v", heads=heads, size=width // heads)
    law = Law("normal", 0.02, "nanoGPT: normal_(std=0.02)")
    return _layout(site, rows, out, heads, {}, (law, _torch_law(part)))


def _nanochat(site: Site) -> AttentionLayout | None:
    parts = [site.projection(name) for name in ("c_q", "c_k", "c_v")]
    heads, kv_heads, size = _number(site, "n_head"), _number(site, "n_kv_head"), _number(site, "head_dim")
    words, out = _words(site), site.projection("c_proj")
    if heads is None or kv_heads is None or size is None or out is None or not words or not words <= _NANOCHAT:
        return None
    rows = _separate(parts, heads, kv_heads, size)
    facts: dict[str, Any] = {
        "rotary": "apply_rotary_emb" in words,
        "qk_norm": bool(words & {"norm", "rms_norm"}),
        "extra": "a gated value embedding is added to the values" if "ve_gate" in site.children() else None,
    }
    return _layout(site, rows, out, heads, {name: value for name, value in facts.items() if value}, ())


def _llama(site: Site) -> AttentionLayout | None:
    """`wq`, `wk`, `wv`, `wo`, here or in `qkv_linear`, or torchtitan's `qkv_linear.wqkv`."""
    heads = _number(site, "n_local_heads", "n_heads", "n_head")
    kv_heads = _number(site, "n_local_kv_heads", "n_kv_heads") or heads
    size, out, words = _number(site, "head_dim"), site.projection("wo"), _words(site)
    known = {"wq", "wk", "wv", "wo", "qkv_linear", "q_norm", "k_norm"}
    weighty = {name for name in site.children() if next(getattr(site.module, name).parameters(), None) is not None}
    if heads is None or kv_heads is None or size is None or out is None or not weighty <= known:
        return None
    # "repeat" would lay the key/value heads out modulo, not one after the other.
    if not words or not words <= _LLAMA | site.children() | {"qkv_linear", "apply_rotary_emb"}:
        return None
    inner = site.attribute("qkv_linear")
    fused = None if inner is None else site.projection("qkv_linear.wqkv")
    rows: dict[str, RoleRows] | None
    if fused is not None:
        # torchtitan keeps each key/value group's queries, key and value together.
        same = all(getattr(inner, name, None) == value for name, value in (("n_heads", heads), ("head_dim", size)))
        rows = fused_rows(fused, "group(q k v)", heads=heads, kv_heads=kv_heads, size=size) if same else None
    else:
        prefix = "qkv_linear." if inner is not None else ""
        parts = [site.projection(f"{prefix}{name}") for name in ("wq", "wk", "wv")]
        rows = _separate(parts, heads, kv_heads, size)
    facts: dict[str, Any] = {
        "rotary": bool(words & {"apply_rotary_emb", "rope"}),
        "qk_norm": bool(weighty & {"q_norm", "k_norm"}),
    }
    return _layout(site, rows, out, heads, {name: value for name, value in facts.items() if value}, ())


def _separate(parts: list[Projection | None], heads: int, kv_heads: int, size: int) -> dict[str, RoleRows] | None:
    q, k, v = parts
    if q is None or k is None or v is None:
        return None
    if (q.outputs, k.outputs, v.outputs) != (heads * size, kv_heads * size, kv_heads * size) or heads % kv_heads:
        return None
    return {role: part.rows(range(0, part.outputs, size), size) for role, part in (("q", q), ("k", k), ("v", v))}


def _torch_law(part: Projection) -> Law:
    return Law("uniform", (3 * part.inputs) ** -0.5, "torch: nn.Linear's default")


def _layout(
    site: Site,
    rows: dict[str, RoleRows] | None,
    out: Projection,
    heads: int,
    facts: dict[str, Any],
    laws: tuple[Law, ...],
) -> AttentionLayout | None:
    if rows is None or out.inputs != heads * rows["v"].size or not isinstance(site.module, nn.Module):
        return None
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source=SOURCE,
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=out.columns(heads),
        scale=rows["q"].size ** -0.5,
        causal=None,
        facts=facts,
        laws=laws,
    )
