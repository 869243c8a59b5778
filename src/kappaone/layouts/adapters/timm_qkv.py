"""timm's attentions with one linear map `qkv` (rows [Q|K|V], head after head) and `proj`, beside the plain one.

One table: by what each is known, what else it may hold, and which fact that is. The order is the same for all of them
but DaViT's first channel attention, whose rows called q, k and v play the roles v, q and k.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kappaone.layouts.adapters.shared import fused_rows, with_bias
from kappaone.layouts.adapters.timm_shared import (
    has,
    layout,
    linear_laws,
    number,
    only,
    qk_norms,
    scale,
    truthy,
    within,
)
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Site

SOURCE = "timm.qkv"
_QK_NORM = ("q_norm", "k_norm")
_ROPE = frozenset({*_QK_NORM, "norm", "gate"})


def _facts_of_gated(site: Site) -> dict[str, Any]:
    children = site.children()
    return truthy(qk_norm=qk_norms(site), output_norm="norm" in children, gate="gate" in children)


def rotary(site: Site) -> dict[str, Any]:
    """Facts of attention that takes rotary embeddings, unless the model around says that it has none."""
    said = [module.rope for module in site.ancestors() if hasattr(module, "rope")]
    return {**_facts_of_gated(site), **truthy(rotary=not said or any(rope is not None for rope in said))}


def _relative_sam(site: Site) -> dict[str, Any]:
    windowed = next((getattr(m, "window_size", 0) for m in site.ancestors() if hasattr(m, "window_size")), 0)
    return truthy(
        qk_norm=qk_norms(site),
        relative=bool(site.attribute("use_rel_pos")),
        rotary=site.attribute("rope") is not None,
        windows=_positive(windowed),
    )


def _positive(size: Any) -> bool:
    return any(value > 0 for value in size) if isinstance(size, (tuple, list)) else bool(size)


def _relative_bias(site: Site) -> dict[str, Any]:
    shared = any(getattr(module, "shared_rel_pos", None) is not None for module in site.ancestors())
    own = "rel_pos" in site.children()
    return truthy(qk_norm=qk_norms(site), position_bias=own or shared)


def _beit(site: Site) -> dict[str, Any]:
    shared = any(getattr(module, "rel_pos_bias", None) is not None for module in site.ancestors())
    own = "relative_position_bias_table" in site.own_parameters()
    return truthy(position_bias=own or shared)


def _hiera(site: Site) -> dict[str, Any]:
    return truthy(windows=bool(site.attribute("use_mask_unit_attn")), pooled=(number(site, "q_stride") or 1) > 1)


def _hieradet(site: Site) -> dict[str, Any]:
    windowed = next((getattr(m, "window_size", 0) for m in site.ancestors() if hasattr(m, "window_size")), 0)
    return truthy(pooled=site.attribute("q_pool") is not None, windows=_positive(windowed))


def _multiscale(site: Site) -> dict[str, Any]:
    pooled = any(site.attribute(f"{kind}_{role}") is not None for kind in ("pool", "norm") for role in "qkv")
    return truthy(
        pooled=pooled,
        relative=site.attribute("rel_pos_type") == "spatial",
        reduced_keys=site.attribute("pool_k") is not None,
        extra="the pooled queries are added to the output" if site.attribute("residual_pooling") else None,
    )


def _always(**facts: Any) -> Callable[[Site], dict[str, Any]]:
    return lambda _: dict(facts)


@dataclass(frozen=True)
class _Family:
    """One attention of the table.

    Attributes:
        needs: attributes that it has, beyond `qkv` and `proj`.
        lacks: attributes that it does not have (others of the table do).
        children: children that it may have, beyond `qkv`, `proj` and dropouts.
        parameters: parameters that it may hold itself.
        facts: from the site to its facts.
        heads: attribute that holds the number of heads.
        order: of the rows of `qkv`.
        split: query heads for each head of the output (2: differential attention).
        interleaved: the output's columns run over the heads first.
        factor: the factor on q.k: "attribute", "head_dim" (1/sqrt of it), or None where it is learned or depends on the
            input.
        around: attributes of a module around, where the module itself has too few to be known by.
        drawn: the model draws these weights by one of `linear_laws` (checked on fresh models of timm 1.0.31).
        zeroed: the model zeroes the biases of q, k and v.
    """

    needs: tuple[str, ...]
    lacks: tuple[str, ...] = ()
    children: frozenset[str] = frozenset()
    parameters: frozenset[str] = frozenset()
    facts: Callable[[Site], dict[str, Any]] = field(default=_always())
    heads: str = "num_heads"
    order: str = "q k v"
    split: int = 1
    interleaved: bool = False
    factor: str | None = "attribute"
    around: tuple[str, ...] = ()
    drawn: bool = True
    zeroed: bool = True


_BIASES = frozenset({"q_bias", "v_bias"})
_LAMBDAS = frozenset({"lambda_a", "lambda_b", "lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"})

FAMILIES: Mapping[str, _Family] = {
    "Swin": _Family(
        ("num_heads", "scale", "window_area", "relative_position_index"),
        parameters=frozenset({"relative_position_bias_table"}),
        facts=_always(position_bias=True, windows=True),
    ),
    "Swin v2": _Family(
        ("num_heads", "logit_scale", "cpb_mlp", "pretrained_window_size"),
        children=frozenset({"cpb_mlp"}),
        parameters=_BIASES | {"logit_scale"},
        facts=_always(cosine=True, position_bias=True, windows=True),
        factor=None,
    ),
    "Swin v2 CR": _Family(
        ("num_heads", "logit_scale", "meta_mlp", "sequential_attn"),
        children=frozenset({"meta_mlp"}),
        parameters=frozenset({"logit_scale"}),
        facts=_always(cosine=True, position_bias=True, windows=True),
        factor=None,
        zeroed=False,
    ),
    "XCiT": _Family(
        ("num_heads", "temperature", "fused_attn"),
        lacks=("project_out", "qkv_dwconv"),
        parameters=frozenset({"temperature"}),
        facts=_always(channel_attention=True, cosine=True),
        factor=None,
    ),
    "EdgeNeXt": _Family(
        ("num_heads", "temperature", "attn_drop"),
        lacks=("project_out", "qkv_dwconv", "fused_attn"),
        parameters=frozenset({"temperature"}),
        facts=_always(channel_attention=True, cosine=True),
        factor=None,
        drawn=False,  # truncated at two standard deviations: neither normal nor uniform
    ),
    "DaViT windows": _Family(
        ("num_heads", "scale", "window_size", "softmax", "dim"),
        lacks=("window_area", "attn_drop", "logit_scale"),
        facts=_always(windows=True),
    ),
    "DaViT channels": _Family(
        ("num_heads", "scale"),
        lacks=("fused_attn", "attn_drop", "head_dim", "softmax"),
        facts=_always(channel_attention=True),
        order="v q k",
        around=("cpe1", "cpe2", "ffn"),
    ),
    "DaViT channels v2": _Family(
        ("groups", "head_dim", "dynamic_scale"),
        facts=_always(channel_attention=True),
        heads="groups",
        factor="head_dim",
    ),
    "CaiT": _Family(
        ("num_heads", "scale", "proj_l", "proj_w"),
        children=frozenset({"proj_l", "proj_w"}),
        facts=_always(talking_heads=True),
    ),
    "EVA": _Family(
        ("num_heads", "head_dim", "scale", "num_prefix_tokens", "q_bias"),
        children=_ROPE,
        parameters=_BIASES,
        facts=rotary,
    ),
    "rotary": _Family(
        ("num_heads", "head_dim", "scale", "num_prefix_tokens", "fused_attn"),
        lacks=("q_bias", "seq_len", "feat_size"),
        children=_ROPE,
        facts=rotary,
    ),
    "BEiT": _Family(
        ("num_heads", "scale", "q_bias", "v_bias", "relative_position_bias_table"),
        lacks=("logit_scale", "num_prefix_tokens"),
        parameters=_BIASES | {"relative_position_bias_table"},
        facts=_beit,
    ),
    "relative positions": _Family(
        ("num_heads", "head_dim", "scale", "rel_pos", *_QK_NORM),
        children=frozenset({"rel_pos", *_QK_NORM}),
        facts=_relative_bias,
        zeroed=False,
    ),
    "SAM": _Family(
        ("num_heads", "head_dim", "scale", "use_rel_pos", "rope", *_QK_NORM),
        children=frozenset({"rope", *_QK_NORM}),
        parameters=frozenset({"rel_pos_h", "rel_pos_w"}),
        facts=_relative_sam,
        zeroed=False,
    ),
    "differential": _Family(
        ("num_heads", "head_dim", "scale", "sub_norm", "lambda_init", "dual_lambda"),
        children=frozenset({"sub_norm", "norm", *_QK_NORM}),
        parameters=_LAMBDAS,
        facts=lambda site: truthy(differential=True, output_norm=True, qk_norm=qk_norms(site)),
        split=2,
    ),
    "Hiera": _Family(
        ("heads", "head_dim", "scale", "q_stride", "use_mask_unit_attn", "dim_out"),
        facts=_hiera,
        heads="heads",
        zeroed=False,
    ),
    "Hiera of SAM 2": _Family(
        ("num_heads", "scale", "q_pool", "dim", "dim_out"),
        children=frozenset({"q_pool"}),
        facts=_hieradet,
        zeroed=False,
    ),
    "MViT v2": _Family(
        ("num_heads", "head_dim", "scale", "mode", "unshared", "rel_pos_type", "residual_pooling", "pool_q", "norm_k"),
        children=frozenset({"pool_q", "pool_k", "pool_v", "norm_q", "norm_k", "norm_v"}),
        parameters=frozenset({"rel_pos_h", "rel_pos_w"}),
        facts=_multiscale,
        drawn=False,  # truncated at two standard deviations: neither normal nor uniform
    ),
    "Twins windows": _Family(("num_heads", "scale", "ws", "dim"), facts=_always(windows=True)),
    "GC ViT": _Family(
        ("num_heads", "head_dim", "scale", "use_global", "rel_pos", "window_size"),
        children=frozenset({"rel_pos"}),
        facts=_always(position_bias=True, windows=True),
        zeroed=False,
    ),
    "MetaFormer": _Family(
        ("num_heads", "head_dim", "scale", "attention_dim", "attn_drop"), lacks=("q_norm", "num_prefix_tokens")
    ),
    "FastViT": _Family(
        ("num_heads", "head_dim", "scale", "fused_attn", "attn_drop"),
        lacks=("attention_dim", "q_norm", "num_prefix_tokens", "rel_pos", "use_global"),
        around=("token_mixer", "layer_scale_2", "mlp"),
    ),
    "ConViT": _Family(("num_heads", "scale", "get_attention_map", "attn_drop"), lacks=("qk", "head_dim")),
    "VOLO": _Family(
        ("num_heads", "scale", "fused_attn", "attn_drop"),
        lacks=("head_dim", "dim", "window_area", "q_bias"),
        around=("post_network", "mix_token", "pooling_scale"),
    ),
    "NesT": _Family(
        ("num_heads", "scale", "fused_attn", "attn_drop"),
        lacks=("head_dim", "dim", "window_area", "q_bias"),
        facts=_always(windows=True),
        interleaved=True,
        around=("transformer_encoder", "block_size", "pos_embed"),
    ),
}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of one of the table's attentions, or None."""
    if site.projection("qkv") is None or site.projection("proj") is None:
        return None
    found = [layout for family in FAMILIES.values() if (layout := _described(site, family)) is not None]
    return found[0] if len(found) == 1 else None


