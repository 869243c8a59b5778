"""transformers' `q_proj`, `k_proj`, `v_proj` with an output projection of any name: Llama and its kin, BART, CLIP, ViT.

Most types of transformers store attention so (5.24). What a layer does with its projections is read from the names in
its forward (`mentions`): everything it uses must be known here, else it is another attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from kappaone.layouts.adapters.mentions import Mentions, mentions
from kappaone.layouts.adapters.proj_facts import GATES, OUTPUT_NORMS, QK_NORMS, clamps, drawn_by, proj_facts
from kappaone.layouts.adapters.transformers_common import assemble, inputs_of, number, own_causal, real
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Outside, Projection, Refusal, Site

_SOURCE = "transformers.proj"
_OUT = ("o_proj", "out_proj", "dense", "proj", "projection_layer", "Wo", "post")
_PROJECTIONS = ("q_proj", "k_proj", "v_proj")
_K_NORMS = ("k_norm", "k_layernorm", "key_layernorm", "k_layer_norm")

# Children and parameters that a described layer may hold beside its projections; each is a fact.
_CHILDREN = {
    *QK_NORMS,
    *_K_NORMS,
    *GATES,
    *OUTPUT_NORMS,
    "v_norm",
    "rotary_emb",
    "relative_k_proj",
    "relative_position_bias",
    "relative_position_embedding",
    "rel_pos_emb",
    "gru_rel_pos_linear",
    "rel_attn_embed",
    "sequence_reduction",
    "sink_proj",
    "k_sconv",
    "v_sconv",
    "r_proj",
    "rel_logits_proj",
    "indexer",
    "fsmn",
    "dropout",
}
_PARAMETERS = {
    "sinks",
    "bias_u",
    "bias_v",
    "gru_rel_pos_const",
    "emb_rel_k",
    "emb_rel_v",
    "per_dim_scale",
    "scaling",
    "pooling_attention_query",
    "gate_bias",
    "sqk",
    "s_gate",
}
# Attributes that a forward may read: sizes, dropout, switches that only choose between known steps.
_ATTRIBUTES = {
    "attention_dropout attention_type attn_drop attn_logit_softcapping attn_scale attn_temperature_tuning bias block_size",
    "attn_dropout cache_key chunk_size config context_size dim dropout dropout_p embed_dim encoder_decoder_attention",
    "floor_scale force_rope gate_per_head head_dim head_dim_padding hidden_size inner_dim is_causal is_cross_attention",
    "is_decoder is_kv_shared_layer is_local_attention is_sliding key_multiplier k_scale layer_id layer_idx layer_type",
    "max_distance max_future_horizon max_past_horizon num_attention_heads num_buckets num_heads num_key_value_groups",
    "num_key_value_heads out_drop proj_drop projection_dropout q_scale qk_layer_norms qk_layernorm qk_norm_type",
    "qk_scale_factor residual_dropout resid_dropout rope_k_repeat rotary_dim rotary_ndims s_gate_scale scale scaling",
    "sequence_reduction_ratio sliding_window softcap sqk_scale store_full_length_kv rel_extent use_qk_norm use_rope v_head_dim",
    "v_scale window_size local_causal_valid_mask attention_logits_soft_cap attention_invalid_logits_value layer_dic",
    "use_alternative_attention q_size kv_size rope_parameters",
}
_KNOWN = {word for line in _ATTRIBUTES for word in line.split()} | _CHILDREN | _PARAMETERS | {*_PROJECTIONS, *_OUT}
# Functions that a forward may call, beside those that turn q and k.
_FUNCTIONS = {
    "ALL_ATTENTION_FUNCTIONS",
    "Cache",
    "Callable",
    "DynamicCache",
    "EncoderDecoderCache",
    "F",
    "StaticCache",
    "get_llama_4_attn_scale",
    "get_max_seqlen",
    "is_flash_attention_requested",
    "is_torchdynamo_compiling",
    "logger",
    "math",
    "nn",
    "repeat_kv",
    "torch",
    "warnings",
}


def describe(site: Site) -> AttentionLayout | Outside | Refusal | None:
    """The layout of three projections and what follows them, or why there is none, or None."""
    if not all(isinstance(site.attribute(name), nn.Module) for name in ("q_proj", "k_proj")):
        return _shared(site)
    said = mentions(site)
    if said is None:
        return None
    return _elsewhere(site, said) or _layout(site, said)


def _layout(site: Site, said: Mentions) -> AttentionLayout | None:
    out = next((name for name in _OUT if isinstance(site.attribute(name), nn.Module)), None)
    known = {*_PROJECTIONS, *_CHILDREN, *([out] if out else [])}
    if not site.children() <= known or not site.own_parameters() <= _PARAMETERS or not said.own <= _KNOWN:
        return None
    if any(not _is_known(function) for function in said.functions):
        return None
    maps = [_linear(site, name) for name in (*_PROJECTIONS, *([out] if out else []))]
    if any(part is None for part in maps):
        return None
    parts = [part for part in maps if part is not None]
    q, k, v = (part.projection for part in parts[:3])
    o = parts[3].projection if out is not None else None
    sizes = _sizes(site, said, q, k, v, o)
    if sizes is None:
        return None
    scale = _scale(site, said, sizes.size)
    facts = {
        **proj_facts(site, said, q, sizes.heads),
        "unscaled": scale == 1.0 and sizes.size > 1,
        "partial": "every second block of rows of the query weight is the output gate" if sizes.gated else None,
    }
    facts |= _beside(parts, sizes)
    laws = drawn_by(site)
    return assemble(
        site,
        _SOURCE,
        {
            "q": q.rows(range(0, q.outputs, sizes.size * (2 if sizes.gated else 1)), sizes.size),
            "k": k.rows(range(0, k.outputs, sizes.size), sizes.size),
            "v": v.rows(range(0, v.outputs, sizes.value_size), sizes.value_size),
        },
        None if o is None else o.columns(sizes.heads, size=sizes.value_size),
        scale=scale,
        facts=facts,
        output="projected" if out is not None else "heads",
        causal=own_causal(site),
        laws=laws,
        zero_bias=bool(laws),  # the common rule does; a model's own may not (Emu 3's picture codes)
    )


@dataclass(frozen=True)
class _Linear:
    """A projection with what stands beside it in a module of its own."""

    projection: Projection
    beside: frozenset[str] = frozenset()
    clamped: bool = False


def _linear(site: Site, name: str) -> _Linear | None:
    """A linear map, also in a wrapper whose other parts are known; None where it is something else."""
    target = site.attribute(name)
    part = site.projection(name)
    if part is None or not isinstance(target, nn.Module):
        return None
    inside = {child for child, module in target.named_children() if not isinstance(module, (nn.Dropout, nn.Identity))}
    if not inside or part.weight == site.qualified(f"{name}.weight"):
        return _Linear(part)
    if "base_layer" in inside:  # an adapter's wrapper: its own maps are not the model's
        return _Linear(part)
    if not inside <= {"linear", "norm", "sconv", "gate_proj"} or "linear" not in inside:
        return None
    return _Linear(part, frozenset(inside - {"linear"}), clamps(target))


@dataclass(frozen=True)
class _Sizes:
    heads: int
    size: int
    value_size: int
    gated: bool


def _sizes(
    site: Site, said: Mentions, q: Projection, k: Projection, v: Projection, o: Projection | None
) -> _Sizes | None:
    """Heads and their sizes from the attributes, checked against all shapes."""
    size = number(site, "head_dim")
    told = number(site, "num_heads", "num_attention_heads")
    if size is None and told is not None and q.outputs % told == 0:
        size = q.outputs // told
    if size is None or k.outputs % size or q.outputs % size:
        return None
    value_size = number(site, "v_head_dim") or size
    heads, kv_heads = q.outputs // size, k.outputs // size
    gated = o is not None and q.outputs == 2 * o.inputs and "chunk" in said.words and "sigmoid" in said.words
    heads = heads // 2 if gated else heads
    groups = number(site, "num_key_value_groups")
    if heads % kv_heads or v.outputs != kv_heads * value_size or (o is not None and o.inputs != heads * value_size):
        return None
    if told is not None and told != heads:
        return None
    if groups is not None and groups > 1 and groups * kv_heads != heads:
        return None
    return _Sizes(heads, size, value_size, gated)


def _beside(parts: list[_Linear], sizes: _Sizes) -> dict[str, Any]:
    """Facts of what stands in the modules of the projections, and of a gate in the query's."""
    q, _, v = parts[:3]
    facts: dict[str, Any] = {}
    if any(part.clamped for part in parts):
        facts["clamped"] = True
    if sizes.gated or any("gate_proj" in part.beside for part in parts):
        facts["gate"] = True
    if any("sconv" in part.beside for part in parts):
        facts["pooled"] = True
    if "norm" in v.beside:
        facts["v_norm"] = True
    if "norm" in q.beside:
        facts["extra"] = "q and k are clipped to a length"
    return facts


