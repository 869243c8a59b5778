"""transformers' separate projections under other names than BERT's and Llama's: T5 and its kin, and single families.

One line a family: the three projections, the output projection, the other children, and what is true of it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows, is_rotary
from kappaone.layouts.adapters.transformers_common import (
    assemble,
    from_separate,
    inputs_of,
    is_cross,
    number,
    of_transformers,
    own_causal,
    real,
)
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

_SOURCE = "transformers.separate"
_HEADS = ("n_heads", "num_attention_heads", "num_heads", "num_attn_heads", "heads", "config.num_attention_heads")
_SIZE = ("key_value_proj_dim", "attention_head_size", "head_dim", "dim_head", "config.head_dim")


@dataclass(frozen=True)
class _Family:
    """Names of q, k, v and of the output, further children (all of them, or some), and facts."""

    names: tuple[str, str, str]
    out: str
    must: frozenset[str] = frozenset()
    may: frozenset[str] = frozenset()
    facts: dict[str, Any] = field(default_factory=dict)
    common: bool = False  # names that other libraries use too


_POSITIONS = {"relative": True, "extra": "queries and keys also have projections of positions, which are left alone"}
_FAMILIES = (
    _Family(("q", "k", "v"), "o", may=frozenset({"relative_attention_bias"})),  # T5 and its kin, MPNet
    _Family(
        ("q", "k", "v"),
        "o",
        must=frozenset({"global_input_layer_norm"}),
        may=frozenset({"relative_attention_bias", "global_relative_attention_bias"}),
        facts={"extra": "tokens also attend to sums of blocks, projected by the same weights"},  # LongT5
    ),
    _Family(("q", "k", "v"), "proj", common=True),  # Qwen2.5-Omni's pictures
    _Family(("q_lin", "k_lin", "v_lin"), "out_lin"),  # DistilBERT, XLM, FlauBERT
    _Family(("query_proj", "key_proj", "value_proj"), "out_proj"),  # ProphetNet
    _Family(
        ("query_proj", "key_proj", "value_proj"),
        "out_proj",
        must=frozenset({"relative_pos_embeddings"}),
        facts={"relative": True},
    ),
    _Family(("Wq", "Wk", "Wv"), "dense"),  # CTRL
    _Family(("project_q", "project_k", "project_v"), "attention_out", may=frozenset({"softmax"})),  # CPM-Ant
    _Family(("to_q", "to_k", "to_v"), "to_out.0", common=True),  # Qwen2.5-Omni's speech
    _Family(
        ("projection_query", "projection_key", "projection_value"),
        "sibling:output.dense",
        must=frozenset({f"convolution_projection_{role}" for role in ("query", "key", "value")}),
        facts={"extra": "tokens are convolved in front of the projections"},
    ),  # CvT
    _Family(
        ("q_content_proj", "k_content_proj", "v_proj"),
        "o_proj",
        must=frozenset({"q_pos_proj", "k_pos_proj"}),
        facts=_POSITIONS,
    ),
    _Family(
        ("q_content_proj", "k_content_proj", "v_proj"),
        "o_proj",
        must=frozenset({"k_pos_proj", "q_pos_sine_proj"}),
        may=frozenset({"q_pos_proj"}),
        facts={**_POSITIONS, "partial": "half of each head's logit comes from projected positions"},
    ),
)


def describe(site: Site) -> AttentionLayout | None:
    """The layout of separate projections under one of the known names, or None."""
    children = site.children()
    if site.own_parameters() or (hasattr(site.module, "config") and hasattr(site.module, "hash_code_len")):
        return None
    for family in _FAMILIES:
        out = set() if family.out.startswith("sibling:") else {family.out.partition(".")[0]}
        core = {*family.names} | out | family.must
        if core <= children <= core | family.may:
            return _separate(site, family) if not family.common or of_transformers(site) else None
    if not of_transformers(site):
        return None
    if {"to_q", "to_kv", "to_out"} <= children:
        return _two(site, children - {"to_q", "to_kv", "to_out"})
    if children == {"q", "k", "v", "proj_out", "norm"}:
        return _one_head(site)
    return None


def _separate(site: Site, family: _Family) -> AttentionLayout | None:
    size, part = number(site, *_SIZE), site.projection(family.names[0])
    heads = number(site, *_HEADS)
    if size is None and heads and part is not None and part.outputs % heads == 0:
        size = part.outputs // heads
    if heads is None and size and part is not None:
        width = number(site, "hidden_size")
        heads = width // size if width else None
    if heads is None or size is None:
        return None
    scale = _scale(site, size)
    cross = is_cross(site)
    takes = inputs_of(site)
    return from_separate(
        site,
        _SOURCE,
        family.names,
        family.out,
        heads=heads,
        size=size,
        scale=scale,
        facts={
            "cross": cross,
            "rotary": is_rotary(site),
            "unscaled": scale == 1.0,
            "position_bias": "position_bias" in takes and not cross,
            "windows": number(site, "local_radius") is not None,
            **family.facts,
        },
        causal=own_causal(site),
        laws=_t5_laws(site),
    )


def _scale(site: Site, size: int) -> float:
    """The factor on q.k. T5's kin have none; where they do not say so, their buckets of positions tell them."""
    stated = real(site, "scaling", "scale")
    if stated is not None:
        return stated
    return 1.0 if hasattr(site.module, "relative_attention_num_buckets") else float(size**-0.5)


def _t5_laws(site: Site) -> tuple[Law, ...] | None:
    """T5 draws queries with std f (d d_kv)^-1/2, keys and values with std f d^-1/2; others follow the common law."""
    if not hasattr(site.module, "relative_attention_num_buckets"):
        return None
    for module in site.ancestors():
        config = getattr(module, "config", None)
        if not hasattr(module, "_init_weights") or config is None:
            continue
        factor, width, inner = (getattr(config, name, None) for name in ("initializer_factor", "d_model", "d_kv"))
        if not factor or not width or not inner:
            return ()
        return (
            Law("normal", float(factor * (width * inner) ** -0.5), "transformers: T5, queries"),
            Law("normal", float(factor * width**-0.5), "transformers: T5, keys and values"),
        )
    return ()


def _two(site: Site, rest: set[str]) -> AttentionLayout | None:
    """`to_q` and `to_kv` = [K|V]: conformers with relative keys, Perceiver resamplers."""
    facts: dict[str, Any]
    if rest == {"pre_norm", "rel_pos_emb"}:
        facts = {"relative": True, "windows": True}
    elif rest == {"norm_media", "norm_latents"}:
        facts = {"cross": True}
    else:
        return None
    heads, q, kv, out = number(site, "num_heads", "heads"), *map(site.projection, ("to_q", "to_kv", "to_out"))
    if heads is None or q is None or kv is None or out is None or q.outputs % heads:
        return None
    size = q.outputs // heads
    rows = fused_rows(kv, "k v", heads=heads, size=size)
    if rows is None:
        return None
    rows["q"] = q.rows(range(0, q.outputs, size), size)
    return assemble(site, _SOURCE, rows, out, scale=_scale(site, size), facts=facts)


def _one_head(site: Site) -> AttentionLayout | None:
    """1x1 convolutions over a picture or a sound, one head as wide as the channels (autoencoders)."""
    part = site.projection("q")
    if part is None or part.outputs != part.inputs:
        return None
    return from_separate(
        site,
        _SOURCE,
        ("q", "k", "v"),
        "proj_out",
        heads=1,
        size=part.outputs,
        scale=float(part.outputs**-0.5),
        facts={},
    )
