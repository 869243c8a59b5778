"""Rows for transformers' q_proj, k_proj, v_proj: one a behaviour; all other families are confirmed by `make coverage`."""

from __future__ import annotations

from typing import Any

from tests.conformance.rows_transformers import _TEXT, _WIDE, _both, _case, _hf, _tokens

_GROUPED: dict[str, Any] = {**_WIDE, "num_key_value_heads": 2, "head_dim": 8}
_BART = {
    "d_model": 32,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
}
_LATENT = {
    **_WIDE,
    "num_key_value_heads": 4,
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
    "first_k_dense_replace": 2,
}
_DELTA = {"linear_num_value_heads": 2, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}

# Every scheme in every dtype runs on these.
MODELS = [
    _case(
        "Qwen3-Next, gate rows among the queries, one layer of two",
        _hf(
            "Qwen3NextConfig",
            "Qwen3NextModel",
            **_GROUPED,
            **_DELTA,
            **_TEXT,
            layer_types=["linear_attention", "full_attention"],
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
        ),
        "proj",
        _tokens,
        layers=1,
        kv_heads=2,
        facts={"rotary": True, "qk_norm": True, "gate": True},
    ),
]

LAYOUTS = [
    _case(
        "BART, encoder, decoder and what lies between",
        _hf("BartConfig", "BartModel", **_BART, **_TEXT),
        "proj",
        _both,
        layers=3,
    ),
    _case(
        "Gemma 2, capped logits",
        _hf("Gemma2Config", "Gemma2Model", **_GROUPED, **_TEXT, query_pre_attn_scalar=16),
        "proj",
        kv_heads=2,
        facts={"softcap": True, "rotary": True},
    ),
    _case(
        "OLMo 2, norms over all heads",
        _hf("Olmo2Config", "Olmo2Model", **_WIDE, **_TEXT),
        "proj",
        facts={"qk_norm": "whole", "rotary": True},
    ),
    _case(
        "gpt-oss, sinks",
        _hf("GptOssConfig", "GptOssModel", **_GROUPED, **_TEXT, num_local_experts=2, num_experts_per_tok=1),
        "proj",
        kv_heads=2,
        facts={"sinks": True, "rotary": True},
    ),
    _case(
        "GPT-J, partly turned",
        _hf("GPTJConfig", "GPTJModel", n_embd=32, n_layer=2, n_head=4, n_positions=16, rotary_dim=4, **_TEXT),
        "proj",
        facts={"rotary": True},
    ),
    _case(
        "GPT-Neo, unscaled",
        _hf(
            "GPTNeoConfig",
            "GPTNeoModel",
            hidden_size=32,
            num_layers=2,
            num_heads=4,
            attention_types=[[["global", "local"], 1]],
            window_size=4,
            **_TEXT,
        ),
        "proj",
        facts={"unscaled": True},
    ),
    _case(
        "DeepSeek V3, latent queries",
        _hf("DeepseekV3Config", "DeepseekV3Model", **_LATENT, **_TEXT),
        "latent",
        facts={"low_rank": True, "rotary": True},
    ),
    _case(
        "DeepSeek V2, plain queries",
        _hf("DeepseekV2Config", "DeepseekV2Model", **{**_LATENT, "q_lora_rank": None}, **_TEXT),
        "latent",
        facts={"low_rank": True, "rotary": True},
    ),
]