def _scale(site: Site, said: Mentions, size: int) -> float | None:
    """The factor on q.k, or None where it is learned or unknown."""
    if {"per_dim_scale", "scaling"} & site.own_parameters():
        return None
    scale = real(site, "scaling", "scale")
    if scale is None:
        return float(size**-0.5) if "ALL_ATTENTION_FUNCTIONS" in said.functions else 1.0
    if scale == size**-0.25:  # on q and on k
        return float(size**-0.5)
    return scale * (real(site, "key_multiplier") or 1.0) * (real(site, "qk_scale_factor") or 1.0)


def _is_known(function: str) -> bool:
    return (
        function in _FUNCTIONS
        or function.endswith("eager_attention_forward")
        or "rotary" in function
        or "rope" in function
    )


def _elsewhere(site: Site, said: Mentions) -> Outside | Refusal | None:
    """Why modules with these projections have no layout."""
    children, own = site.children(), site.own_parameters()
    if "conv1d" in children and (own & {"A_log", "dt_bias"} or "forget_gate" in children):
        return Outside("linear attention with a gated delta rule: a recurrence without a softmax")
    if "autocorrelation_factor" in said.own:
        return Outside("auto-correlation: whole series are shifted and added, without a softmax over tokens")
    if not isinstance(site.attribute("v_proj"), nn.Module):
        if "v_proj" in said.own:
            return Refusal("keys and values are one projection")
        return None if "indexer" in site.name else Outside("scores of pairs of tokens, without values")
    if {"token_hidden_states", "global_hidden_states"} <= inputs_of(site):
        return Refusal("local and global tokens are projected one after the other and attend to each other in blocks")
    if "dt_proj" in children:
        return Refusal("the mask is computed from the values, so that values are no linear map of tokens")
    if "lambda_q1" in own:
        return Refusal("differential attention over two halves of the value heads, which no block of rows states")
    if "factor" in said.own and "randint" in said.words:
        return Refusal("only queries that are chosen from a random sample of keys attend (ProbSparse)")
    if "assign_eps" in said.own:
        return Refusal("tokens are assigned to one group each, by a hard maximum in place of the softmax")
    if any(name in said.own and _stacked(site, name) for name in _PROJECTIONS):
        return Refusal("each codebook has projections of its own, stacked in one weight")
    return None


def _stacked(site: Site, name: str) -> bool:
    weights = [p for p in site.attribute(name).parameters() if p.ndim >= 2]
    return len(weights) == 1 and weights[0].ndim == 3


def _shared(site: Site) -> Refusal | None:
    """Layers that attend to the keys and values of an earlier layer."""
    if site.attribute("is_kv_shared_layer") is True and isinstance(site.attribute("q_proj"), nn.Module):
        return Refusal("keys and values are those of an earlier layer")
    return None
