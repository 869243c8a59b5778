"""What several transformers adapters share."""

from __future__ import annotations

import inspect

from kappaone.laws import Law
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site


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
