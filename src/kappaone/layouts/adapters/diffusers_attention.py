"""diffusers' attentions: `to_q`, `to_k`, `to_v`, `to_out`, run by a processor that can be exchanged.

What a module computes is in its processor, so that its code is asked: whether it takes a softmax at all, and, where
`fuse_projections()` has put `to_qkv` (or `to_kv`, `to_added_qkv`) beside the three weights, which of them it reads.
Joint attention over two streams is two layouts, "attn" and "attn[added]". Facts of the source of diffusers 0.42.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.adapters import code
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.origin import is_of
from kappaone.layouts.site import Outside, Site

_SOFTMAX = {
    *("scaled_dot_product_attention", "dispatch_attention_fn", "get_attention_scores", "softmax"),
    *("memory_efficient_attention", "flash_attn_func", "flex_attention"),
}
_CHILDREN = {
    *("to_q", "to_k", "to_v", "to_out", "to_qkv", "to_kv", "to_added_qkv", "to_added_kv", "to_add_out"),
    *("add_q_proj", "add_k_proj", "add_v_proj", "norm_q", "norm_k", "norm_added_q", "norm_added_k"),
    *("group_norm", "spatial_norm", "norm_cross"),
}
_ROTARY = {"image_rotary_emb", "rotary_emb", "query_rotary_emb", "freqs_cis", "position_embeddings"}


@dataclass(frozen=True)
class _Stream:
    """One of the streams of a joint attention: the names of its parts."""

    fused: str
    pair: str
    parts: tuple[str, str, str]
    norms: tuple[str, str]
    out: tuple[str, ...]


_OWN = _Stream("to_qkv", "to_kv", ("to_q", "to_k", "to_v"), ("norm_q", "norm_k"), ("to_out.0", "to_out"))
_ADDED = _Stream(
    "to_added_qkv",
    "to_added_kv",
    ("add_q_proj", "add_k_proj", "add_v_proj"),
    ("norm_added_q", "norm_added_k"),
    ("to_add_out",),
)


def describe(site: Site) -> list[AttentionLayout] | Outside | None:
    """The layouts of a diffusers attention, or None."""
    processor = site.attribute("processor")
    children = site.children()
    if not callable(processor) or not isinstance(site.attribute("heads"), int):
        return None
    if "to_qkv_mlp_proj" in children:
        return _beside_mlp(site)
    if not {"to_q", "to_v"} <= children:
        return None
    run = type(processor).forward if isinstance(processor, nn.Module) else type(processor).__call__
    if not is_of(run, "diffusers"):
        return None  # a processor of somebody's own may cut and mix as it likes
    names = code.called_names(run)
    if not names & _SOFTMAX and {"to_q", "to_k"} <= children:
        return Outside("linear attention: its processor takes no softmax")
    if not names & _SOFTMAX or not children <= _CHILDREN or site.own_parameters():
        return None
    joint = {"add_q_proj", "add_k_proj", "add_v_proj"} <= children
    only_added = "to_k" not in children and {"add_k_proj", "add_v_proj"} <= children
    main = _stream(site, _OWN if not only_added else _crossed(), names, run, joint=joint, added=False)
    if main is None:
        return None
    if not joint:
        return [main]
    added = _stream(site, _ADDED, names, run, joint=True, added=True)
    return None if added is None else [main, added]


def _beside_mlp(site: Site) -> list[AttentionLayout] | None:
    """Flux 2's single-stream blocks: rows [Q|K|V|MLP], columns of the output projection [attention|MLP]."""
    part, out = site.projection("to_qkv_mlp_proj"), site.projection("to_out")
    heads, inner = int(site.attribute("heads")), site.attribute("inner_dim")
    known = site.children() <= {"to_qkv_mlp_proj", "to_out", "norm_q", "norm_k", "mlp_act_fn"}
    if part is None or out is None or not known or not isinstance(inner, int) or inner % heads or site.own_parameters():
        return None
    hidden, factor = site.attribute("mlp_hidden_dim"), site.attribute("mlp_mult_factor")
    if part.outputs != 3 * inner + hidden * factor or out.inputs != inner + hidden:
        return None
    size = inner // heads
    rows = [part.rows(range(i * inner, (i + 1) * inner, size), size) for i in range(3)]
    facts: dict[str, Any] = {"parallel": True, "rotary": True}
    if norm := _norm(site, _OWN.norms, rows[0]):
        facts["qk_norm"] = norm
    return [
        AttentionLayout(
            name=site.name,
            kind=type(site.module).__name__,
            source="diffusers.attention",
            q=rows[0],
            k=rows[1],
            v=rows[2],
            o=out.columns(heads, size=size),
            scale=size**-0.5,
            facts=facts,
            laws=(Law("uniform", (3 * part.inputs) ** -0.5, "torch: nn.Linear's default"),),
        )
    ]


