"""transformers' Conv1D attentions: GPT-2 and its kin. Weights are stored (in, out), so that roles lie along columns.

self-attention     `c_attn` = [Q|K|V]: GPT-2, Decision Transformer, ImageGPT, GPT
cross-attention    `q_attn` = Q, `c_attn` = [K|V]
"""

from __future__ import annotations

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.adapters.transformers_common import assemble, nearest_law, number, own_causal, real
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a GPT-2-like attention, or None."""
    cross = "q_attn" in site.children()
    expected = {"c_attn", "c_proj", "q_attn"} if cross else {"c_attn", "c_proj"}
    if site.children() != expected or site.own_parameters():
        return None
    if cross != bool(site.attribute("is_cross_attention", False)):
        return None
    fused, out, asking = (site.projection(name) for name in ("c_attn", "c_proj", "q_attn"))
    heads, width = number(site, "num_heads", "n_head"), number(site, "split_size")
    if fused is None or out is None or not fused.transposed or heads is None or width is None or width % heads:
        return None
    size = width // heads
    if cross:
        rows = fused_rows(fused, "k v", heads=heads, size=size)
        if rows is None or asking is None or asking.outputs != width:
            return None
        rows["q"] = asking.rows(range(0, width, size), size)
    elif (rows := fused_rows(fused, "q k v", heads=heads, size=size)) is None:
        return None
    scale = _scale(site, size)
    causal = own_causal(site)
    return assemble(
        site,
        "transformers.gpt2",
        rows,
        out,
        scale=scale,
        causal=not cross if causal is None else causal,
        facts={"cross": cross, "unscaled": scale == 1.0},
        laws=(*nearest_law(site), Law("normal", 0.02, "transformers: Conv1D's constructor")),
    )


def _scale(site: Site, size: int) -> float:
    stated = real(site, "scaling")
    if stated is not None:
        return stated
    # GPT says it by a flag `scale`, the others by `scale_attn_weights`.
    scaled = bool(site.attribute("scale_attn_weights", site.attribute("scale", True)))
    scale = float(size**-0.5) if scaled else 1.0
    if site.attribute("scale_attn_by_inverse_layer_idx", False):
        scale /= float(site.attribute("layer_idx") + 1)
    return scale
