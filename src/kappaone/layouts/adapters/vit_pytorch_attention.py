"""vit-pytorch's attentions, and copies of the plain one: `to_qkv` (or `to_q` and `to_kv`, ...) and `to_out`.

Rows [Q|K|V], head after head, in every model of vit-pytorch 1.26; what differs is what else the module holds. The plain
form is the most copied Transformer code there is, so that it is described without the library too, if its code says
that heads come first and that the chunks are q, k, v in this order.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import nn

from kappaone.laws import Law
from kappaone.layouts.adapters import code
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout, RoleRows
from kappaone.layouts.origin import foreign_code
from kappaone.layouts.site import Outside, Projection, Refusal, Site

# How the roles are stored: child and the order of what it holds.
_STORAGE: tuple[dict[str, str], ...] = (
    {"to_qkv": "q k v"},
    {"to_q": "q", "to_kv": "k v"},
    {"to_qk": "q k", "to_v": "v"},
    {"to_q": "q", "to_k": "k", "to_v": "v"},
    {"qkv": "q k v"},
    {"to_queries": "q", "to_keys": "k", "to_values": "v"},
    {"to_qkv_and_mask": "q k v"},
)
_PLAIN = {"to_qkv", "to_out", "norm", "attend", "dropout"}
# Children that hold no weight of the attention itself.
_KNOWN = {
    *("norm", "norm_q", "norm_k", "norm_v", "norm_context", "context_norm", "attend", "dropout", "split_heads"),
    *("merge_heads", "to_out", "proj", "attn_drop", "proj_drop", "q_norm", "k_norm", "query_norm", "key_norm"),
    *("to_gate", "to_out_gates", "reattn_norm", "rel_pos_bias", "dpb", "pos_bias", "ats", "to_residual_mix"),
    "rotary_emb",
}
_OWN = {"mix_heads_pre_attn", "mix_heads_post_attn", "reattn_weights", "temperature", "q_scale", "k_scale"}
_OUT = ("to_out", "to_out.0", "to_out.1", "to_out.linear", "proj")


def describe(site: Site) -> AttentionLayout | Outside | Refusal | None:
    """The layout of one of vit-pytorch's attentions, or None."""
    library = "vit_pytorch" in sys.modules and foreign_code(site.module, "vit_pytorch") is None
    if not library and not (_copied(site) and code.names_in_order(site.module, "q", "k", "v")):
        return None
    if (declined := _declined(site) if library else None) is not None:
        return declined
    children = site.children()
    storage = next((item for item in _STORAGE if set(item) <= children), None)
    if storage is None or not children - set(storage) <= _KNOWN or not site.own_parameters() <= _OWN:
        return None
    nested = "to_queries" in storage
    if not nested and not code.heads_first(site.module):
        return None
    heads = _heads(site)
    rows = None if heads is None else _rows(site, storage, heads)
    if heads is None or rows is None or not _fits(site, rows["q"]):
        return None
    facts = _facts(site, children)
    return _layout(site, heads, rows, facts)


def _copied(site: Site) -> bool:
    """Whether it is the plain form, to the last attribute."""
    attend = site.attribute("attend")
    numbers = all(isinstance(site.attribute(name), (int, float)) for name in ("heads", "scale"))
    return (
        numbers
        and site.children() | {"dropout"} == _PLAIN
        and not site.own_parameters()
        and isinstance(attend, nn.Softmax)
        and attend.dim == -1
    )


