"""timm's attention pools: learned queries (SigLIP, naflexvit), CLIP's pool of a feature map, SimPool."""

from __future__ import annotations

from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.adapters.timm_shared import has, layout, linear_laws, number, only, qk_norms, scale, truthy
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Outside, Projection, Refusal, Site

SOURCE = "timm.pool"
_NORMS = ("q_norm", "k_norm")


def describe(site: Site) -> AttentionLayout | Outside | Refusal | None:
    """The layout of an attention pool, or None."""
    return _latent(site) or _map(site) or _simple(site) or _without_weights(site)


def _latent(site: Site) -> AttentionLayout | Refusal | None:
    """Learned tokens ask: `q` reads them, `kv` (rows [K|V]) the tokens."""
    if not has(site, "num_heads", "head_dim", "scale", "latent", "latent_len", "q", "kv", "proj", "pool"):
        return None
    if not only(site, {"q", "kv", "proj", "norm", "mlp", *_NORMS}, {"latent", "pos_embed"}):
        return None
    heads, size = number(site, "num_heads"), number(site, "head_dim")
    q, kv, proj = site.projection("q"), site.projection("kv"), site.projection("proj")
    if kv is None or heads is None or size is None:
        return None
    if q is None:
        return Refusal("the queries are learned tokens themselves: there is no projection of them")
    rows = {
        **(fused_rows(q, "q", heads=heads, size=size) or {}),
        **(fused_rows(kv, "k v", heads=heads, size=size) or {}),
    }
    facts = truthy(one_query=True, cross=True, qk_norm=qk_norms(site))
    return _with_output(site, rows, proj, heads, size, facts, linear_laws(q, kv))


def _map(site: Site) -> AttentionLayout | None:
    """All positions of a feature map and their mean ask; only what the mean (or a class token) hears is kept."""
    if not has(site, "num_heads", "head_dim", "scale", "pool_type", "embed_dim", "in_features", "qkv", "pos_embed"):
        return None
    if not only(site, {"qkv", "q", "k", "v", "proj", "pos_embed"}, {"cls_token", "pos_embed"}):
        return None
    heads, size = number(site, "num_heads"), number(site, "head_dim")
    if heads is None or size is None:
        return None
    fused, parts = site.projection("qkv"), [site.projection(role) for role in "qkv"]
    rows: dict[str, RoleRows] | None
    if fused is not None:
        rows, first = fused_rows(fused, "q k v", heads=heads, size=size), fused
    else:
        rows, known = {}, [part for part in parts if part is not None]
        if len(known) != 3:
            return None
        for role, part in zip("qkv", known, strict=True):
            rows |= fused_rows(part, role, heads=heads, size=size) or {}
        first = known[0]
    facts = truthy(
        rotary=isinstance(site.attribute("pos_embed"), nn.Module),
        extra="the first token is the mean of the map, and only what it hears is kept"
        if site.attribute("pool_type") == "token"
        else "the first token is the mean of the map",
    )
    law = Law("normal", first.inputs**-0.5, "timm: trunc_normal_(std=in_features ** -.5)", bound=2.0)
    return _with_output(site, rows, site.projection("proj"), heads, size, facts, (*linear_laws(first), law))


def _simple(site: Site) -> Refusal | None:
    if not has(site, "num_heads", "head_dim", "scale", "gamma", "q", "k", "norm") or hasattr(site.module, "v"):
        return None
    return (
        Refusal("the values are the tokens themselves: there is no projection of them")
        if only(site, {"q", "k", "norm", *_NORMS})
        else None
    )


def _without_weights(site: Site) -> Outside | None:
    if not has(site, "num_heads", "head_dim", "scale", "pool", "pre_norm", "post_norm", "out_features"):
        return None
    return Outside("attention without projections") if only(site, {"pre_norm", "post_norm"}) else None


def _with_output(
    site: Site,
    rows: dict[str, RoleRows] | None,
    proj: Projection | None,
    heads: int,
    size: int,
    facts: dict[str, Any],
    laws: tuple[Law, ...],
) -> AttentionLayout | None:
    if proj is None and "proj" in site.children():
        return None
    if proj is not None and proj.inputs != heads * size:
        return None
    columns = None if proj is None else proj.columns(heads)
    output = "heads" if proj is None else "projected"
    return layout(site, SOURCE, rows, columns, facts, factor=scale(site), output=output, laws=laws, zero_bias=True)
