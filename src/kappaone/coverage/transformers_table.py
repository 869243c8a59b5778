"""What the rules of `transformers_shrink` cannot know, by model type."""

from __future__ import annotations

from typing import Any

# Entries that the library's default configuration leaves empty, and without which it cannot build the type at all.
# The values are those of the type's released checkpoints, or of the part's own class.
DEFAULT: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 24},
    "aya_vision": {"vision_config": {"num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] + ["sparse"] * 31, "num_experts_per_tok": 6}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "diffusion_gemma": {"text_config": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 128, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 151851}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "hunyuan_vl": {"text_config": {"head_dim": 128, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [16, 16, 16, 16]}}},
    "hunyuan_vl_text": {"head_dim": 128, "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [16, 16, 16, 16]}},
    "informer": {"prediction_length": 24},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 8},
    "ministral": {"head_dim": 128},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "t5gemma2_encoder": {"text_config": {"dropout_rate": 0.0}},
    "nemotron": {"num_key_value_heads": 8},
    "time_series_transformer": {"prediction_length": 24},
    "timm_backbone": {"backbone": "resnet50"},
}  # fmt: skip


def _mrope(*sections: int) -> dict[str, Any]:
    """Sections of a multi-axis rotary embedding, which some models leave to their code."""
    return {"rope_parameters": {"mrope_section": list(sections)}}


# Entries of the small configuration; a dict under the name of a part goes into that part.
CONFIG: dict[str, dict[str, Any]] = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    **{name: {"text_config": _mrope(2, 3, 3)} for name in ("qwen2_vl", "qwen2_5_vl", "glm4v", "glm_image", "glm_ocr", "paddleocr_vl")},
    **{name: _mrope(2, 3, 3) for name in ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_image_text", "glm_ocr_text")},
    **{name: {"text_config": _mrope(1, 1, 2)} for name in ("glm4v_moe", "glm46v", "glmga")},
    "glm4v_moe_text": _mrope(1, 1, 2),
    **{name: {"text_config": _mrope(3, 3, 2)} for name in ("qwen3_vl", "qwen3_vl_moe", "ernie4_5_vl_moe", "cosmos3_edge", "hy_v4_vl")},
    **{name: _mrope(3, 3, 2) for name in ("qwen3_vl_text", "qwen3_vl_moe_text", "cosmos3_edge_text", "hy_v4_vl_text")},
    "qwen2_5_omni_thinker": {"text_config": _mrope(2, 3, 3)},
    "qwen3_omni_moe_thinker": {"text_config": _mrope(3, 3, 2)},
    "kyutai_speech_to_text": {"head_dim": 16},
    "gemma3": {"mm_tokens_per_image": 4},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4}},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "align": {"projection_dim": 640},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "apertus1p5": {"audio_config": {"codebook_dim": 64}},
    "blip-2": {"image_token_id": 500, "num_query_tokens": 8},
    "instructblip": {"image_token_id": 500, "num_query_tokens": 8},
    "instructblipvideo": {"video_token_id": 500, "num_query_tokens": 8},
    "cvt": {"depth": (1, 2, 3)},
    "deepseek_ocr2": {"vision_config": {"sam_config": {"downsample_channels": [32, 64]}}},
    "depth_pro": {"patch_size": 56, "intermediate_hook_ids": [1, 0]},
    "chameleon": {"vocabulary_map": {"<image>": 500}},
    "emu3": {"vocabulary_map": {"<image>": 500}},
}  # fmt: skip

# What a small instance leaves out.
NOTES: dict[str, str] = {}

# The class where the one that AutoModel names does not take the type's configuration.
CLASS: dict[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

# Why no small instance is made.
NOT_SMALL: dict[str, str] = {
    "bark": "the model has no forward: its parts are run one after the other by generate()",
    "glm_image_vqmodel": "the model has no forward: its encoder and its quantizer are called by glm_image",
    "dinat": "needs the natten library, whose kernels do not exist for the CPU",
    "layoutlmv2": "needs the detectron2 library",
    "higgs_audio_v2_tokenizer": "needs the torchaudio library",
    **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_video"), "forward takes an inference session of a video, not tensors"),
}  # fmt: skip
