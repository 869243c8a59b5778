"""transformers' BERT-like self-attention: `query`, `key`, `value`; the output projection lies in a sibling module.

The same shape serves RoBERTa, ELECTRA and ViT before 5.24, whose attention is `attention.attention.query` with
`attention.output.dense` beside it.
"""

from __future__ import annotations

from kappaone.layouts.adapters.shared import is_rotary, separate
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

# Attributes of attentions with the same projections that do something else with them.
_OTHERS = (
    "num_landmarks",
    "num_random_blocks",
    "one_sided_attn_window_size",
    "num_hash",
    "chunk_length",
    "hash_code_len",
    "approx_mode",  # MRA: attention over sampled blocks
)


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a BERT-like self-attention, or None."""
    needed = ("num_attention_heads", "attention_head_size", "query", "key", "value")
    if not all(hasattr(site.module, name) for name in needed) or site.children() != {"query", "key", "value"}:
        return None
    if site.own_parameters() or any(hasattr(site.module, name) for name in _OTHERS):
        return None
    heads, size = site.attribute("num_attention_heads"), site.attribute("attention_head_size")
    if not isinstance(heads, int) or not isinstance(size, int):
        return None
    # RoFormer turns q and k, and where asked the values too, which is another map from tokens to values.
    rotary = is_rotary(site)
    if site.attribute("rotary_value"):
        return None
    return separate(
        site,
        ("query", "key", "value"),
        heads=heads,
        kv_heads=heads,
        size=size,
        out="sibling:output.dense",
        source="transformers.bert",
        facts={"rotary": True} if rotary else {},
    )
