"""x-transformers' `Attention`: `to_q`, `to_k`, `to_v`, `to_out`, and an `Attend` with the switches.

With fewer key/value heads than heads, query head h reads key/value head h mod kv_heads (`(r kvh)` in `Attend`), the
opposite of Llama's order. Facts of the source of x-transformers 2.31.
"""

from __future__ import annotations

import re
from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout, Inner, RoleRows
from kappaone.layouts.site import Outside, Projection, Refusal, Site

_NEEDED = ("to_q", "to_k", "to_v", "to_out", "attend", "heads", "kv_heads", "groups", "scale", "attn_on_attn")
_SWITCHES = ("attn_fn", "scale", "l2_distance", "add_zero_kv", "softclamp_logits")
_CHILDREN = {
    *("to_q", "to_k", "to_v", "to_out", "attend", "to_latent_q", "to_latent_kv", "to_rotateable_k"),
    *("to_v_gate", "to_output_gate", "to_v_head_gate", "q_rmsnorm", "k_rmsnorm", "value_rmsnorm"),
    *("data_dependent_alibi", "rel_proj_pos_bias", "to_value_residual_mix", "sublayer_dropout"),
    *("split_q_heads", "split_k_heads", "split_v_heads", "merge_heads", "split_rotateable_k_heads"),
    *("to_head_space_headwise", "to_head_space_dimwise", "to_v_gate_head_space", "to_output_gate_head_space"),
    *("hybrid_module", "hybrid_norms", "hybrid_mix"),
}
_OWN = {"qk_norm_q_scale", "qk_norm_k_scale", "head_scale_params", "mem_k", "mem_v"}
_IN_ATTEND = {"pre_softmax_talking_heads", "post_softmax_talking_heads", "pre_scale_post_talking_heads", "cope"}


def describe(site: Site) -> AttentionLayout | Outside | Refusal | None:
    """The layout of an x-transformers attention, or None."""
    attend = site.attribute("attend")
    if not all(hasattr(site.module, name) for name in _NEEDED) or not isinstance(attend, nn.Module):
        return None
    if not all(hasattr(attend, name) for name in _SWITCHES):
        return None
    inner = Site(site.qualified("attend"), attend, site.modules)
    if not site.children() <= _CHILDREN or not site.own_parameters() <= _OWN:
        return None
    if not inner.children() - {"attn_dropout"} <= _IN_ATTEND or not inner.own_parameters() <= {"head_attn_sink"}:
        return None
    if (declined := _declined(site, attend)) is not None:
        return declined
    mixing = _mixing(attend)
    return None if mixing is None else _layout(site, attend, mixing)


def _declined(site: Site, attend: nn.Module) -> Outside | Refusal | None:
    """What is no softmax attention, and what no layout can state."""
    called = _function(attend.attn_fn)
    if called == "sigmoid":
        return Outside("sigmoid in place of softmax")
    if called == "one_hot_straight_through":
        return Outside("each token takes one other (hard attention), in place of softmax")
    if "to_rotateable_k" in site.children():
        return Refusal("some heads of the keys are projected by another weight (latent_rope_subheads)")
    if site.attribute("orthog_projected_values") or site.attribute("orthog_projected_values_per_head"):
        return Refusal("the part of the output that lies along the values is taken away (orthog_projected_values)")
    if site.attribute("laser"):
        return Refusal("the values are exponentiated (laser), so that no weight holds them as they are used")
    if getattr(attend, "selective", False):
        return Refusal("the logits of the first head mask tokens for all heads (selective attention)")
    if "hybrid_module" in site.children():
        return Refusal("another module mixes tokens beside it, and the two are averaged (hybrid_module)")
    return None


def _mixing(attend: nn.Module) -> str | None:
    """What else is done to the softmax ("" for nothing); None if it is no function that we know."""
    known = {
        "softmax": "",
        "sparse_topk_attn": "only the largest logits of each token enter the softmax",
        "gumbel_softmax": "noise is added to the logits (Gumbel softmax)",
    }
    said = [known.get(_function(attend.attn_fn))]
    if said[0] is None:
        return None
    switches = {
        "l2_distance": "logits are negative squared distances",
        "inverted_attention": "the softmax runs over the queries",
        "cog_signed": "the softmax is of absolute logits, whose signs come back",
    }
    return "; ".join([*filter(None, said), *(text for name, text in switches.items() if getattr(attend, name, False))])


def _function(called: Any) -> str:
    """The name of a function under its partial applications."""
    while hasattr(called, "func"):
        called = called.func
    return str(getattr(called, "__name__", ""))


