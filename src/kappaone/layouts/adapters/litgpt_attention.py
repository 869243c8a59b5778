"""litgpt's attentions: `qkv` with rows [Q|K_kv|V_kv] and `proj`, and its multi-head latent attention.

Checkpoints of older versions kept each key/value group's rows together (as `attn`); litgpt reorders them on loading.
With its LoRA the weight lies in `qkv.linear`. Facts of the source of litgpt 0.5.13.
"""

from __future__ import annotations

from typing import Any

from kappaone.laws import Law
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts.layout import AttentionLayout, Inner, RoleRows
from kappaone.layouts.site import Projection, Site

_NUMBERS = ("n_head", "n_query_groups", "head_size", "n_embd", "rope_n_elem")
_NORMS = {"norm_q", "norm_k", "kv_cache"}
_LATENT = {"q_a_proj", "q_a_norm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_norm", "kv_b_proj", "proj"}


def describe(site: Site) -> AttentionLayout | None:
    """The layout of a litgpt attention, or None."""
    config = site.attribute("config")
    if any(not isinstance(getattr(config, name, None), int) for name in _NUMBERS) or site.own_parameters():
        return None
    if not hasattr(site.module, "mscale") or not hasattr(config, "attention_logit_softcapping"):
        return None
    if {"qkv", "proj"} <= site.children() <= {"qkv", "proj"} | _NORMS:
        return _plain(site, config)
    if _LATENT <= site.children() <= _LATENT | {"kv_cache"}:
        return _latent(site, config)
    return None


def _plain(site: Site, config: Any) -> AttentionLayout | None:
    heads, kv_heads, size = config.n_head, config.n_query_groups, config.head_size
    qkv, out = site.projection("qkv"), site.projection("proj")
    rows = None if qkv is None else fused_rows(qkv, "q k v", heads=heads, kv_heads=kv_heads, size=size)
    if rows is None or out is None or out.inputs != heads * size:
        return None
    normed = site.children() & {"norm_q", "norm_k"}
    return _layout(
        site,
        config,
        rows,
        out,
        size,
        {
            "rotary": config.rope_n_elem > 0,
            "qk_norm": "whole" if normed and config.norm_qk_type == "olmo2" else bool(normed),
            "windows": bool(site.attribute("apply_sliding_window_attention")),
        },
    )


def _latent(site: Site, config: Any) -> AttentionLayout | None:
    q_a, q_b, kv_a, kv_b, out = (
        site.projection(name) for name in ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "proj")
    )
    if q_a is None or q_b is None or kv_a is None or kv_b is None or out is None:
        return None
    heads, plain, turned = config.n_head, config.qk_nope_head_dim, config.qk_rope_head_dim
    value, rank = config.v_head_dim, config.kv_lora_rank
    step, stride = plain + turned, plain + value
    if config.n_query_groups != heads or kv_a.outputs != rank + turned or out.inputs != heads * value:
        return None
    if (q_b.outputs, kv_b.outputs) != (heads * step, heads * stride) or q_a.outputs != q_b.inputs:
        return None
    q_inner = Inner(q_a.weight, 0, q_a.outputs, q_a.inputs, site.qualified("q_a_norm.weight"))
    inner = Inner(kv_a.weight, 0, rank, kv_a.inputs, site.qualified("kv_a_norm.weight"))
    rows = {
        "q": q_b.rows(range(0, heads * step, step), plain, inner=q_inner),
        "k": kv_b.rows(range(0, heads * stride, stride), plain, inner=inner),
        "v": kv_b.rows(range(plain, heads * stride, stride), value, inner=inner),
    }
    part = f"{turned} rows of each query head, and as many of the latent, are the rotary part"
    return _layout(site, config, rows, out, step, {"low_rank": True, "rotary": True, "partial": part})


def _layout(
    site: Site, config: Any, rows: dict[str, RoleRows], out: Projection, size: int, facts: dict[str, Any]
) -> AttentionLayout:
    facts["softcap"] = config.attention_logit_softcapping is not None
    widths = dict.fromkeys(row.width for row in rows.values())
    return AttentionLayout(
        name=site.name,
        kind=type(site.module).__name__,
        source="litgpt.attention",
        q=rows["q"],
        k=rows["k"],
        v=rows["v"],
        o=out.columns(config.n_head),
        scale=float(config.attention_scores_scalar or size) ** -0.5 * float(site.attribute("mscale")) ** 2,
        causal=True,
        facts={name: value for name, value in facts.items() if value},
        laws=(
            Law("normal", 0.02, "litgpt: normal_(std=0.02)"),
            *(Law("uniform", (3 * width) ** -0.5, "torch: nn.Linear's default") for width in widths),
        ),
    )
