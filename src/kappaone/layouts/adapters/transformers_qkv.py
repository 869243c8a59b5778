"""transformers' vision and audio attentions with one fused `qkv`: all q, then all k, then all v, head after head.

`proj` or `projection` is the output; TimeSformer's lies in a sibling (`output.dense`). LeViT fuses head by head
(q, k, v), its values being longer than its keys, and folds a batch norm behind each projection.
"""

from __future__ import annotations

from typing import Any

from kappaone.layouts.adapters.shared import fused_rows, is_rotary
from kappaone.layouts.adapters.transformers_common import (
    assemble,
    from_fused,
    number,
    of_transformers,
    own_causal,
    real,
)
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Outside, Site

_SOURCE = "transformers.qkv"
_HEADS = ("num_heads", "num_attention_heads")
_NORMS = {"q_norm", "k_norm"}
_RELATIVE = {"rel_pos_h", "rel_pos_w"}


def describe(site: Site) -> AttentionLayout | Outside | None:
    """The layout of an attention with a fused `qkv`, or None."""
    children, own = site.children(), site.own_parameters()
    if children == {"qkv_proj", "out_proj"} and not own and _one_query_row(site):
        return Outside("linear attention: one context vector for all tokens, without queries for each")
    if own == {"attention_biases"} and "activation" in children:
        return _levit(site, children)
    if "qkv" not in children or not own <= _RELATIVE or not of_transformers(site):
        return None
    out = next((name for name in ("proj", "projection") if name in children), None)
    if children - {"qkv", out} not in (set(), _NORMS):
        return None
    part = site.projection("qkv")
    if part is None or part.outputs % 3 or part.transposed:
        return None
    if (groups := number(site, "groups")) is not None and number(site, *_HEADS) is None:
        return _channels(site, out, groups, part.outputs // 3)
    heads = number(site, *_HEADS)
    if heads is None or (part.outputs // 3) % heads:
        return None
    size = part.outputs // 3 // heads
    if number(site, "head_dim") not in (None, size):
        return None
    return from_fused(
        site,
        _SOURCE,
        "qkv",
        "q k v",
        out or "sibling:output.dense",
        heads=heads,
        size=size,
        scale=real(site, "scaling", "scale") or float(size**-0.5),
        facts=_facts(site, own, heads * size),
        causal=own_causal(site),
        zero_bias=site.attribute("hidden_size_output") is None,  # Hiera sets its biases to initializer_range
    )


def _facts(site: Site, own: set[str], width: int) -> dict[str, Any]:
    stride = site.attribute("query_stride")
    pooled = stride is not None and stride != 1 and stride != (1, 1)
    return {
        "rotary": is_rotary(site),
        "qk_norm": _normed(site, width),
        "relative": bool(own & _RELATIVE),
        "pooled": pooled,
        "windows": _windowed(site),
    }


def _normed(site: Site, width: int) -> bool | str:
    """Whether queries and keys are normalized, and whether over all heads at once."""
    if not site.children() & _NORMS:
        return False
    gain = getattr(site.attribute("q_norm"), "weight", None)
    return "whole" if gain is not None and gain.numel() == width else True


def _windowed(site: Site) -> bool:
    """Whether tokens attend within windows: the module, its parent or (by the layer's number) the model says so."""
    mask_units = site.attribute("use_mask_unit_attn")
    if mask_units is not None:
        return bool(mask_units)
    above = site.parent()
    for holder in (site.module, above[1] if above else None):
        size = getattr(holder, "window_size", None)
        if isinstance(size, int):
            return size > 0
    whole = next((f for m in site.ancestors() if (f := getattr(m, "fullatt_block_indexes", None)) is not None), None)
    index = next((int(step) for step in reversed(site.name.split(".")) if step.isdigit()), None)
    return whole is not None and index is not None and index not in whole


def _channels(site: Site, out: str | None, groups: int, width: int) -> AttentionLayout | None:
    """Channels attend to channels of their group, over all tokens (DaViT's second kind, in Florence-2)."""
    if width % groups or out is None:
        return None
    return from_fused(
        site,
        _SOURCE,
        "qkv",
        "q k v",
        out,
        heads=groups,
        size=width // groups,
        scale=None,
        facts={"channel_attention": True},
        causal=own_causal(site),
    )


def _levit(site: Site, children: set[str]) -> AttentionLayout | None:
    """A batch norm follows each projection, values are longer than keys, and an activation precedes the output."""
    heads, size, ratio = (number(site, name) for name in ("num_attention_heads", "key_dim", "attention_ratio"))
    out = site.projection("projection")
    if heads is None or size is None or ratio is None or out is None:
        return None
    if children == {"queries_keys_values", "activation", "projection"}:
        fused, order, asking = site.projection("queries_keys_values"), "head(q k v)", None
    elif children == {"keys_values", "queries", "queries_subsample", "activation", "projection"}:
        fused, order, asking = site.projection("keys_values"), "head(k v)", site.projection("queries")
    else:
        return None
    if fused is None or (rows := fused_rows(fused, order, heads=heads, size=size, value_size=ratio * size)) is None:
        return None
    if "q" not in rows:
        if asking is None or asking.outputs != heads * size:
            return None
        rows["q"] = asking.rows(range(0, heads * size, size), size)
    facts = {"projection_norm": True, "position_bias": True, "activated": True}
    return assemble(site, _SOURCE, rows, out, scale=real(site, "scale"), facts=facts)


def _one_query_row(site: Site) -> bool:
    """MobileViT v2: one row of scores, then as many rows of keys and of values as there are channels."""
    part, out = site.projection("qkv_proj.convolution"), site.projection("out_proj.convolution")
    return part is not None and out is not None and part.outputs == 1 + 2 * out.inputs