def _layout(site: Site, attend: nn.Module, mixing: str) -> AttentionLayout | None:
    heads, kv_heads = site.attribute("heads"), site.attribute("kv_heads")
    q, k, v = (site.projection(name) for name in ("to_q", "to_k", "to_v"))
    if q is None or k is None or v is None or not isinstance(heads, int) or not isinstance(kv_heads, int):
        return None
    size, value_size = q.outputs // heads, v.outputs // kv_heads
    if (q.outputs, k.outputs, v.outputs) != (size * heads, size * kv_heads, value_size * kv_heads):
        return None
    out = site.first_projection("to_out", "to_out.0")
    if (out is None and site.children() & {"to_out"}) or (out is not None and out.inputs != heads * value_size):
        return None
    facts = _facts(site, attend, mixing)
    if kv_heads < heads and kv_heads > 1:
        facts["kv_map"] = "modulo"
    rows = {
        "q": _rows(site, q, heads, size, "to_latent_q"),
        "k": _rows(site, k, kv_heads, size, "to_latent_kv"),
        "v": _rows(site, v, kv_heads, value_size, "to_latent_kv"),
    }
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="x_transformers.attention",
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=None if out is None else out.columns(heads),
        scale=float(attend.scale) if isinstance(attend.scale, (int, float)) else None,
        causal=bool(site.attribute("causal")),
        facts=facts,
        output="heads" if out is None else "projected",
        laws=tuple(
            Law("uniform", (3 * width) ** -0.5, "torch: nn.Linear's default")
            for width in dict.fromkeys(row.width for row in rows.values())
        ),
    )


def _rows(site: Site, part: Projection, heads: int, size: int, latent: str) -> RoleRows:
    first = site.projection(latent)
    inner = None if first is None else Inner(first.weight, 0, first.outputs, first.inputs)
    return part.rows(range(0, heads * size, size), size, inner=inner)


def _facts(site: Site, attend: nn.Module, mixing: str) -> dict[str, Any]:
    children, own = site.children(), site.own_parameters()
    around = _around(site)
    cross = _is_cross(site, around)
    extra = [mixing, *_extras(site, around, cross)]
    gates = children & {"to_v_gate", "to_v_head_gate"} or "head_scale_params" in own
    position = not cross and around is not None and getattr(around, "rel_pos", None) is not None
    relative = "rel_proj_pos_bias" in children or getattr(attend, "cope", None) is not None
    said = {
        "cross": cross,
        "rotary": around is not None and getattr(around, "rotary_pos_emb", None) is not None,
        "position_bias": position or "data_dependent_alibi" in children,
        "relative": relative,
        "cosine": bool(site.attribute("qk_norm")),
        "qk_norm": "q_rmsnorm" in children,
        "v_norm": "value_rmsnorm" in children,
        "softcap": bool(getattr(attend, "softclamp_logits", False)),
        "sinks": getattr(attend, "head_attn_sink", None) is not None,
        "talking_heads": any(getattr(attend, name, None) is not None for name in _IN_ATTEND - {"cope"}),
        "gate": bool(gates),
        "low_rank": bool(children & {"to_latent_q", "to_latent_kv"}),
        "bias_kv": "mem_k" in own,
        "add_zero_attn": bool(getattr(attend, "add_zero_kv", False)),
        "windows": site.attribute("max_attend_past") is not None,
        "extra": "; ".join(filter(None, extra)),
    }
    return {name: value for name, value in said.items() if value}


def _extras(site: Site, around: nn.Module | None, cross: bool) -> list[str]:
    """What else changes the result, by the module's own switches and by those of the layers around."""
    children = site.children()
    said = {
        "the keys are normalized": "k_rmsnorm" in children and "q_rmsnorm" not in children,
        "the gate reads the output itself": "to_output_gate" in children,
        "a gated linear unit follows the output projection": bool(site.attribute("attn_on_attn")),
        "the bias on the logits depends on the tokens": "data_dependent_alibi" in children,
        "q, k and v read three different inputs": bool(site.attribute("qkv_receive_diff_residuals")),
        "q and k are turned by polar embeddings": not cross and _has(around, "polar_pos_emb"),
        "logits of the layer before are added": _has(around, "cross_residual_attn" if cross else "residual_attn"),
        "values of the first layer are mixed in": _has(around, "add_value_residual"),
    }
    return [text for text, true in said.items() if true]


def _has(around: nn.Module | None, name: str) -> bool:
    value = getattr(around, name, None)
    return value is not None and value is not False


def _around(site: Site) -> nn.Module | None:
    """The `AttentionLayers` that the attention is a layer of: it hands over positions and what layers share."""
    name = site.name
    while name:
        name = name.rpartition(".")[0]
        module = site.modules.get(name)
        if module is not None and hasattr(module, "layer_types") and hasattr(module, "rotary_pos_emb"):
            return module
    return None


def _is_cross(site: Site, around: nn.Module | None) -> bool:
    """Whether it reads keys and values elsewhere: by its place in the layers, its width, or its pool of queries."""
    place = re.search(r"(?:^|\.)layers\.(\d+)\.\d+$", site.name)
    if around is not None and place is not None:
        types: tuple[str, ...] = tuple(getattr(around, "layer_types", ()))
        return int(place[1]) < len(types) and types[int(place[1])] == "c"
    k, q = site.projection("to_k"), site.projection("to_q")
    above = site.parent()
    pool = above is not None and hasattr(above[1], "has_learned_queries")
    latent = site.children() & {"to_latent_q", "to_latent_kv"}
    return pool or (not latent and k is not None and q is not None and k.inputs != q.inputs)