def _declined(site: Site) -> Outside | Refusal | None:
    """What is no softmax attention, and what no layout can state."""
    children, own = site.children(), site.own_parameters()
    if own == {"pseudo_queries"} and children == {"norm"}:
        return Outside("mixes the outputs of layers, not tokens")
    if {"to_qkv", "dynamic_conv"} <= children:
        return Outside("linear attention with a convolution made of its input")
    if {"to_qkv", "to_gate", "split_heads"} <= children:
        return Refusal("the part of the output that lies along each token's value is taken away")
    if {"to_qkv", "window_tokens_to_qk"} <= children:
        return Refusal("a second attention between windows reads what the first one puts out")
    if {"to_q", "to_kv", "use_ds_conv"} <= children | set(vars(site.module)) and site.attribute("use_ds_conv"):
        return Refusal("queries of the class token and of the patches come from different weights")
    if {"to_q", "to_k", "to_v", "local_interactive_module"} <= children:
        return Refusal("the values also enter a convolution over all heads that is added")
    if {"to_kv", "queries"} <= children | own and "to_out" in children:
        return Refusal("the queries are parameters themselves")
    if "to_qkv" in children and site.attribute("specialize_qkv"):
        return Refusal("tokens of different kinds have different projections")
    if {"to_q_v_tokens", "to_k_v_slots"} <= children:
        return Refusal("tokens and slots attend to each other through one set of logits")
    if site.attribute("reuse_attention") is True:
        return Refusal("the logits are those of another layer")
    if any(_strided(site.attribute(name)) for name in ("to_k", "to_kv")):
        return Refusal("keys and values are projected by a convolution over several tokens")
    return None


def _strided(child: Any) -> bool:
    return isinstance(child, nn.Conv2d) and any(size > 1 for size in child.kernel_size)


def _heads(site: Site) -> int | None:
    found = site.attribute("heads")
    if found is None and (split := site.attribute("split_heads")) is not None:
        found = dict(getattr(split, "axes_lengths", {}) or {}).get("h")
    return found if isinstance(found, int) and found >= 1 else None


def _part(site: Site, name: str) -> Projection | None:
    """A projection: of its own, behind a depthwise convolution, in front of a batch norm, or parametrized."""
    return site.first_projection(f"{name}.net.2", f"{name}.0", f"{name}.linear", name)


