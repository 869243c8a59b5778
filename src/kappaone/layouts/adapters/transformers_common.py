"""What the adapters of transformers share: a layout from its parts, the library's law, whether keys come from elsewhere."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Literal

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Projection, Site

# Required inputs of a forward by which keys and values are read from other tokens than queries.
_ELSEWHERE = {"encoder_hidden_states", "key_value_states", "context"}
# Attributes under which models hold the attention to another sequence.
_CROSS = {"crossattention", "cross_attention", "cross_attn", "encoder_attn", "EncDecAttention"}


def assemble(
    site: Site,
    source: str,
    rows: Mapping[str, RoleRows],
    o: Projection | RoleRows | None,
    *,
    scale: float | None,
    facts: Mapping[str, Any],
    output: Literal["projected", "heads"] = "projected",
    causal: bool | None = None,
    suffix: str = "",
    laws: tuple[Law, ...] | None = None,
    zero_bias: bool = True,
) -> AttentionLayout | None:
    """The layout of rows that are known, or None where the output projection does not read what the values give.

    Args:
        site: the module.
        source: the adapter's name.
        rows: of q, k and v.
        o: the output projection, or its columns.
        scale: factor on q.k.
        facts: facts of the layout; those that are None or False are left out.
        output: whether the module returns what its output projection gives, or the heads.
        causal: whether the module masks the future itself.
        suffix: tells several attentions of one module apart.
        laws: of the library; by the nearest model's configuration if None.
        zero_bias: whether the library sets biases to zero.
    """
    value_heads, size = rows["q"].heads, rows["v"].size
    if isinstance(o, Projection):
        if o.inputs != value_heads * size:
            return None
        o = o.columns(value_heads)
    if o is not None and (o.size != size or o.heads != value_heads):
        return None
    stated = {
        name: value
        for name, value in facts.items()
        if value is not None and (value is not False or name == "batch_first")
    }
    return AttentionLayout(
        name=f"{site.name}[{suffix}]" if suffix else site.name,
        kind=type(site.module).__name__,
        source=source,
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=o,
        scale=scale,
        causal=causal,
        facts=stated,
        output=output,
        zero_bias=zero_bias,
        laws=nearest_law(site) if laws is None else laws,
    )


def from_separate(
    site: Site,
    source: str,
    names: tuple[str, str, str],
    out: str | None,
    *,
    heads: int,
    size: int,
    kv_heads: int | None = None,
    value_size: int | None = None,
    scale: float | None,
    facts: Mapping[str, Any],
    o: RoleRows | None = None,
    **more: Any,
) -> AttentionLayout | None:
    """The layout of three projections, or None where their shapes do not fit the heads.

    Args:
        site: the module.
        source: the adapter's name.
        names: children (or parameters) of q, k, v.
        out: child of the output projection; "sibling:PATH" under the parent (left out if it is not there); None for none.
        heads: query heads.
        size: rows per head of q and k.
        kv_heads: key/value heads; heads if None.
        value_size: rows per head of v; size if None.
        scale: factor on q.k.
        facts: facts of the layout.
        o: columns of an output projection that reads something else too; `out` is then None.
        more: further arguments of `assemble`.
    """
    parts = [site.projection(name) for name in names]
    shared, values = kv_heads or heads, value_size or size
    wanted = (heads * size, shared * size, shared * values)
    if any(part is None or part.outputs != outputs for part, outputs in zip(parts, wanted, strict=True)):
        return None
    each = zip("qkv", parts, (size, size, values), strict=True)
    rows = {role: part.rows(range(0, part.outputs, step), step) for role, part, step in each if part is not None}
    outside = out is not None and out.startswith("sibling:")
    after = None
    if out is not None:
        after = site.sibling(out.removeprefix("sibling:")) if outside else site.projection(out)
    if outside and after is not None and after.inputs != heads * values:
        after = None  # something else of this name
    if after is None and out is not None and not outside:
        return None
    output = "heads" if outside or out is None else "projected"
    return assemble(site, source, rows, after or o, **{"scale": scale, "facts": facts, "output": output, **more})


def from_fused(
    site: Site,
    source: str,
    child: str,
    order: str,
    out: str | None,
    *,
    heads: int,
    size: int,
    kv_heads: int | None = None,
    value_size: int | None = None,
    scale: float | None,
    facts: Mapping[str, Any],
    **more: Any,
) -> AttentionLayout | None:
    """The layout of one fused projection, or None where its rows are not just these; arguments as `from_separate`."""
    part = site.projection(child)
    if part is None or (kv_heads and heads % kv_heads):
        return None
    rows = fused_rows(part, order, heads=heads, size=size, kv_heads=kv_heads, value_size=value_size)
    if rows is None:
        return None
    outside = out is not None and out.startswith("sibling:")
    o = None
    if out is not None:
        o = site.sibling(out.removeprefix("sibling:")) if outside else site.projection(out)
        if o is None and not outside:
            return None
    output = "heads" if outside or out is None else "projected"
    return assemble(site, source, rows, o, **{"scale": scale, "facts": facts, "output": output, **more})


def number(site: Site, *names: str) -> int | None:
    """The first of several attributes that is a whole number of at least 1; "config.NAME" asks the configuration."""
    for name in names:
        value: Any = site.module
        for step in name.split("."):
            value = getattr(value, step, None)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
            return value
    return None


def real(site: Site, *names: str) -> float | None:
    """The first of several attributes that is a number."""
    for name in names:
        value = site.attribute(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    return None


def own_causal(site: Site) -> bool | None:
    """What the module says of itself: `is_causal`, or None where it says nothing."""
    value = site.attribute("is_causal")
    return value if isinstance(value, bool) else None


def inputs_of(site: Site) -> set[str]:
    """The names of what the module's forward takes."""
    return set(inspect.signature(site.module.forward).parameters)


