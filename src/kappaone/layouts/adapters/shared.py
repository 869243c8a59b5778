"""What adapters share: rows of fused weights, biases that are parameters of their own, what a forward takes."""

from __future__ import annotations

import inspect
from dataclasses import replace

from kappaone.layouts.layout import RoleRows
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


def is_rotary(site: Site) -> bool:
    """Whether the module's forward takes rotary position embeddings."""
    return bool({"position_embeddings", "sinusoidal_pos"} & set(inspect.signature(site.module.forward).parameters))
