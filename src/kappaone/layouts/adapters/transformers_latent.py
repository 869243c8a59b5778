"""transformers' multi-head latent attention: DeepSeek V2 and V3 and their kin (MiniCPM 3, LongCat, Kimi, Youtu, GLM).

Keys and values of all heads are read from one latent: `kv_a_proj_with_mqa` gives its r rows and, behind them, the key's
rotary part that all heads share; after a norm, `kv_b_proj` gives for each head its key rows and its value rows. Queries
go through a latent of their own (`q_a_proj`, norm, `q_b_proj`) or not (`q_proj`); of each head's rows the last ones are
the rotary part. The layout holds what is a product of two weights with rows of its own: q and k without their rotary
parts, and v (transformers 5.24, `expand_kv`).
"""

from __future__ import annotations

from typing import Any

from torch import nn

from kappaone.layouts.adapters.mentions import Mentions, mentions
from kappaone.layouts.adapters.proj_facts import drawn_by
from kappaone.layouts.adapters.transformers_common import assemble, number, own_causal, real
from kappaone.layouts.layout import AttentionLayout, Inner
from kappaone.layouts.site import Projection, Refusal, Site

_SOURCE = "transformers.latent"
_KEYS = {"kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj"}
_QUERIES = ({"q_proj"}, {"q_a_proj", "q_a_layernorm", "q_b_proj"})
_GATES = {"gate_proj", "g_proj"}
_OTHER = {"indexer", "softmax_scaling", "k_rope_only_layernorm"}
# Attributes that a forward may read beside the projections.
_ATTRIBUTES = {
    "attention_dropout config head_dim hidden_size indexer is_causal is_kv_shared_layer kv_lora_rank kv_lora_scale",
    "layer_idx mla_scale_kv_lora mla_scale_q_lora num_heads num_key_value_groups q_lora_rank q_lora_scale qk_head_dim",
    "qk_nope_head_dim qk_rope_head_dim scaling sinks skip_topk sliding_window store_full_length_kv use_rope v_head_dim",
    "gate_projection_size layer_type next_skip_topk",
}
_KNOWN = {word for line in _ATTRIBUTES for word in line.split()}
_FUNCTIONS = {
    "ALL_ATTENTION_FUNCTIONS",
    "Callable",
    "F",
    "get_llama_4_attn_scale",
    "is_flash_attention_requested",
    "nn",
    "torch",
}


def describe(site: Site) -> AttentionLayout | Refusal | None:
    """The layout of multi-head latent attention, or why there is none, or None."""
    children = site.children()
    if not isinstance(site.attribute("kv_b_proj"), nn.Module):
        return None
    if site.attribute("is_kv_shared_layer") is True:
        return Refusal("the latent of keys and values is that of an earlier layer")
    if not children >= _KEYS | {"o_proj"}:
        return None
    if "q_gate_proj" in children:
        return Refusal("queries are read from two latents at once, with and without the norm between the factors")
    known = next((names for names in _QUERIES if names <= children), None)
    said = mentions(site)
    if known is None or said is None or not children <= known | _KEYS | _GATES | _OTHER | {"o_proj"}:
        return None
    if not site.own_parameters() <= {"sinks"} or not said.own <= _KNOWN | children | {"q_proj", *_QUERIES[1]}:
        return None
    if any(
        not (name in _FUNCTIONS or "rotary" in name or name == "eager_attention_forward") for name in said.functions
    ):
        return None
    return _layout(site, said)


def _layout(site: Site, said: Mentions) -> AttentionLayout | None:
    heads = number(site, "num_heads")
    plain, value, rank = (number(site, name) for name in ("qk_nope_head_dim", "v_head_dim", "kv_lora_rank"))
    turned = site.attribute("qk_rope_head_dim")
    if heads is None or plain is None or value is None or rank is None or not isinstance(turned, int):
        return None
    latent = _factors(site, "q_a_proj", "q_a_layernorm", "q_b_proj", number(site, "q_lora_rank"), 0)
    q, q_inner = latent or (site.projection("q_proj"), None)
    pairs = _factors(site, "kv_a_proj_with_mqa", "kv_a_layernorm", "kv_b_proj", rank, turned)
    o = site.projection("o_proj")
    if q is None or pairs is None or o is None:
        return None
    kv, kv_inner = pairs
    if q.outputs != heads * (plain + turned) or kv.outputs != heads * (plain + value):
        return None
    step, stride = plain + turned, plain + value
    return assemble(
        site,
        _SOURCE,
        {
            "q": q.rows(range(0, heads * step, step), plain, inner=q_inner),
            "k": kv.rows(range(0, heads * stride, stride), plain, inner=kv_inner),
            "v": kv.rows(range(plain, heads * stride, stride), value, inner=kv_inner),
        },
        o,
        scale=real(site, "scaling"),
        facts=_facts(site, said, turned),
        causal=own_causal(site),
        laws=drawn_by(site),
    )


def _factors(
    site: Site, first: str, norm: str, second: str, rank: int | None, beside: int
) -> tuple[Projection, Inner] | None:
    """The second factor of a product and what is said of the first, or None where their shapes do not fit."""
    a, b = site.projection(first), site.projection(second)
    if a is None or b is None or rank is None or (a.outputs, b.inputs) != (rank + beside, rank):
        return None
    gain = getattr(site.attribute(norm), "weight", None)
    if gain is None or gain.numel() != rank:
        return None
    return b, Inner(a.weight, 0, rank, a.inputs, site.qualified(f"{norm}.weight"))


def _facts(site: Site, said: Mentions, turned: int) -> dict[str, Any]:
    extra = []
    if real(site, "mla_scale_q_lora") or real(site, "q_lora_scale"):
        extra.append("queries, keys and values are scaled by the square root of width over rank")
    if isinstance(site.attribute("indexer"), nn.Module) or "prev_topk_indices" in said.words:
        extra.append("an indexer chooses which tokens are attended to")
    if "get_llama_4_attn_scale" in said.functions or isinstance(site.attribute("softmax_scaling"), nn.Module):
        extra.append("queries are scaled by their position")
    rotary = any("rotary" in name for name in said.functions) and turned > 0
    return {
        "low_rank": True,
        "rotary": rotary,
        "partial": f"{turned} rows of each query head, and as many of the latent, are the rotary part"
        if turned
        else None,
        "sinks": "sinks" in site.own_parameters(),
        "gate": bool(site.children() & _GATES),
        "windows": site.attribute("sliding_window") is not None or None,
        "extra": "; ".join(extra) or None,
    }
