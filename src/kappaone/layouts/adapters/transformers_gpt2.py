"""transformers' GPT-2 attention: Conv1D `c_attn` (in, 3 x out), so that [Q|K|V] lie along columns."""

from __future__ import annotations

from kappaone.layouts.adapters.shared import config_law
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site


def describe(site: Site) -> AttentionLayout | None:
    """The layout of GPT-2's self-attention, or None (its cross-attention is another layout)."""
    needed = ("num_heads", "head_dim", "embed_dim", "split_size", "c_attn", "c_proj")
    if not all(hasattr(site.module, name) for name in needed) or site.children() != {"c_attn", "c_proj"}:
        return None
    if site.attribute("is_cross_attention", False) or site.own_parameters():
        return None
    heads, size = int(site.attribute("num_heads")), int(site.attribute("head_dim"))
    fused, out = site.projection("c_attn"), site.projection("c_proj")
    if fused is None or out is None or not fused.transposed or fused.outputs != 3 * heads * size:
        return None
    rows, scale = heads * size, site.attribute("scaling")
    if scale is None:  # before 5.x gained `scaling`
        scale = size**-0.5 if site.attribute("scale_attn_weights", True) else 1.0
        if site.attribute("scale_attn_by_inverse_layer_idx", False):
            scale /= float(site.attribute("layer_idx") + 1)
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="transformers.gpt2",
        q=fused.rows(range(0, rows, size), size),
        k=fused.rows(range(rows, 2 * rows, size), size),
        v=fused.rows(range(2 * rows, 3 * rows, size), size),
        o=out.columns(heads),
        scale=float(scale),
        causal=True,
        zero_bias=True,
        laws=config_law(site),
    )
