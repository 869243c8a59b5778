"""open_clip's own `Attention`: one parameter `in_proj_weight`, rows [Q|K|V], head after head.

Its default blocks and its attentional pooler use `nn.MultiheadAttention`.
"""

from __future__ import annotations

from typing import Any

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

_NEEDED = ("in_proj_weight", "out_proj", "num_heads", "head_dim", "scale", "scaled_cosine", "scale_heads")


def describe(site: Site) -> AttentionLayout | None:
    """The layout of open_clip's attention, or None."""
    if not all(hasattr(site.module, name) for name in _NEEDED):
        return None
    if not site.children() <= {"out_proj", "ln_q", "ln_k", "ln_inner"}:
        return None
    if not site.own_parameters() <= {"in_proj_weight", "in_proj_bias", "logit_scale", "head_scale"}:
        return None
    heads, size = int(site.attribute("num_heads")), int(site.attribute("head_dim"))
    part, out = site.projection("in_proj_weight"), site.projection("out_proj")
    rows = None if part is None else fused_rows(part, "q k v", heads=heads, size=size)
    if part is None or rows is None or out is None or out.inputs != heads * size:
        return None
    cosine = "logit_scale" in site.own_parameters()
    said: dict[str, Any] = {
        "cosine": cosine,
        "qk_norm": bool(site.children() & {"ln_q", "ln_k"}) and not cosine,
        "output_norm": "ln_inner" in site.children(),
        "gate": "a learned factor for each head" if "head_scale" in site.own_parameters() else None,
    }
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="open_clip.attention",
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=out.columns(heads),
        scale=None if cosine else float(site.attribute("scale")),
        causal=None,
        facts={name: value for name, value in said.items() if value},
        zero_bias=True,
        laws=(
            Law("normal", size**-0.5, "open_clip: randn * head_dim ** -0.5"),
            Law("normal", part.inputs**-0.5, "open_clip: init_parameters of the text tower, std width ** -0.5"),
        ),
    )
