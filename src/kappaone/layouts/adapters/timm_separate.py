"""timm's attentions whose roles lie in two or three linear maps: q, k, v; q and [K|V]; [Q|K] and v."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.adapters.timm_qkv import rotary
from kappaone.layouts.adapters.timm_shared import has, layout, linear_laws, number, only, qk_norms, scale, truthy
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Projection, Site

SOURCE = "timm.separate"


def _always(**facts: Any) -> Callable[[Site], dict[str, Any]]:
    return lambda _: dict(facts)


def _subsampled(site: Site) -> dict[str, Any]:
    return truthy(reduced_keys=bool({"sr", "pool"} & site.children()))


def _gemma(site: Site) -> dict[str, Any]:
    clipped = any(getattr(child, "use_clipped", False) for child in site.module.children())
    return truthy(
        rotary=True, qk_norm=qk_norms(site), v_norm="v_norm" in site.children(), unscaled=True, clamped=clipped
    )


def _multiscale(site: Site) -> dict[str, Any]:
    return truthy(
        relative=site.attribute("rel_pos_type") == "spatial",
        reduced_keys=site.attribute("pool_k") is not None,
        extra="q, k and v read tokens that were pooled head by head; the queries are added to the output"
        if site.attribute("residual_pooling")
        else "q, k and v read tokens that were pooled head by head",
    )


@dataclass(frozen=True)
class _Family:
    """One attention of the table.

    Attributes:
        parts: the projections by the roles that they hold, in the order of their rows: {"q": "q", "kv": "kv"}.
        needs: attributes that it has.
        lacks: attributes that it does not have.
        out: the output projection.
        children: children that it may have beside the projections and dropouts.
        parameters: parameters that it may hold itself.
        facts: from the site to its facts.
        factor: the factor on q.k: "attribute", or a number.
        drawn: the model draws these weights by one of `linear_laws` (checked on fresh models of timm 1.0.31), and
            zeroes their biases.
    """

    parts: Mapping[str, str]
    needs: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    out: str = "proj"
    children: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    facts: Callable[[Site], dict[str, Any]] = field(default=_always())
    factor: str | float = "attribute"
    drawn: bool = True


_THREE = {"q": "q", "k": "k", "v": "v"}
_PROJ = {"q": "q_proj", "k": "k_proj", "v": "v_proj"}
_Q_KV = {"q": "q", "kv": "kv"}
_QK_V = {"qk": "qk", "v": "v"}
_NORMS = frozenset({"q_norm", "k_norm"})

FAMILIES: Mapping[str, _Family] = {
    "class attention of CaiT, XCiT": _Family(
        _THREE,
        ("num_heads", "scale", "fused_attn", "attn_drop"),
        lacks=("head_dim", "sr_ratio", "feat_size", "mode", "key_dim", "dim"),
        facts=_always(one_query=True),
    ),
    "CrossViT": _Family(
        {"q": "wq", "k": "wk", "v": "wv"}, ("num_heads", "scale", "attn_drop"), facts=_always(one_query=True)
    ),
    "EVA": _Family(
        _PROJ,
        ("num_heads", "head_dim", "scale", "num_prefix_tokens"),
        children=_NORMS | {"norm", "gate"},
        facts=rotary,
    ),
    "Gemma 4": _Family(
        _PROJ,
        ("num_heads", "num_kv_heads", "head_dim", "v_norm"),
        lacks=("num_prefix_tokens", "config"),
        out="o_proj",
        children=_NORMS | {"v_norm"},
        facts=_gemma,
        factor=1.0,
        drawn=False,
    ),
    "PVT v2": _Family(
        _Q_KV,
        ("num_heads", "head_dim", "scale", "dim", "sr", "pool", "act"),
        children=frozenset({"sr", "norm", "pool", "act"}),
        facts=_subsampled,
    ),
    "Twins": _Family(
        _Q_KV,
        ("num_heads", "scale", "dim", "sr", "norm", "sr_ratio"),
        lacks=("pool", "N_ratio", "head_dim"),
        children=frozenset({"sr", "norm"}),
        facts=_subsampled,
    ),
    "class attention of VOLO": _Family(
        _Q_KV,
        ("num_heads", "head_dim", "scale", "attn_drop"),
        lacks=("dim", "latent", "sr", "fused_attn", "q_norm"),
        facts=_always(one_query=True),
    ),
    "NextViT": _Family(
        _THREE,
        ("num_heads", "head_dim", "scale", "sr_ratio", "N_ratio", "sr"),
        children=frozenset({"sr", "norm"}),
        facts=_subsampled,
    ),
    "TNT": _Family(_QK_V, ("num_heads", "head_dim", "scale", "hidden_dim", "attn_drop")),
    "ConViT": _Family(
        _QK_V,
        ("num_heads", "scale", "pos_proj", "gating_param", "get_attention_map"),
        children=frozenset({"pos_proj"}),
        parameters=frozenset({"gating_param"}),
        facts=_always(extra="a second softmax over positions is mixed with the first by a learned share of each head"),
        drawn=False,  # the values start as the identity
    ),
    "MViT v2, pooling first": _Family(
        _THREE,
        ("num_heads", "head_dim", "scale", "mode", "unshared", "rel_pos_type", "residual_pooling", "pool_q", "norm_k"),
        children=frozenset({"pool_q", "pool_k", "pool_v", "norm_q", "norm_k", "norm_v"}),
        parameters=frozenset({"rel_pos_h", "rel_pos_w"}),
        facts=_multiscale,
        drawn=False,
    ),
}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of one of the table's attentions, or None."""
    found = [layout for family in FAMILIES.values() if (layout := _described(site, family)) is not None]
    return found[0] if len(found) == 1 else None


def _described(site: Site, family: _Family) -> AttentionLayout | None:
    if not has(site, *family.needs, family.out) or any(hasattr(site.module, name) for name in family.lacks):
        return None
    if not only(site, {*family.parts.values(), family.out, *family.children}, family.parameters):
        return None
    parts = {roles: site.projection(name) for roles, name in family.parts.items()}
    out, heads = site.projection(family.out), number(site, "num_heads")
    if out is None or heads is None or out.inputs % heads:
        return None
    kv_heads = number(site, "num_kv_heads") or heads
    rows = _rows(parts, heads, kv_heads, out.inputs // heads)
    stated = number(site, "head_dim")
    if rows is None or (stated is not None and rows["q"].size != stated):
        return None
    laws = linear_laws(*parts.values())
    return layout(
        site,
        SOURCE,
        rows,
        out.columns(heads),
        family.facts(site),
        factor=scale(site) if family.factor == "attribute" else float(family.factor),
        laws=laws if family.drawn else (),
        zero_bias=family.drawn,
    )


def _rows(parts: Mapping[str, Projection | None], heads: int, kv_heads: int, values: int) -> dict[str, RoleRows] | None:
    """The roles of all parts, or None where the outputs are not just these; v has `values` rows in each head."""
    rows: dict[str, RoleRows] = {}
    for roles, part in parts.items():
        if part is None:
            return None
        known = kv_heads * values if "v" in roles else 0
        shares = sum(heads if role == "q" else kv_heads for role in roles if role != "v")
        size = values if not shares else (part.outputs - known) // shares
        if size < 1:
            return None
        order = " ".join(roles)
        found = fused_rows(part, order, heads=heads, kv_heads=kv_heads, size=size, value_size=values)
        if found is None:
            return None
        rows |= found
    return rows if rows["q"].size == rows["k"].size else None
