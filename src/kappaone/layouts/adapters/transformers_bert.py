"""transformers' `query`, `key`, `value`: BERT and its kin, and the vision and audio models that took its names.

In BERT the output projection lies in a sibling module (`output.dense`); others hold it themselves. What else a module
holds is told apart exactly: every family below lists the children and parameters beside the three projections.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from kappaone.layouts.adapters.shared import is_rotary
from kappaone.layouts.adapters.transformers_common import (
    from_separate,
    held_as,
    inputs_of,
    is_cross,
    number,
    own_causal,
    real,
)
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Outside, Refusal, Site

_SOURCE = "transformers.bert"
_CONVOLVED = {"key_conv_attn_layer", "conv_kernel_layer", "conv_out_layer"}
_QKV = ("query", "key", "value")
_LAYOUT = {f"layout_{name}" for name in _QKV}
_GLOBAL = frozenset(f"{name}_global" for name in _QKV)
# Without parameters: activations, softmax modules and the like.
_INERT = {"softmax", "matmul_qk", "matmul_qkv", "act", "pool", "unfold"}
Facts = dict[str, Any]


@dataclass(frozen=True)
class _Family:
    """Children and own parameters beside query, key and value, where the output projection is, and what follows."""

    out: str | None = "sibling:output.dense"
    children: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    facts: Callable[[Site], Facts] = field(default=lambda site: {})


def _windows(site: Site) -> Facts:
    return {"windows": True, "position_bias": True}


def _cosine(site: Site) -> Facts:
    return {"cosine": True, "windows": True, "position_bias": True}


def _reduced(site: Site) -> Facts:
    return {"reduced_keys": True}


def _perceiver(site: Site) -> Facts:
    return {"cross": "layernorm2" in site.children()}


def _biased(site: Site) -> Facts:
    return {"position_bias": True}


def _global(site: Site) -> Facts:
    return {"windows": True, "extra": "tokens marked as global ask and answer by projections of their own, left alone"}


def _nystrom(site: Site) -> Facts:
    exact = site.attribute("num_landmarks") == site.attribute("seq_len")
    return {
        "approximate": None if exact else "nystrom",
        "extra": "a convolution of the values over tokens is added" if "conv" in site.children() else None,
    }


_FAMILIES = (
    _Family(),
    _Family("dense", frozenset({"dense", "LayerNorm"})),  # ALBERT: the norm follows
    _Family("dense", frozenset({"dense", "layer_norm"})),  # TVP
    _Family("out_proj", frozenset({"out_proj"})),
    _Family("proj", frozenset({"proj"})),
    _Family("output", frozenset({"output"})),
    _Family("output", frozenset({"output", "relative_attention_bias"}), facts=_biased),
    _Family("sibling:output.dense", own=frozenset({"relative_position_bias_table"}), facts=_windows),
    _Family(
        "sibling:output.dense", frozenset({"continuous_position_bias_mlp"}), frozenset({"logit_scale"}), facts=_cosine
    ),
    _Family("sibling:output.dense", frozenset({"relative_position_bias"}), facts=_biased),
    _Family("sibling:output.dense", frozenset({"sr", "layer_norm"}), facts=_reduced),
    _Family("sibling:output.dense", frozenset({"sequence_reduction", "layer_norm"}), facts=_reduced),
    _Family("proj", frozenset({"proj", "spatial_reduction", "layer_norm"}), facts=_reduced),
    _Family("sibling:output.dense", frozenset({"layernorm1"}), facts=_perceiver),
    _Family("sibling:output.dense", frozenset({"layernorm1", "layernorm2"}), facts=_perceiver),
    _Family("sibling:output.dense", frozenset({"conv"}), facts=_nystrom),
    _Family("sibling:output.dense", _GLOBAL, facts=_global),  # Longformer; LED's is the sibling itself
)


def describe(site: Site) -> AttentionLayout | Sequence[AttentionLayout] | Outside | Refusal | None:
    """The layout of an attention with `query`, `key` and `value`, or None."""
    children = site.children() - _INERT
    if not set(_QKV) <= children:
        return None
    if (reason := _unlike(site, children)) is not None:
        return reason
    rest = children - set(_QKV) - {f"{name}_activation" for name in (*_QKV, "output")}
    own = site.own_parameters()
    if rest == _LAYOUT and not own:
        return _two_streams(site)
    if rest == _CONVOLVED and not own:
        return _beside_convolution(site)
    family = next((item for item in _FAMILIES if item.children == rest and item.own == own), None)
    heads = number(site, "num_attention_heads", "n_heads", "num_heads")
    size = number(site, "attention_head_size", "key_value_proj_dim", "head_dim", "qk_channels_per_head")
    if family is None or heads is None or size is None:
        return None
    if "conv" in rest and number(site, "num_landmarks") is None:
        return None
    if "sibling" not in str(family.out) and "LayerNorm" not in rest and site.sibling("output.dense") is not None:
        return None  # which of the two reads the heads is not clear
    return from_separate(
        site,
        _SOURCE,
        _QKV,
        "sibling:output" if rest == _GLOBAL and site.sibling("output") is not None else family.out,
        heads=heads,
        size=size,
        value_size=number(site, "v_channels_per_head"),
        scale=None if "logit_scale" in own else _scale(site, size),
        facts={**_facts(site, size), **family.facts(site)},
        causal=own_causal(site),
    )


def _two_streams(site: Site) -> Sequence[AttentionLayout] | None:
    """LiLT: attention over the text and attention over the layout, whose logits are added."""
    heads, size = number(site, "num_attention_heads"), number(site, "attention_head_size")
    ratio = number(site, "channel_shrink_ratio")
    if heads is None or size is None or ratio is None:
        return None
    streams = (
        (_QKV, "output", size, ""),
        (tuple(f"layout_{n}" for n in _QKV), "layout_output", size // ratio, "layout"),
    )
    found = []
    for names, out, rows, suffix in streams:
        layout = from_separate(
            site,
            _SOURCE,
            (names[0], names[1], names[2]),
            f"sibling:{out}.dense",
            heads=heads,
            size=rows,
            scale=float(rows**-0.5),
            facts={"extra": "logits of the text and of the layout are added"},
            suffix=suffix,
        )
        if layout is None:
            return None
        found.append(layout)
    return found


def _beside_convolution(site: Site) -> AttentionLayout | None:
    """ConvBERT: the output projection reads the heads, then as many columns of a convolution."""
    heads, size = number(site, "num_attention_heads"), number(site, "attention_head_size")
    out = site.sibling("output.dense")
    if heads is None or size is None or out is None or out.inputs != 2 * heads * size:
        return None
    return from_separate(
        site,
        _SOURCE,
        _QKV,
        None,
        heads=heads,
        size=size,
        scale=float(size**-0.5),
        facts={"extra": "a convolution whose kernels are made from the queries runs beside the heads"},
        o=out.columns(heads, size=size),
    )


def _unlike(site: Site, children: set[str]) -> Outside | Refusal | None:
    """What has these projections and is no attention of this kind, by its switches."""
    if hasattr(site.module, "hash_code_len"):
        return Outside("tokens attend by the chance that random hashes collide, without a softmax")
    if hasattr(site.module, "approx_mode"):
        return Refusal("attention over blocks chosen at run time, in a kernel of its own")
    if site.attribute("quant_mode"):
        return Refusal("the projections are rounded to 8 bits in every forward pass (quant_mode)")
    if site.attribute("rotary_value"):
        return Refusal("the values are turned by rotary embeddings too, which is another map from tokens to values")
    if {"w2e_query", "e2w_query", "e2e_query"} <= children:
        return Refusal("four query projections, one for each pair of token kinds, meet one key projection")
    if inputs_of(site) == {"query", "key", "attention_mask"}:
        return Refusal("only scores are computed: the values are never used")
    groups = {getattr(site.attribute(name), "groups", 1) for name in _QKV}
    if groups != {1}:
        return Refusal("grouped convolutions: each head reads its own part of the channels")
    return None


def _scale(site: Site, size: int) -> float:
    """The factor on q.k: what the module says, unless it multiplies the queries in front (ESM, whose `scaling` is 1)."""
    stated = real(site, "scaling")
    if stated is None or (stated == 1.0 and hasattr(site.module, "position_embedding_type")):
        return float(size**-0.5)
    return stated


def _facts(site: Site, size: int) -> Facts:
    takes, config = inputs_of(site), site.attribute("config")
    kind = site.attribute("position_embedding_type")
    spatial = any(
        getattr(holder, name, False) is True
        for holder in (site.module, config)
        for name in ("has_relative_attention_bias", "has_spatial_attention_bias")
    )
    above, layers = site.parent(), number(site, "config.num_hidden_layers") or 1
    rotary = is_rotary(site) or (hasattr(site.module, "d_dim") and hasattr(site.module, "h_dim"))
    return {
        "rotary": rotary and kind in (None, "rotary"),
        "cross": _is_cross(site),
        "unscaled": _scale(site, size) == 1.0,
        "position_bias": spatial,
        "relative": "bbox_pos_emb" in takes,
        "shared": (number(site, "config.num_hidden_groups") or layers) < layers,
        "windows": any(hasattr(site.module, name) for name in ("num_random_blocks", "chunk_length"))
        or (above is not None and getattr(above[1], "local", False) is True),
        "extra": "values read other features than queries and keys"
        if {"query_tensor", "key_tensor", "value_tensor"} <= takes
        else None,
    }


def _is_cross(site: Site) -> bool:
    takes = inputs_of(site)
    if "context" in takes:
        return held_as(site) != "self"  # one class for both in LXMERT; its self-attention is handed its own tokens
    kinds = next((c for m in site.ancestors() if (c := getattr(m, "layers_types", None)) is not None), None)
    if isinstance(kinds, (list, tuple)):
        index = next((int(part) for part in site.name.split(".") if part.isdigit()), -1)
        if 0 <= index < len(kinds):
            return bool(kinds[index] == "cross")
    read = [site.projection(name) for name in _QKV]
    widths = {part.inputs for part in read if part is not None}
    return is_cross(site) or ("encoder_hidden_states" in takes and len(widths) > 1)