def _crossed() -> _Stream:
    """Queries of its own, keys and values of the added stream alone (`only_cross_attention`)."""
    return _Stream("", "", ("to_q", "add_k_proj", "add_v_proj"), _OWN.norms, _OWN.out)


def _stream(
    site: Site, stream: _Stream, names: set[str], run: Callable[..., Any], *, joint: bool, added: bool
) -> AttentionLayout | None:
    heads = int(site.attribute("heads"))
    rows = _rows(site, stream, names, heads)
    if rows is None:
        return None
    q = rows["q"]
    scale = site.attribute("scale")
    if isinstance(scale, float) and scale not in (1.0, q.size**-0.5):
        return None
    out = site.first_projection(*stream.out)
    if out is not None and out.inputs != heads * rows["v"].size:
        return None
    facts = _facts(site, stream, rows, run, joint=joint, added=added)
    return AttentionLayout(
        name=f"{site.name}[added]" if added else site.name,
        kind=type(site.module).__name__,
        source="diffusers.attention",
        q=q,
        k=rows["k"],
        v=rows["v"],
        o=None if out is None else out.columns(heads),
        scale=float(scale) if isinstance(scale, float) else q.size**-0.5,
        causal=True if site.attribute("is_causal") is True else None,
        facts=facts,
        output="heads" if out is None else "projected",
        laws=tuple(
            Law("uniform", (3 * width) ** -0.5, "torch: nn.Linear's default")
            for width in dict.fromkeys(row.width for row in rows.values())
        ),
    )


def _rows(site: Site, stream: _Stream, names: set[str], heads: int) -> dict[str, RoleRows] | None:
    """The weights that the processor reads: the fused ones if the module says so and the code names them."""
    separate = [site.projection(name) for name in stream.parts]
    q, k, v = separate
    if q is None or k is None or v is None or q.outputs % heads:
        return None
    size = q.outputs // heads
    if k.outputs % size or k.outputs != v.outputs or heads % (k.outputs // size):
        return None
    kv_heads = k.outputs // size
    rows = {
        "q": q.rows(range(0, q.outputs, size), size),
        "k": k.rows(range(0, k.outputs, size), size),
        "v": v.rows(range(0, v.outputs, size), size),
    }
    for child, order in ((stream.fused, "q k v"), (stream.pair, "k v")):
        if not child or child not in site.children() or child not in names:
            continue
        # The newer helpers ask the flag; the older processors for fused weights read them in any case.
        if "fused_projections" in names and not site.attribute("fused_projections"):
            continue
        part = site.projection(child)
        found = None if part is None else fused_rows(part, order, heads=heads, size=size, kv_heads=kv_heads)
        if found is None:
            return None
        rows |= found
    return rows


def _facts(
    site: Site, stream: _Stream, rows: dict[str, RoleRows], run: Callable[..., Any], *, joint: bool, added: bool
) -> dict[str, Any]:
    above = site.parent()
    # Blocks without a flag call self-attention attn1 and cross-attention attn2.
    second = site.name.rpartition(".")[2] == "attn2" and above is not None and hasattr(above[1], "attn1")
    unsaid = second and not hasattr(site.module, "is_cross_attention")
    cross = bool(site.attribute("is_cross_attention")) or unsaid or rows["k"].width != rows["q"].width
    extra = []
    if joint:
        extra.append("both streams attend to the keys of both")
    elif site.children() & {"add_k_proj"} and "to_k" in site.children():
        extra.append("the queries also attend to further keys (add_k_proj, add_v_proj), which are left as they are")
    if site.attribute("residual_connection") is True or site.attribute("rescale_output_factor", 1.0) != 1.0:
        extra.append("its own input is added, or its output divided, inside the module")
    said = {
        "cross": cross,
        "rotary": bool(_ROTARY & set(inspect.signature(run).parameters)) and not cross,
        "qk_norm": _norm(site, stream.norms, rows["q"]),
        "unscaled": site.attribute("scale_qk") is False,
        "extra": "; ".join(extra),
    }
    return {name: value for name, value in said.items() if value}


def _norm(site: Site, norms: tuple[str, str], q: RoleRows) -> bool | str:
    """Whether q and k are normalized, each head or all at once ("whole")."""
    found = [site.attribute(name) for name in norms]
    found = [norm for norm in found if norm is not None and not isinstance(norm, nn.Identity)]
    if not found:
        return False
    sizes = {int(p.numel()) for norm in found for p in norm.parameters()}
    sizes |= {int(size) for norm in found for size in getattr(norm, "normalized_shape", None) or ()}
    return "whole" if q.heads > 1 and sizes & {q.rows} else True
