"""torchvision's own attentions: the windows of Swin v1 and v2, and MaxViT's. Rows [Q|K|V], head after head.

Its ViT uses `nn.MultiheadAttention`. MaxViT divides the logits by the root of the width, not of head_dim
(`scale_factor = feat_dim ** -0.5`, as the source of torchvision 0.29 has it), and Swin v2 measures cosines.
"""

from __future__ import annotations

from typing import Any

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

_SWIN = ("qkv", "proj", "num_heads", "window_size", "shift_size", "attention_dropout", "relative_position_index")
_MAXVIT = ("to_qkv", "merge", "n_heads", "head_dim", "scale_factor", "max_seq_len", "relative_position_bias_table")


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a shifted-window or partition attention, or None."""
    if all(hasattr(site.module, name) for name in _SWIN):
        return _swin(site)
    if all(hasattr(site.module, name) for name in _MAXVIT):
        return _maxvit(site)
    return None


def _swin(site: Site) -> AttentionLayout | None:
    cosine = "logit_scale" in site.own_parameters()
    children, own = ({"cpb_mlp"}, {"logit_scale"}) if cosine else (set(), {"relative_position_bias_table"})
    if site.children() != {"qkv", "proj", *children} or site.own_parameters() != own:
        return None
    # A list of two numbers: timm's and transformers' windows have another form.
    if not isinstance(site.attribute("shift_size"), (list, tuple)):
        return None
    heads = int(site.attribute("num_heads"))
    facts: dict[str, Any] = {"position_bias": True, "windows": True, **({"cosine": True} if cosine else {})}
    law = Law("normal", 0.02, "torchvision: trunc_normal_(std=0.02)")
    return _layout(site, "qkv", "proj", heads, None, facts, law)


def _maxvit(site: Site) -> AttentionLayout | None:
    if site.children() != {"to_qkv", "merge"} or site.own_parameters() != {"relative_position_bias_table"}:
        return None
    heads, size = int(site.attribute("n_heads")), int(site.attribute("head_dim"))
    facts = {"position_bias": True, "windows": True}
    law = Law("normal", 0.02, "torchvision: normal_(std=0.02)")
    return _layout(site, "to_qkv", "merge", heads, size, facts, law)


def _layout(
    site: Site, fused: str, out: str, heads: int, size: int | None, facts: dict[str, Any], law: Law
) -> AttentionLayout | None:
    qkv, proj = site.projection(fused), site.projection(out)
    if qkv is None or proj is None or qkv.outputs != 3 * proj.inputs or proj.inputs % heads:
        return None
    size = size or proj.inputs // heads
    rows = fused_rows(qkv, "q k v", heads=heads, size=size)
    if rows is None:
        return None
    scale = site.attribute("scale_factor", size**-0.5)
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="torchvision.windows",
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=proj.columns(heads),
        scale=None if facts.get("cosine") else float(scale),
        causal=False,
        facts=facts,
        zero_bias=True,
        laws=(law, Law("uniform", (3 * qkv.inputs) ** -0.5, "torch: nn.Linear's default")),
    )
