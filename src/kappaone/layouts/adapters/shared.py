"""What adapters share: rows of fused weights, children that may be there, laws, facts that attributes betray."""

from __future__ import annotations

import inspect
from dataclasses import replace

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.order import parse, starts_and_steps
from kappaone.layouts.site import Projection, Site


def fused_rows(
    part: Projection,
    order: str,
    *,
    heads: int,
    size: int,
    kv_heads: int | None = None,
    value_size: int | None = None,
    offset: int = 0,
) -> dict[str, RoleRows] | None:
    """The roles of a fused weight by the order of its rows, or None where its outputs are not just these.

    Args:
        part: the projection.
        order: as in a spec, such as "q k v", "head(q k v)", "k v" (see `kappaone.layouts.order`).
        heads: query heads.
        size: rows per head of q and k.
        kv_heads: key/value heads; heads if None.
        value_size: rows per head of v; size if None.
        offset: rows in front that are something else (an MLP's); those behind must be declared by the caller's check.
    """
    parsed = parse(order)
    counts = {role: heads if role == "q" else kv_heads or heads for role in parsed.roles}
    sizes = {role: value_size or size if role == "v" else size for role in parsed.roles}
    at, total = starts_and_steps(parsed, counts, sizes, text=order)
    if offset + total != part.outputs:
        return None
    return {
        role: part.rows([start + offset for start in at[role][0]], sizes[role], step=at[role][1])
        for role in parsed.roles
    }


def with_bias(rows: RoleRows, site: Site, name: str | None) -> RoleRows:
    """The same rows with a bias that is a parameter of its own (`q_bias`), one entry for each row of the role."""
    if name is None or name not in site.own_parameters():
        return replace(rows, bias=None, bias_starts=())
    starts = tuple(range(0, rows.rows, rows.size))
    return replace(rows, bias=site.qualified(name), bias_starts=starts)


def config_law(site: Site) -> tuple[Law, ...]:
    """The law N(0, config.initializer_range^2) by which transformers draws projections, if the config says so."""
    std = getattr(site.attribute("config"), "initializer_range", None)
    return (Law("normal", float(std), "transformers: config.initializer_range"),) if std else ()


def is_rotary(site: Site) -> bool:
    """Whether the module's forward takes rotary position embeddings."""
    return bool({"position_embeddings", "sinusoidal_pos"} & set(inspect.signature(site.module.forward).parameters))


def separate(
    site: Site,
    names: tuple[str, str, str],
    *,
    heads: int,
    kv_heads: int,
    size: int,
    out: str | None,
    source: str,
    facts: dict[str, object] | None = None,
) -> AttentionLayout | None:
    """The layout of three separate projections, or None where the shapes do not fit.

    Args:
        site: the module.
        names: children that hold q, k and v.
        heads: query heads.
        kv_heads: key/value heads.
        size: head_dim.
        out: child that holds the output projection; "sibling:PATH" if it is under the parent; None if absent.
        source: the adapter's name.
        facts: facts of the layout.
    """
    parts = [site.projection(name) for name in names]
    if any(part is None for part in parts):
        return None
    q, k, v = (part for part in parts if part is not None)
    if (q.outputs, k.outputs, v.outputs) != (heads * size, kv_heads * size, kv_heads * size):
        return None
    outside = out is not None and out.startswith("sibling:")
    projection = None
    if out is not None:
        projection = site.sibling(out.removeprefix("sibling:")) if outside else site.projection(out)
        if projection is not None and projection.inputs != heads * size:
            projection = None
        if projection is None and not outside:
            return None
    scale = site.attribute("scaling")
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source=source,
        q=q.rows(range(0, heads * size, size), size),
        k=k.rows(range(0, kv_heads * size, size), size),
        v=v.rows(range(0, kv_heads * size, size), size),
        o=None if projection is None else projection.columns(heads),
        scale=size**-0.5 if scale is None else float(scale),
        causal=bool(site.attribute("is_causal")) if hasattr(site.module, "is_causal") else None,
        facts=dict(facts or {}),
        output="heads" if outside or out is None else "projected",
        zero_bias=True,
        laws=config_law(site),
    )
