"""timm's `layers.attention.Attention`: ViT, DeiT and the many models that share it. Rows [Q|K|V], head-major."""

from __future__ import annotations

from typing import Any

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

_NEEDED = ("num_heads", "head_dim", "scale", "fused_attn", "qkv", "proj", "q_norm", "k_norm", "attn_drop")
# Attributes of attentions that hold no more and do more: rotary embeddings, relative positions.
_OTHERS = ("rotate_half", "num_prefix_tokens", "rel_pos", "use_rel_pos")
# Only these may hold parameters or children; anything else (a position table, a temperature) is another attention.
_KNOWN = {"qkv", "proj", "q_norm", "k_norm", "norm", "gate", "attn_drop", "proj_drop"}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of timm's plain attention, or None."""
    if not all(hasattr(site.module, name) for name in _NEEDED):
        return None
    if not site.children() <= _KNOWN or site.own_parameters() or any(hasattr(site.module, n) for n in _OTHERS):
        return None
    heads, size = int(site.attribute("num_heads")), int(site.attribute("head_dim"))
    qkv, proj = site.projection("qkv"), site.projection("proj")
    if qkv is None or proj is None or qkv.outputs != 3 * heads * size or proj.inputs != heads * size:
        return None
    rows = heads * size
    facts: dict[str, Any] = {}
    if site.children() & {"q_norm", "k_norm"}:
        facts["qk_norm"] = True
    if "norm" in site.children():
        facts["output_norm"] = True
    if "gate" in site.children():
        facts["gate"] = True
    width = qkv.inputs
    laws = (
        Law("normal", 0.02, "timm: trunc_normal_(std=.02)", bound=2.0),
        Law("uniform", (2 / (width + qkv.outputs)) ** 0.5, "timm: weight_init='jax', Xavier on the fused weight"),
        Law("uniform", (2 / (width + rows)) ** 0.5, "timm: weight_init='moco'"),
        Law("uniform", (3 * width) ** -0.5, "torch: nn.Linear's default"),
    )
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="timm.vit",
        q=qkv.rows(range(0, rows, size), size),
        k=qkv.rows(range(rows, 2 * rows, size), size),
        v=qkv.rows(range(2 * rows, 3 * rows, size), size),
        o=proj.columns(heads),
        scale=float(site.attribute("scale")),
        causal=None,
        facts=facts,
        zero_bias=True,
        laws=laws,
    )
