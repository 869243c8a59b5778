"""transformers' `q_proj`, `k_proj`, `v_proj`, `o_proj`: Llama and its kin (grouped kv, rotary), ViT since 5.24."""

from __future__ import annotations

from kappaone.layouts.adapters.shared import is_rotary, separate
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

_PROJECTIONS = {"q_proj", "k_proj", "v_proj", "o_proj"}
# Attributes by which attentions with these projections do something that this adapter does not describe.
_OTHERS = (
    "attn_logit_softcapping",
    "softcap",
    "sliding_window_pattern",
    "qk_norm",
    "attn_temperature_tuning",
    "use_qk_norm",
)


def describe(site: Site) -> AttentionLayout | None:
    """The layout of four plain projections, or None."""
    if site.children() != _PROJECTIONS or site.own_parameters() or not hasattr(site.module, "head_dim"):
        return None
    if any(site.attribute(name) for name in _OTHERS):
        return None
    size = site.attribute("head_dim")
    q, k = site.projection("q_proj"), site.projection("k_proj")
    config = site.attribute("config")
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if q is None or k is None:
        return None
    # A list (one number a stage, or a layer) is another family's config.
    if not (isinstance(size, int) and isinstance(heads, int) and isinstance(kv_heads, int)):
        return None
    # Clamped projections (OLMo, DBRX) are not linear, and a factor on the keys (Falcon-H1) is not in `scaling`.
    if getattr(config, "clip_qkv", None) is not None or site.attribute("key_multiplier", 1.0) != 1.0:
        return None
    return separate(
        site,
        ("q_proj", "k_proj", "v_proj"),
        heads=heads,
        kv_heads=kv_heads,
        size=size,
        out="o_proj",
        source="transformers.proj",
        facts={"rotary": True} if is_rotary(site) else {},
    )