def _rows(site: Site, storage: dict[str, str], heads: int) -> dict[str, RoleRows] | None:
    out: dict[str, RoleRows] = {}
    for name, order in storage.items():
        part = _part(site, name)
        if part is None:
            return None
        if name == "to_qkv_and_mask":
            found = _beside_masks(site, part, heads)
        elif part.outputs % (heads * len(order.split())):
            return None
        else:
            found = fused_rows(part, order, heads=heads, size=part.outputs // (heads * len(order.split())))
        if found is None:
            return None
        out |= found
    return out


def _beside_masks(site: Site, part: Projection, heads: int) -> dict[str, RoleRows] | None:
    """q, k, v in front of the rows of two smaller roles, by which logits are gated."""
    inner, *_ = given = tuple(site.attribute("split_dims", (0,)))
    if len(given) != 5 or given[:3] != (inner,) * 3 or sum(given) != part.outputs or inner % heads or not inner:
        return None
    size = inner // heads
    return {role: part.rows(range(i * inner, (i + 1) * inner, size), size) for i, role in enumerate("qkv")}


def _fits(site: Site, q: RoleRows) -> bool:
    """Whether head_dim is the one that the scale (or `dim_head`) says."""
    scale, size = site.attribute("scale"), site.attribute("dim_head")
    if isinstance(size, int):
        return size == q.size
    return not isinstance(scale, float) or abs(scale - q.size**-0.5) < 1e-6


def _facts(site: Site, children: set[str]) -> dict[str, Any]:
    own, given = site.own_parameters(), _arguments(site.module)
    table = site.attribute("rel_pos_bias")
    relative = isinstance(table, nn.Module) and not hasattr(table, "num_embeddings")
    channels = "temperature" in own and site.module.temperature.ndim == 3
    gathered = children | own
    cross = bool(children & {"norm_context", "context_norm"}) or site.attribute("cross_attend") is True
    # NaViT's pooling: one learned query for each image.
    pool = site.name.rpartition(".")[2] == "attn_pool" and _around(site, "attn_pool_queries")
    extra = {
        "the temperature is learned, and tokens do not attend to themselves": "temperature" in own and not channels,
        "tokens are sampled by their attention": "ats" in children,
        "values of the first layer are mixed in": hasattr(site.module, "to_residual_mix"),
        "logits are gated by further rows of the projection": "to_qkv_and_mask" in children,
        "q and k are turned by polar embeddings": "polar_pos_emb" in given,
        "convolutions come before the projections": site.projection("to_q.net.2") is not None,
        "learned memories are appended to what keys and values read": _around(site, "memories_per_layer"),
    }
    said = {
        "cross": cross or pool,
        "one_query": pool,
        "rotary": (bool({"pos_emb", "rotary_emb"} & given) and site.attribute("use_rotary", True) is not False)
        or site.attribute("rotary_emb") is not None,
        "position_bias": ("rel_pos_bias" in children and not relative)
        or bool(children & {"dpb", "pos_bias"})
        or ("rel_pos_bias" in given and _around(site, "local_rel_pos_bias")),
        "relative": relative,
        "qk_norm": bool(children & {"q_norm", "k_norm", "query_norm", "key_norm"}),
        "cosine": channels or "q_scale" in own,
        "projection_norm": isinstance(getattr(site.attribute("to_q"), "1", None), nn.BatchNorm2d),
        "channel_attention": channels,
        "talking_heads": bool(gathered & {"mix_heads_pre_attn", "mix_heads_post_attn", "reattn_weights"}),
        "gate": bool(children & {"to_gate", "to_out_gates"}),
        "windows": "dpb" in children
        or ("rel_pos_bias" in children and not relative)
        or isinstance(site.attribute("patch_size"), int),
        "reduced_keys": any(size > 1 for size in _stride(site)),
        "activated": isinstance(getattr(site.attribute("to_out"), "0", None), nn.GELU),
        "extra": "; ".join(text for text, true in extra.items() if true),
    }
    return {name: value for name, value in said.items() if value}


def _stride(site: Site) -> tuple[int, ...]:
    """The stride of a depthwise convolution in front of the keys."""
    first = getattr(getattr(site.attribute("to_kv"), "net", None), "0", None)
    return tuple(first.stride) if isinstance(first, nn.Conv2d) else ()


def _arguments(module: nn.Module) -> set[str]:
    own = getattr(getattr(type(module), "forward", None), "__code__", None)
    return set() if own is None else set(own.co_varnames[: own.co_argcount + own.co_kwonlyargcount])


def _around(site: Site, name: str) -> bool:
    """Whether a module around has this attribute."""
    above = site.name
    while above:
        above = above.rpartition(".")[0]
        if hasattr(site.modules.get(above), name):
            return True
    return False


def _layout(site: Site, heads: int, rows: dict[str, RoleRows], facts: dict[str, Any]) -> AttentionLayout | None:
    out = site.first_projection(*_OUT)
    if out is None and site.children() & {"to_out", "proj"}:
        return None
    if out is not None and out.inputs != heads * rows["v"].size:
        return None
    scale = site.attribute("scale")
    unscaled = facts.get("qk_norm") and not isinstance(scale, float) and "to_queries" not in site.children()
    drawn = [Law("uniform", (3 * row.width) ** -0.5, "torch: nn.Linear's default") for row in rows.values()]
    if "qkv" in site.children():
        drawn.insert(0, Law("normal", 0.02, "vit-pytorch: trunc_normal_(std=.02)"))
    if facts.get("cosine"):
        scale = None if facts.get("channel_attention") else 1.0
    elif "temperature" in site.own_parameters():
        scale = None
    else:
        scale = float(scale) if isinstance(scale, float) else 1.0 if unscaled else rows["q"].size ** -0.5
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="vit_pytorch.attention",
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=None if out is None else out.columns(heads),
        scale=scale,
        causal=True if site.attribute("causal") is True else None,
        facts=facts,
        output="heads" if out is None else "projected",
        laws=() if facts.get("cosine") and not facts.get("channel_attention") else tuple(dict.fromkeys(drawn)),
    )
