"""timm's attentions of convolutional models: 1x1 convolutions, norms behind the projections, values of another size.

MaxViT and CoAtNet (order by a switch), Visformer, LeViT, EfficientFormer v1 and v2, TinyViT, bottleneck and halo
attention, the multi-query attention of MobileNet v4, iFormer, SHViT, LowFormer.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.adapters.timm_shared import every, has, layout, linear_laws, number, only, scale, truthy
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.site import Projection, Site

SOURCE = "timm.conv"
_TABLE = "attention_biases"


def describe(site: Site) -> AttentionLayout | None:
    """The layout of one of these attentions, or None."""
    for family in (
        _switched,
        _visformer,
        _levit,
        _levit_downsample,
        _efficientformer,
        _efficientformer_v2,
        _bottleneck,
        _halo,
        _multi_query,
        _iformer,
        _shvit,
        _lowformer,
        _non_local,
    ):
        found = family(site)
        if found is not None:
            return found
    return None


def _switched(site: Site) -> AttentionLayout | None:
    """MaxViT, CoAtNet and `layers.Attention2d`: `head_first` says whether heads or roles are the outer axis."""
    if not has(site, "num_heads", "dim_head", "head_first", "qkv", "proj", "attn_drop"):
        return None
    heads, size = number(site, "num_heads"), number(site, "dim_head")
    qkv, proj = site.projection("qkv"), site.projection("proj")
    if not only(site, {"qkv", "proj", "rel_pos"}) or qkv is None or proj is None or heads is None or size is None:
        return None
    if proj.inputs != heads * size:
        return None
    order = "head(q k v)" if site.attribute("head_first") else "q k v"
    parent = next(site.ancestors(), None)
    facts = truthy(position_bias="rel_pos" in site.children(), windows=hasattr(parent, "partition_size"))
    rows = fused_rows(qkv, order, heads=heads, size=size)
    return layout(
        site,
        SOURCE,
        rows,
        proj.columns(heads),
        facts,
        factor=scale(site) or size**-0.5,
        laws=linear_laws(qkv),
        zero_bias=True,
    )


def _visformer(site: Site) -> AttentionLayout | None:
    if not has(site, "dim", "num_heads", "head_dim", "scale", "qkv", "proj") or not only(site, {"qkv", "proj"}):
        return None
    heads, size = number(site, "num_heads"), number(site, "head_dim")
    qkv, proj = site.projection("qkv"), site.projection("proj")
    if qkv is None or proj is None or heads is None or size is None or proj.inputs != heads * size:
        return None
    if not isinstance(site.attribute("qkv"), nn.Conv2d):
        return None
    rows = fused_rows(qkv, "q k v", heads=heads, size=size)
    kaiming = Law("normal", (2 / qkv.outputs) ** 0.5, "timm: kaiming_normal_(mode='fan_out')")
    laws = (*linear_laws(qkv), kaiming)
    return layout(site, SOURCE, rows, proj.columns(heads), {}, factor=scale(site), laws=laws)


def _levit(site: Site) -> AttentionLayout | None:
    """Per head (q, k, v), values of their own size, a batch norm behind, an activation before the output."""
    if not has(site, "num_heads", "key_dim", "val_dim", "scale", "use_conv", "qkv", _TABLE):
        return None
    sizes = every(*(number(site, name) for name in ("num_heads", "key_dim", "val_dim")))
    qkv, proj = site.projection("qkv"), site.projection("proj.ln")
    parts = every(qkv, proj)
    if not only(site, {"qkv", "proj"}, {_TABLE}) or sizes is None or parts is None:
        return None
    (heads, size, values), (qkv, proj) = sizes, parts
    rows = fused_rows(qkv, "head(q k v)", heads=heads, size=size, value_size=values)
    return _with_values(site, rows, proj, heads, values, {**_normed(site, "qkv"), **_bent_output(site)}, qkv)


def _levit_downsample(site: Site) -> AttentionLayout | None:
    if not has(site, "num_heads", "key_dim", "val_dim", "scale", "use_conv", "q", "kv", _TABLE):
        return None
    sizes = every(*(number(site, name) for name in ("num_heads", "key_dim", "val_dim")))
    q, kv, proj = site.projection("q.ln"), site.projection("kv"), site.projection("proj.ln")
    parts = every(q, kv, proj)
    if not only(site, {"q", "kv", "proj"}, {_TABLE}) or sizes is None or parts is None:
        return None
    (heads, size, values), (q, kv, proj) = sizes, parts
    queries = fused_rows(q, "q", heads=heads, size=size)
    others = fused_rows(kv, "head(k v)", heads=heads, size=size, value_size=values)
    if queries is None or others is None:
        return None
    facts = {**_normed(site, "kv"), **_bent_output(site), "extra": "only every second token asks"}
    return _with_values(site, {**queries, **others}, proj, heads, values, facts, q, kv)


def _efficientformer(site: Site) -> AttentionLayout | None:
    """EfficientFormer and TinyViT: as LeViT, without norms behind; TinyViT with one in front."""
    needs = ("num_heads", "key_dim", "val_dim", "attn_ratio", "scale", "qkv", "proj", _TABLE)
    if not has(site, *needs) or hasattr(site.module, "use_conv"):
        return None
    sizes = every(*(number(site, name) for name in ("num_heads", "key_dim", "val_dim")))
    qkv, proj = site.projection("qkv"), site.projection("proj")
    parts = every(qkv, proj)
    if not only(site, {"qkv", "proj", "norm"}, {_TABLE}) or sizes is None or parts is None:
        return None
    (heads, size, values), (qkv, proj) = sizes, parts
    rows = fused_rows(qkv, "head(q k v)", heads=heads, size=size, value_size=values)
    windowed = hasattr(next(site.ancestors(), None), "window_size")
    facts = truthy(
        windows=windowed, extra="norm" in site.children() and "a layer norm stands in front of the projections"
    )
    return _with_values(site, rows, proj, heads, values, facts, qkv, zeroed=True)


def _efficientformer_v2(site: Site) -> AttentionLayout | None:
    """Three convolutions with norms; a convolution of the values is added; talking heads but when it downsamples."""
    if not has(site, "num_heads", "key_dim", "d", "dh", "scale", "v_local", "act", _TABLE):
        return None
    down = hasattr(site.attribute("q"), "local")
    known = {"q", "k", "v", "v_local", "act", "proj", "talking_head1", "talking_head2", "stride_conv", "upsample"}
    sizes = every(*(number(site, name) for name in ("num_heads", "key_dim", "d")))
    q, k, v = site.projection("q.proj" if down else "q"), site.projection("k"), site.projection("v")
    proj = site.projection("proj")
    parts = every(q, k, v, proj)
    if not only(site, known, {_TABLE}) or sizes is None or parts is None:
        return None
    (heads, size, values), (q, k, v, proj) = sizes, parts
    rows = {
        **(fused_rows(q, "q", heads=heads, size=size) or {}),
        **(fused_rows(k, "k", heads=heads, size=size) or {}),
        **(fused_rows(v, "v", heads=heads, size=values) or {}),
    }
    facts = truthy(
        talking_heads="talking_head1" in site.children(),
        activated=True,
        **_normed(site, "k"),
        extra="a depthwise convolution of the values is added to the output"
        + ("; tokens are downsampled first" if "stride_conv" in site.children() else ""),
    )
    return _with_values(site, rows, proj, heads, values, facts, q, k, v)


def _bottleneck(site: Site) -> AttentionLayout | None:
    """[Q|K|V] of one convolution, no output projection."""
    if not has(site, "num_heads", "dim_head_qk", "dim_head_v", "scale", "scale_pos_embed", "qkv", "pos_embed"):
        return None
    heads, size, values = (number(site, name) for name in ("num_heads", "dim_head_qk", "dim_head_v"))
    qkv = site.projection("qkv")
    if not only(site, {"qkv", "pos_embed", "pool"}) or qkv is None or not (heads and size and values):
        return None
    rows = fused_rows(qkv, "q k v", heads=heads, size=size, value_size=values)
    facts = truthy(relative=True, extra="pool" in site.children() and "the output is pooled")
    law = Law("normal", qkv.inputs**-0.5, "timm: trunc_normal_(std=fan_in ** -.5)", bound=2.0)
    return layout(site, SOURCE, rows, None, facts, factor=scale(site), output="heads", laws=(law,))


def _halo(site: Site) -> AttentionLayout | None:
    """Queries of blocks, keys and values of their surroundings: [Q] and, per head, (k, v); no output projection."""
    if not has(site, "num_heads", "dim_head_qk", "dim_head_v", "scale", "halo_size", "block_size", "q", "kv"):
        return None
    heads, size, values = (number(site, name) for name in ("num_heads", "dim_head_qk", "dim_head_v"))
    q, kv = site.projection("q"), site.projection("kv")
    if not only(site, {"q", "kv", "pos_embed", "pool"}) or q is None or kv is None or not (heads and size and values):
        return None
    queries = fused_rows(q, "q", heads=heads, size=size)
    others = fused_rows(kv, "head(k v)", heads=heads, size=size, value_size=values)
    if queries is None or others is None:
        return None
    fewer = (number(site, "block_stride") or 1) > 1 or "pool" in site.children()
    facts = truthy(relative=True, windows=True, extra=fewer and "the output has fewer tokens than the input")
    law = Law("normal", q.inputs**-0.5, "timm: trunc_normal_(std=fan_in ** -.5)", bound=2.0)
    rows = {**queries, **others}
    return layout(site, SOURCE, rows, None, facts, factor=scale(site), output="heads", laws=(law,))


def _multi_query(site: Site) -> AttentionLayout | None:
    """Many query heads on one key and value head; keys and values of a downsampled map."""
    if not has(site, "num_heads", "key_dim", "value_dim", "scale", "kv_stride", "query", "key", "value", "output"):
        return None
    sizes = every(*(number(site, name) for name in ("num_heads", "key_dim", "value_dim")))
    q, k, v, out = (site.projection(f"{name}.proj") for name in ("query", "key", "value", "output"))
    parts = every(q, k, v, out)
    if not only(site, {"query", "key", "value", "output"}) or sizes is None or parts is None:
        return None
    (heads, size, values), (q, k, v, out) = sizes, parts
    rows = {
        **(fused_rows(q, "q", heads=heads, size=size) or {}),
        **(fused_rows(k, "k", heads=heads, kv_heads=1, size=size) or {}),
        **(fused_rows(v, "v", heads=heads, kv_heads=1, size=values) or {}),
    }
    facts = truthy(
        reduced_keys=(number(site, "kv_stride") or 1) > 1,
        extra=bool(site.attribute("has_query_strides")) and "queries read pooled tokens, the output is upsampled",
    )
    return _with_values(site, rows, out, heads, values, facts, q, k, v)


def _iformer(site: Site) -> AttentionLayout | None:
    """One head; the values pass a sigmoid, and the second half of their projection is a gate."""
    if not has(site, "scale", "q", "k", "v_gate", "gate_act", "proj", "window_size"):
        return None
    q, k, v, proj = (site.projection(name) for name in ("q", "k", "v_gate", "proj"))
    if not only(site, {"q", "k", "v_gate", "gate_act", "proj"}):
        return None
    if q is None or k is None or v is None or proj is None:
        return None
    if q.outputs != k.outputs or v.outputs != 2 * proj.inputs:
        return None
    rows = {"q": q.rows([0], q.outputs), "k": k.rows([0], k.outputs), "v": v.rows([0], proj.inputs)}
    facts = truthy(
        **_normed(site, "q"),
        activated=True,
        gate=True,
        partial="the second half of v_gate is a gate",
        windows=bool(site.attribute("window_size")),
    )
    return layout(site, SOURCE, rows, proj.columns(1), facts, factor=scale(site), laws=linear_laws(q, k, v))


def _shvit(site: Site) -> AttentionLayout | None:
    """One head on the first `pdim` channels; the others go past it to the output projection."""
    if not has(site, "scale", "qk_dim", "pdim", "dim", "pre_norm", "qkv", "proj"):
        return None
    size, values = number(site, "qk_dim"), number(site, "pdim")
    qkv, proj = site.projection("qkv"), site.projection("proj.1")
    if not only(site, {"pre_norm", "qkv", "proj"}) or qkv is None or proj is None or not (size and values):
        return None
    if proj.inputs != site.attribute("dim") or qkv.inputs != values:
        return None
    rows = fused_rows(qkv, "q k v", heads=1, size=size, value_size=values)
    facts = truthy(
        **_normed(site, "qkv"), activated=True, extra=f"only the first {values} channels attend, behind a norm"
    )
    return layout(site, SOURCE, rows, proj.columns(1, size=values), facts, factor=scale(site), laws=linear_laws(qkv))


def _lowformer(site: Site) -> AttentionLayout | None:
    """LowFormer and CPUBone: (q, k, v) per head, of tokens that a convolution made; a convolution follows."""
    if not has(site, "num_heads", "head_dim", "num_keys", "scale", "conv_proj", "pwise", "o_proj", "upsampling"):
        return None
    heads, size = number(site, "num_heads"), number(site, "head_dim")
    qkv, out = site.projection("pwise"), site.projection("o_proj")
    if not only(site, {"conv_proj", "pwise", "o_proj", "upsampling"}) or qkv is None or not (heads and size):
        return None
    if out is None and "o_proj" in site.children():
        return None
    rows = fused_rows(qkv, "head(q k v)", heads=heads, size=size)
    facts = {
        "extra": "tokens are convolved and downsampled in front of the projections, and upsampled behind"
        + ("" if out is not None else " by the convolution that is also the output projection")
    }
    columns = out.columns(heads) if out is not None and out.inputs == heads * size else None
    return layout(site, SOURCE, rows, columns, facts, factor=scale(site), laws=linear_laws(qkv))


def _non_local(site: Site) -> AttentionLayout | None:
    """Non-local blocks: one head, four convolutions t, p, g, z."""
    if not has(site, "scale", "t", "p", "g", "z", "norm") or not only(site, {"t", "p", "g", "z", "norm"}):
        return None
    q, k, v, out = (site.projection(name) for name in ("t", "p", "g", "z"))
    if q is None or k is None or v is None or out is None or q.outputs != k.outputs or v.outputs != out.inputs:
        return None
    rows = {"q": q.rows([0], q.outputs), "k": k.rows([0], k.outputs), "v": v.rows([0], v.outputs)}
    return layout(site, SOURCE, rows, out.columns(1), {}, factor=scale(site))


def _with_values(
    site: Site,
    rows: dict[str, RoleRows] | None,
    proj: Projection,
    heads: int,
    values: int,
    facts: dict[str, Any],
    *stored: Projection,
    zeroed: bool = False,
) -> AttentionLayout | None:
    """The layout of attention whose values have their own size, with the table of position biases it holds."""
    if proj.inputs != heads * values:
        return None
    facts = {**facts, **truthy(position_bias=_TABLE in site.own_parameters())}
    laws = linear_laws(*stored)
    return layout(site, SOURCE, rows, proj.columns(heads), facts, factor=scale(site), laws=laws, zero_bias=zeroed)


def _normed(site: Site, child: str) -> dict[str, bool]:
    """The fact that a batch norm follows a projection, unless it was folded into it."""
    inside = dict(site.attribute(child).named_children())
    norm = inside.get("bn", inside.get("norm"))
    return {"projection_norm": True} if norm is not None and not isinstance(norm, nn.Identity) else {}


def _bent_output(site: Site) -> dict[str, Any]:
    act = getattr(site.attribute("proj"), "act", None)
    return truthy(activated=act is not None and not isinstance(act, nn.Identity))