def is_cross(site: Site) -> bool:
    """Whether keys and values come from other tokens: the module, who holds it, or what its forward demands says so."""
    if _CROSS & set(site.name.split(".")[-2:]):
        return True
    above = site.parent()
    holders = [site.module, *([above[1]] if above else [])]
    if any(getattr(holder, "is_cross_attention", False) is True for holder in holders):
        return True
    parameters = inspect.signature(site.module.forward).parameters.values()
    return bool({p.name for p in parameters if p.default is inspect.Parameter.empty} & _ELSEWHERE)


def held_as(site: Site) -> str:
    """The attribute under which the parent holds the module."""
    return site.name.rpartition(".")[2]


def of_transformers(site: Site) -> bool:
    """Whether the innermost configuration around a module is one of transformers and of a model of its own.

    For attributes that other libraries use too (timm's `qkv`, diffusers' `to_q`). transformers wraps whole models of
    timm; what is in them is timm's.
    """
    for module in (site.module, *site.ancestors()):
        kind = getattr(getattr(module, "config", None), "model_type", None)
        if isinstance(kind, str):
            return not kind.startswith("timm")
    return False


def nearest_law(site: Site) -> tuple[Law, ...]:
    """The law by which transformers draws linear maps: N(0, std^2), by the configuration of the model around the site.

    `PreTrainedModel._init_weights` asks the innermost model's configuration for `initializer_range` and `init_std`, in
    this order, and takes 0.02 where it says nothing (transformers 5.24, modeling_utils.py). Models that only have an
    `initializer_factor` draw by laws of their own.
    """
    for module in site.ancestors():
        config = getattr(module, "config", None)
        if config is None or not hasattr(module, "_init_weights"):
            continue
        names = [name for name in ("initializer_range", "init_std") if hasattr(config, name)]
        if not names and hasattr(config, "initializer_factor"):
            return ()
        std = getattr(config, names[0]) if names else 0.02
        if std is None or isinstance(std, (int, float)):
            return (Law("normal", float(std or 0.02), "transformers: config.initializer_range"),)
    return ()
