"""What timm calls attention and is not softmax(Q K^T) V with projections of its own, and what no layout can state."""

from __future__ import annotations

from collections.abc import Mapping

from kappaone.layouts.adapters.timm_shared import has, number
from kappaone.layouts.site import Outside, Refusal, Site

# What each does instead, by the attributes that it is known by.
_OUTSIDE: Mapping[tuple[str, ...], str] = {
    ("qkv", "aggreg", "kernel_func", "proj", "eps"): "linear attention (ReLU kernel, several scales)",
    ("qkv", "crpe", "proj", "scale", "num_heads"): "linear attention (the softmax of the keys runs over tokens)",
    ("qkv_proj", "out_proj", "embed_dim", "out_drop"): "linear attention (one context vector for all tokens)",
    ("to_query", "to_key", "w_g", "scale_factor", "final"): "linear attention (additive, one query for all tokens)",
    ("qkv", "norm_q", "norm_v", "conv_lambda", "dim_qk"): "a lambda layer (linear attention)",
    ("conv1", "conv_p", "conv_q", "conv2", "block_size", "groups"): "attention maps made of pooled features",
    (
        "v",
        "attn",
        "proj",
        "unfold",
        "kernel_size",
        "num_heads",
    ): "outlook attention: its weights are read off one token",
    ("group_conv3x3", "norm", "act", "projection"): "a grouped convolution",
    ("conv", "fc1", "fc2", "rsoftmax", "radix"): "a gate on channels (split attention)",
    ("fc_reduce", "fc_select", "num_paths"): "a gate on channels (selective kernels)",
    ("BCdt_proj", "dw", "hz_proj", "out_proj", "state_dim"): "a state space",
}


def describe(site: Site) -> Outside | Refusal | None:
    """Why the module is left alone or refused, or None."""
    for names, why in _OUTSIDE.items():
        if has(site, *names):
            return Outside(why)
    return _cascaded(site) or _global_queries(site) or _single_numbers(site)


def _cascaded(site: Site) -> Refusal | None:
    """EfficientViT (MSRA)."""
    if has(site, "qkvs", "dws", "proj", "num_heads", "key_dim", "val_dim"):
        return Refusal("each head has a projection of its own and reads what the head before put out")
    return None


def _global_queries(site: Site) -> Refusal | None:
    """GC ViT's global blocks: rows [K|V], the queries are made once for all blocks of a stage, without a W_Q."""
    if not has(site, "num_heads", "head_dim", "scale", "use_global", "rel_pos", "qkv", "proj"):
        return None
    heads, size, fused = number(site, "num_heads"), number(site, "head_dim"), site.projection("qkv")
    if site.attribute("use_global") and fused is not None and heads and size and fused.outputs == 2 * heads * size:
        return Refusal("its queries are global tokens that other modules make: there is no projection of them")
    return None


def _single_numbers(site: Site) -> Refusal | None:
    """CSATv2's attention over a map of one channel."""
    fused = site.projection("qkv")
    if (
        has(site, "pos_embed", "norm1", "norm2", "mlp")
        and fused is not None
        and (fused.outputs, fused.inputs) == (3, 1)
    ):
        return Refusal("its tokens, queries, keys and values are single numbers: there is no matrix to set")
    return None