def _described(site: Site, family: _Family) -> AttentionLayout | None:
    if not has(site, *family.needs) or any(hasattr(site.module, name) for name in family.lacks):
        return None
    if not only(site, {"qkv", "proj", *family.children}, family.parameters):
        return None
    if family.around and not within(site, *family.around):
        return None
    qkv, proj, heads = site.projection("qkv"), site.projection("proj"), number(site, family.heads)
    if qkv is None or proj is None or heads is None or qkv.axes != 1 or qkv.outputs % (3 * heads * family.split):
        return None
    values = qkv.outputs // (3 * heads)
    size = values // family.split
    stated = number(site, "head_dim")
    if (stated is not None and stated != size) or proj.inputs != heads * values:
        return None
    if family.split == 1:
        rows = fused_rows(qkv, family.order, heads=heads, size=size)
    else:  # q and k have twice the heads of v
        width = heads * values
        starts = range(0, width, size)
        rows = {
            "q": qkv.rows(starts, size),
            "k": qkv.rows([width + start for start in starts], size),
            "v": qkv.rows(range(2 * width, 3 * width, values), values),
        }
    if rows is None:
        return None
    if family.parameters >= _BIASES:
        rows = {role: with_bias(part, site, f"{role}_bias") for role, part in rows.items()}
    factor = {"attribute": scale(site), "head_dim": size**-0.5, None: None}[family.factor]
    if site.attribute("dynamic_scale"):
        factor = None  # by the number of tokens
    facts = family.facts(site)
    return layout(
        site,
        SOURCE,
        rows,
        proj.columns(heads, interleaved=family.interleaved),
        facts,
        factor=factor,
        laws=linear_laws(qkv) if family.drawn else (),
        zero_bias=family.zeroed,
    )
