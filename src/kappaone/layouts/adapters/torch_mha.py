"""torch.nn.MultiheadAttention, as used by TransformerEncoder, TransformerDecoder and torchvision's ViT.

Rows [Q|K|V] in `in_proj_weight`, head-major; with kdim or vdim other than embed_dim, three separate parameters and
still one fused bias. The default init is Xavier-uniform on the whole fused weight (pytorch#166378); CLIP's text towers
draw N(0, 1/width) instead.
"""

from __future__ import annotations

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Site

_NEEDED = ("embed_dim", "num_heads", "head_dim", "kdim", "vdim", "batch_first", "out_proj")


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a MultiheadAttention, or None."""
    if not all(hasattr(site.module, name) for name in _NEEDED):
        return None
    if not site.own_parameters() & {"in_proj_weight", "q_proj_weight"} or site.children() != {"out_proj"}:
        return None
    width, heads, size = (int(site.attribute(name)) for name in ("embed_dim", "num_heads", "head_dim"))
    biased = site.attribute("in_proj_bias") is not None
    bias = site.qualified("in_proj_bias") if biased else None
    at = {role: tuple(range(i * width, (i + 1) * width, size)) for i, role in enumerate("qkv")}
    own = tuple(range(0, width, size))
    fused = "in_proj_weight" in site.own_parameters()
    inputs = {
        "q": width,
        "k": width if fused else int(site.attribute("kdim")),
        "v": width if fused else int(site.attribute("vdim")),
    }

    def rows(role: str) -> RoleRows:
        name = "in_proj_weight" if fused else f"{role}_proj_weight"
        return RoleRows(
            site.qualified(name),
            at[role] if fused else own,
            size,
            inputs[role],
            False,
            bias,
            at[role] if biased else (),
        )

    out = site.projection("out_proj")
    if out is None:
        return None
    extra = {
        "add_zero_attn": bool(site.attribute("add_zero_attn", False)),
        "bias_kv": site.attribute("bias_k") is not None,
    }
    above = site.parent()
    cross = {inputs["k"], inputs["v"]} != {width} or (above is not None and _asks_elsewhere(site.name, above[1]))
    facts = {
        "batch_first": bool(site.attribute("batch_first")),
        **{k: True for k, on in {**extra, "cross": cross}.items() if on},
    }
    # Xavier-uniform has variance 2 / (fan_in + fan_out), with the fans of the parameter as it is stored.
    laws = tuple(
        {
            Law(
                "uniform",
                (2 / (rows(role).width + (3 * width if fused else width))) ** 0.5,
                "torch: xavier_uniform_ on the stored parameter",
            )
            for role in "qkv"
        }
    )
    if fused and above is not None and hasattr(above[1], "ln_1") and hasattr(getattr(above[1], "mlp", None), "c_fc"):
        # CLIP's blocks only: semi-orthogonal weights have this spread too, and are nobody's fresh draw elsewhere.
        laws += (Law("normal", width**-0.5, "CLIP, open_clip: init_parameters of the text tower, std width ** -0.5"),)
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="torch.mha",
        q=rows("q"),
        k=rows("k"),
        v=rows("v"),
        o=out.columns(heads),
        scale=size**-0.5,
        causal=None,
        facts=facts,
        zero_bias=True,
        laws=laws,
    )


def _asks_elsewhere(name: str, parent: nn.Module) -> bool:
    """Whether the module around hands over other tokens than those that ask.

    A decoder layer holds `multihead_attn` beside `self_attn`; open_clip's pooler learns its queries, and its cross
    attention has a norm for what the keys read (`ln_1_kv`).
    """
    decoder = name.rpartition(".")[2] == "multihead_attn" and hasattr(parent, "self_attn")
    pooler = "query" in parent._parameters and hasattr(parent, "ln_q")
    return decoder or pooler or hasattr(parent, "ln_1_kv")
