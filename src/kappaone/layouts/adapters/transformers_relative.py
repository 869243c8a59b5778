"""transformers' attentions whose logits have further terms from projected positions.

DeBERTa        `in_proj`: q, k, v of head 0, then of head 1, ...; `q_bias`, `v_bias`; no key bias
DeBERTa v2, SEW-D     `query_proj`, `key_proj`, `value_proj`
conformers     `linear_q`, `linear_k`, `linear_v`, `linear_out`; `linear_pos` or `distance_embedding`
Funnel         `q_head`, `k_head`, `v_head`, `post_proj`; `r_kernel`
XLNet          parameters `q`, `k`, `v`, `o` of shape (width, heads, head_dim)
"""

from __future__ import annotations

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows, with_bias
from kappaone.layouts.adapters.transformers_common import assemble, from_separate, number, own_causal, real
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Projection, Site

_SOURCE = "transformers.relative"
_XLNET = ("q", "k", "v", "o", "r", "r_r_bias", "r_s_bias", "r_w_bias", "seg_embed")
_FUNNEL = {"r_w_bias", "r_r_bias", "r_kernel", "r_s_bias", "seg_embed"}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of an attention with relative positions, or None."""
    children, own = site.children(), site.own_parameters()
    if {"in_proj"} <= children and {"q_bias", "v_bias"} == own:
        return _deberta(site, children)
    if {"query_proj", "key_proj", "value_proj"} <= children and not own:
        return _deberta_v2(site, children)
    if {"linear_q", "linear_k", "linear_v", "linear_out"} <= children:
        return _conformer(site, children, own)
    if children == {"q_head", "k_head", "v_head", "post_proj", "layer_norm"} and own == _FUNNEL:
        heads, size = number(site, "config.n_head"), number(site, "config.d_head")
        if heads is None or size is None:
            return None
        width = number(site, "config.d_model") or 0
        std = getattr(site.attribute("config"), "initializer_std", None) or (width + heads * size) ** -0.5
        return from_separate(
            site,
            _SOURCE,
            ("q_head", "k_head", "v_head"),
            "post_proj",
            heads=heads,
            size=size,
            scale=real(site, "scale"),
            facts={"relative": True},
            laws=(Law("normal", float(std), "transformers: Funnel, config.initializer_std or 1/sqrt(fans)"),),
        )
    if own == set(_XLNET) and children == {"layer_norm"}:
        return _xlnet(site)
    return None


def _position_terms(site: Site) -> int | None:
    """How many further terms the logits have, each of which enters the scale; None if the module does not say."""
    kinds = site.attribute("pos_att_type")
    if not isinstance(kinds, (list, tuple)) or not hasattr(site.module, "relative_attention"):
        return None
    return len({"c2p", "p2c"} & set(kinds)) if set(kinds) <= {"c2p", "p2c"} else None


def _deberta(site: Site, children: set[str]) -> AttentionLayout | None:
    talking = {"head_logits_proj", "head_weights_proj"}
    heads, size = number(site, "num_attention_heads"), number(site, "attention_head_size")
    part, terms = site.projection("in_proj"), _position_terms(site)
    if not children <= {"in_proj", "pos_dropout", "dropout", "pos_proj", "pos_q_proj"} | talking:
        return None
    if heads is None or size is None or part is None or terms is None:
        return None
    rows = fused_rows(part, "head(q k v)", heads=heads, size=size)
    if rows is None:
        return None
    named = {"q": "q_bias", "k": None, "v": "v_bias"}
    relative = bool(site.attribute("relative_attention")) and bool(children & {"pos_proj", "pos_q_proj"})
    return assemble(
        site,
        _SOURCE,
        {role: with_bias(rows[role], site, named[role]) for role in rows},
        site.sibling("output.dense"),
        scale=float((size * (1 + terms)) ** -0.5),
        facts={"relative": relative, "talking_heads": bool(children & talking)},
        output="heads",
    )


def _deberta_v2(site: Site, children: set[str]) -> AttentionLayout | None:
    heads, size = number(site, "num_attention_heads"), number(site, "attention_head_size")
    terms = _position_terms(site)
    known = {"query_proj", "key_proj", "value_proj", "pos_key_proj", "pos_query_proj", "pos_dropout", "dropout"}
    if heads is None or size is None or terms is None or not children <= known:
        return None
    relative = bool(site.attribute("relative_attention"))
    shared = relative and bool(site.attribute("share_att_key"))
    return from_separate(
        site,
        _SOURCE,
        ("query_proj", "key_proj", "value_proj"),
        "sibling:output.dense",
        heads=heads,
        size=size,
        scale=float((size * (1 + terms)) ** -0.5),
        facts={
            "relative": relative,
            "extra": "the same projections of queries and keys read the positions too" if shared else None,
        },
    )


def _conformer(site: Site, children: set[str], own: set[str]) -> AttentionLayout | None:
    core, biases = {"linear_q", "linear_k", "linear_v", "linear_out"}, {"pos_bias_u", "pos_bias_v"}
    rest = children - core
    if not ((rest == {"linear_pos"} and own == biases) or (rest <= {"distance_embedding"} and not own)):
        return None
    heads, size = number(site, "num_heads"), number(site, "head_size", "head_dim")
    if heads is None or size is None:
        return None
    kind, width = site.attribute("position_embeddings_type"), number(site, "hidden_size")
    drawn = width is not None and number(site, "dim_key") is not None
    return from_separate(
        site,
        _SOURCE,
        ("linear_q", "linear_k", "linear_v"),
        "linear_out",
        heads=heads,
        size=size,
        scale=real(site, "scaling") or float(size**-0.5),
        facts={"relative": bool(rest), "rotary": kind == "rotary"},
        causal=own_causal(site),
        laws=(Law("normal", float(width**-0.5), "transformers: FastSpeech2, 1/sqrt(width)"),)
        if drawn and width
        else None,
    )


def _xlnet(site: Site) -> AttentionLayout | None:
    heads, size, width = (number(site, name) for name in ("n_head", "d_head", "d_model"))
    if heads is None or size is None or width is None:
        return None
    shapes = {tuple(getattr(site.module, name).shape) for name in ("q", "k", "v", "o", "r")}
    if shapes != {(width, heads, size)}:
        return None

    def part(name: str, transposed: bool) -> Projection:
        outputs, inputs = (heads * size, width) if transposed else (width, heads * size)
        return Projection(site.qualified(name), None, outputs, inputs, transposed)

    starts = range(0, heads * size, size)
    return assemble(
        site,
        _SOURCE,
        {role: part(role, True).rows(starts, size) for role in "qkv"},
        part("o", False),
        scale=real(site, "scale"),
        facts={"relative": True, "batch_first": False},
    )
