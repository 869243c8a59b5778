"""transformers' language models with one fused projection: `query_key_value`, `Wqkv`, `qkv_proj`, `att_proj`, `c_attn`.

The order of the rows differs by family and by switch, and is confirmed by behaviour in the tests:

    GPT-NeoX, BLOOM, Persimmon, Falcon of the first kind      q, k, v of head 0, then of head 1, ...
    Falcon, `multi_query`; GPT-BigCode, `multi_query`          all q, then one k, one v
    Falcon, `new_decoder_architecture`                         for each key/value head: its queries, its key, its value
    GPT-BigCode without `multi_query`                          q, k, v of head 0, then of head 1, ...
    MPT, DBRX, ModernBERT, Phi-3, Bark                         all q, then all k, then all v
    CodeGen                                                    4 chunks of heads, each its q, then v, then k
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kappaone.layouts.adapters.shared import is_rotary
from kappaone.layouts.adapters.transformers_common import from_fused, inputs_of, number, own_causal, real
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.site import Refusal, Site

_HEADS = ("num_heads", "num_attention_heads", "n_heads", "config.num_attention_heads")
_SIZE = ("head_dim", "head_size")
_NORMS = {"q_layernorm", "k_layernorm"}


@dataclass(frozen=True)
class _Plan:
    """How one family's rows run, and how many heads its keys and values have."""

    order: str
    kv_heads: int | None = None
    refused: str = ""


def _query_key_value(site: Site) -> _Plan:
    shared = number(site, "num_kv_heads")
    if site.attribute("new_decoder_architecture"):
        return _Plan("group(q k v)", shared)
    if site.attribute("multi_query"):
        return _Plan("q k v", 1)
    return _Plan("head(q k v)")


def _in_turn(site: Site) -> _Plan:
    return _Plan("q k v", number(site, "num_key_value_heads"))


def _sharded(site: Site) -> _Plan:
    chunks = number(site, "mp_num")
    # The module itself cuts its projection into this many chunks of heads (transformers: CodeGen, from a TPU layout).
    return _Plan(f"{chunks}(q v k)") if chunks else _Plan("", refused="chunks")


def _big_code(site: Site) -> _Plan:
    if not hasattr(site.module, "multi_query"):
        return _Plan("", refused="no switch")
    return _Plan("q k v", 1) if site.attribute("multi_query") else _Plan("head(q k v)")


# (fused child, output child, other children that may be there) -> the plan.
_FAMILIES: tuple[tuple[str, str, frozenset[str], Callable[[Site], _Plan]], ...] = (
    ("query_key_value", "dense", frozenset(_NORMS), _query_key_value),
    ("Wqkv", "out_proj", frozenset(), _in_turn),
    ("Wqkv", "Wo", frozenset(), _in_turn),
    ("qkv_proj", "o_proj", frozenset(), _in_turn),
    ("qkv_proj", "out_proj", frozenset(), _sharded),
    ("att_proj", "out_proj", frozenset(), _in_turn),
    ("c_attn", "c_proj", frozenset(), _big_code),
)


def describe(site: Site) -> AttentionLayout | Refusal | None:
    """The layout of a language model's fused attention, or None."""
    children, own = site.children(), site.own_parameters()
    if {"experts", "kv_proj"} <= children and number(site, "top_k"):
        return Refusal("each token's queries are made by experts that a router chooses")
    for fused, out, others, plan_of in _FAMILIES:
        if not {fused, out} <= children <= {fused, out} | others or not own <= {"dense_bias"}:
            continue
        part = site.projection(fused)
        if part is None or part.transposed:
            return None
        heads, size, plan = number(site, *_HEADS), number(site, *_SIZE), plan_of(site)
        if heads is None or size is None or plan.refused:
            return None
        return from_fused(
            site,
            "transformers.fused",
            fused,
            plan.order,
            out,
            heads=heads,
            kv_heads=plan.kv_heads,
            size=size,
            scale=_scale(site, size),
            facts=_facts(site, size),
            causal=own_causal(site),
            # ModernBERT cuts its normal law at so many standard deviations, which no law of ours states.
            laws=() if hasattr(site.attribute("config"), "initializer_cutoff_factor") else None,
        )
    return None


def _scale(site: Site, size: int) -> float:
    stated = real(site, "scaling", "softmax_scale")
    return float(size**-0.5) if stated is None else stated


def _facts(site: Site, size: int) -> dict[str, Any]:
    takes, config = inputs_of(site), site.attribute("config")
    alibi = getattr(config, "alibi", None)
    clip = site.attribute("clip_qkv")
    window = site.attribute("sliding_window", getattr(config, "sliding_window", None))
    return {
        "rotary": is_rotary(site) and not alibi,
        # BLOOM is always handed its biases; Falcon where its configuration says so.
        "position_bias": ("alibi" in takes and alibi is not False) or "position_bias" in takes,
        "qk_norm": bool(site.children() & _NORMS),
        "clamped": clip is not None and bool(clip),
        "windows": isinstance(window, int) and window > 0,
        "unscaled": _scale(site, size) == 1.0,
    }
