"""transformers' linear attention, recurrences and other token mixers of hybrid models: left alone by name.

Hybrid models have softmax attention in some layers only; the others are recognised by what they hold (5.24), so that
such models are handled layer by layer.
"""

from __future__ import annotations

from kappaone.layouts.site import Outside, Refusal, Site

_DELTA = ("in_proj_qkvz", "in_proj_qkv")


def describe(site: Site) -> Outside | Refusal | None:
    """What a token mixer does in place of softmax attention, or None."""
    children, own = site.children(), site.own_parameters()
    if {"A_log", "dt_bias"} <= own and any(name in children for name in _DELTA):
        return Outside("linear attention with a gated delta rule: a recurrence without a softmax")
    if {"A_log", "dt_bias"} <= own and {"in_proj", "conv1d"} <= children:
        return Outside("a state space model: a recurrence without queries and keys")
    if {"qkv_proj", "output_gate", "norm", "out_proj"} <= children and hasattr(site.module, "slope_rate"):
        return Outside("lightning attention: linear attention with a decay for each head")
    if {"igate_preact", "fgate_preact", "mlstm_backend"} <= children:
        return Outside("an mLSTM: a matrix memory with gates, without a softmax")
    if {"key", "receptance", "value", "output"} <= children and "time_decay" in own:
        return Outside("an RWKV recurrence: weights by decay and key alone")
    if any(name.endswith("query_content_proj") for name in children):
        return Refusal("queries and keys are sums, or pairs, of projections of contents and of positions")
    if own == {"query"} and children == {"norm"}:
        return Outside("a weighted sum of earlier blocks' outputs, token by token")
    if hasattr(site.module, "hc_mult") and {"fn", "base", "scale"} <= own:
        return Outside("hyper-connections: streams of one token are mixed, not tokens")
    if {"q_a_proj", "q_b_proj", "kv_proj", "o_a_proj"} <= children:
        return Refusal("keys and values are one projection that all heads share")
    if {"qkv_proj", "o_proj", "qk_norm"} <= children and _convolves(site):
        return Refusal("queries and keys are convolved together and added to each other before the softmax")
    return None


def _convolves(site: Site) -> bool:
    inner = Site(site.qualified("qkv_proj"), site.attribute("qkv_proj"), site.modules)
    return {"conv_qk_depthwise", "conv_qk_grouped"} <= inner.children()
