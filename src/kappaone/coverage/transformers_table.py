"""What the rules of `transformers_shrink` cannot know, by model type."""

from __future__ import annotations

from typing import Any

# Entries that the library's default configuration leaves empty or contradicts, and without which it cannot build or run
# the type at all. They are of a likely size, written by hand: no released checkpoint was read. Some set a switch
# (the grouping of nemotron and ministral, the clipping of dbrx, the indexer of qwen4_exp).
_QSA = {
    "indexer_n_heads": 16, "indexer_kv_heads": 1, "indexer_head_dim": 256, "indexer_budget": 2048,
    "indexer_compress_ratio": 16,
}  # fmt: skip

DEFAULT: dict[str, dict[str, Any]] = {
    "autoformer": {"prediction_length": 24},
    "aya_vision": {"vision_config": {"num_attention_heads": 16}},
    "chameleon": {"vocabulary_map": {"<image>": 8711}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8.0}},
    "edgetam": {"vision_config": {"backbone_config": {"architecture": "repvit_m1"}}},
    "edgetam_video": {"vision_config": {"backbone_config": {"architecture": "repvit_m1"}}},
    "edgetam_vision_model": {"backbone_config": {"architecture": "repvit_m1"}},
    "fast_vlm": {"vision_config": {"hidden_size": 3072}},
    "deepseek_ocr2": {"text_config": {"mlp_layer_types": ["dense"] + ["sparse"] * 31, "num_experts_per_tok": 6}},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "diffusion_gemma": {"text_config": {"num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704}},
    "dots1": {"n_shared_experts": 2, "n_routed_experts": 128, "num_experts_per_tok": 6},
    "emu3": {"vocabulary_map": {"<image>": 151851}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "granite4_vision": {"downsample_rate": "4/8", "deepstack_layer_map": [[-1, 0]]},
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
    "perception_lm": {
        "vision_config": {"architecture": "vit_pe_core_large_patch14_336", "model_args": {"embed_dim": 1024}},
    },
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "lw_detr": {"projector_scale_factors": [1.0]},
    "step3p7": {"text_config": {"sliding_window": 512}},
    "timm_backbone": {"backbone": "resnet50"},
}  # fmt: skip


def _mrope(*sections: int) -> dict[str, Any]:
    """Sections of a multi-axis rotary embedding, which some models leave to their code."""
    return {"rope_parameters": {"mrope_section": list(sections)}}


_QSA_SMALL = {"indexer_n_heads": 4, "indexer_head_dim": 32, "indexer_budget": 8, "indexer_compress_ratio": 2}

# Layers before, in and behind a loop.
_LOOPED: dict[str, Any] = {
    "num_hidden_layers": 6, "loop_layer_index_start": 2, "loop_layer_index_end": 4, "n_layers_per_attn_res_block": 1,
    "layer_types": ["hybrid_sliding", "hybrid"] * 3,
}  # fmt: skip

# Stages by other names than elsewhere.
_HIERA_DET: dict[str, Any] = {
    "hidden_size": 16, "image_size": [128, 128], "blocks_per_stage": [1, 2, 3, 2], "embed_dim_per_stage": [16, 32, 64, 128],
    "num_attention_heads_per_stage": [1, 2, 4, 8], "window_size_per_stage": [4, 4, 4, 2], "global_attention_blocks": [4],
    "window_positional_embedding_background_size": [4, 4],
}  # fmt: skip
_HIERA_NECK: dict[str, Any] = {
    "backbone_channel_list": [128, 64, 32, 16], "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
}  # fmt: skip

_SAM3_NECK: dict[str, Any] = {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}

# A tower that timm builds: the smallest of its family.
_PE_TINY: dict[str, Any] = {"vision_config": {"architecture": "vit_pe_core_tiny_patch16_384"}}

# Layers whose heads are wider than those of the others: with 512, logits without a scale would saturate the softmax.
_WIDE: dict[str, Any] = {"per_layer_config": {1: {"head_dim": 16}}}

# Entries of the small configuration; a dict under the name of a part goes into that part.
CONFIG: dict[str, dict[str, Any]] = {
    "gpt_neo": {"num_layers": 2, "attention_types": [[["global", "local"], 1]], "window_size": 8},
    **{name: {"text_config": _mrope(2, 3, 3)} for name in ("qwen2_vl", "qwen2_5_vl", "glm4v", "glm_image", "glm_ocr")},
    **{name: _mrope(2, 3, 3) for name in ("qwen2_vl_text", "qwen2_5_vl_text", "glm4v_text", "glm_image_text", "glm_ocr_text")},
    **{name: {"text_config": _mrope(1, 1, 2)} for name in ("glm4v_moe",)},
    "glm4v_moe_text": _mrope(1, 1, 2),
    **{name: {"text_config": _mrope(3, 3, 2)} for name in ("qwen3_vl", "qwen3_vl_moe", "ernie4_5_vl_moe", "cosmos3_edge")},
    **{name: _mrope(3, 3, 2) for name in ("qwen3_vl_text", "qwen3_vl_moe_text", "cosmos3_edge_text")},
    "hy_v4_vl": {"text_config": _mrope(2, 1, 1)},
    "hy_v4_vl_text": _mrope(2, 1, 1),
    "qwen2_5_omni_thinker": {"text_config": _mrope(2, 3, 3)},
    "kyutai_speech_to_text": {"head_dim": 16},
    "gemma3": {"mm_tokens_per_image": 4},
    "t5gemma2": {"encoder": {"mm_tokens_per_image": 4}},
    "t5gemma2_encoder": {"mm_tokens_per_image": 4},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 16}},
    "align": {"projection_dim": 640, "vision_config": {"depth_coefficient": 0.4}},
    "efficientnet": {"depth_coefficient": 0.4},
    "big_bird": {"block_size": 4, "num_random_blocks": 1},
    "bigbird_pegasus": {"block_size": 4, "num_random_blocks": 1},
    "aria": {"projector_patch_to_query_dict": {16: 4}},
    "apertus1p5": {
        "image_token_offset": 100, "audio_token_offset": 164,
        "audio_config": {"codebook_dim": 64, "codebook_size": 64}, "vision_config": {"codebook_size": 64, "resolution": 64, "base_channels": 32, "num_res_blocks": 1},
    },
    "blip-2": {"image_token_id": 500, "num_query_tokens": 8},
    "instructblip": {"image_token_id": 500, "num_query_tokens": 8},
    "instructblipvideo": {"video_token_id": 500, "num_query_tokens": 8},
    "cvt": {"depth": (1, 2, 3)},
    "deepseek_ocr2": {"vision_config": {"sam_config": {"downsample_channels": [32, 64]}}},
    "depth_pro": {"patch_size": 56, "intermediate_hook_ids": [1, 0]},
    "chameleon": {
        "image_token_id": 500,
        "vq_config": {"num_embeddings": 8}, "vocabulary_map": {"<image>": 500, **{f"IMGIMG{chr(65 + i)}Z": 400 + i for i in range(8)}},
    },
    "emu3": {
        "image_token_id": 500,
        "vq_config": {"codebook_size": 8, "hidden_size": 128},
        "vocabulary_map": {"<image>": 500, "<|extra_200|>": 499, **{f"<|visual token {i:06}|>": 400 + i for i in range(8)}},
    },
    "blt": {
        "encoder_hash_byte_group_vocab": 64,
        "encoder_config": {"hidden_size_global": 64},
        "decoder_config": {"hidden_size_global": 64},
    },
    "kosmos-2": {"latent_query_num": 8},
    "kosmos-2.5": {"latent_query_num": 8},
    "lilt": {"hidden_size": 96},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
    "llama4": {
        "vision_config": {"intermediate_size": 256, "projector_input_dim": 64, "projector_output_dim": 64, "vision_output_dim": 64},
    },
    "llava_next": {"image_grid_pinpoints": [[56, 56]]},
    "llava_next_video": {"image_grid_pinpoints": [[56, 56]]},
    "llava_onevision": {"image_grid_pinpoints": [[56, 56]]},
    "granite4_vision": {
        "image_grid_pinpoints": [[128, 128]], "downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]],
        "spatial_target_layers": [0, 0, 1, 1],
    },
    "markuplm": {"tag_pad_id": 216, "subs_pad_id": 1001},
    "inkling2_loop": {"text_config": _LOOPED},
    "pe_video": {"video_config": _PE_TINY},
    "pe_video_encoder": _PE_TINY,
    "pe_audio_video": {"audio_video_config": {"video_config": _PE_TINY}},
    "pe_audio_video_encoder": {"video_config": _PE_TINY},
    "perception_lm": {
        "vision_config": {"architecture": "vit_pe_core_tiny_patch16_384", "model_args": {"embed_dim": 192}},
    },
    "qwen4_exp": {"text_config": _QSA_SMALL},
    "qwen4_exp_text": _QSA_SMALL,
    "seggpt": {"image_size": [128, 64], "num_hidden_layers": 6, "merge_index": 1, "intermediate_hidden_state_indices": [2, 3, 4, 5]},
    "sapiens2": {
        "num_hidden_layers": 3, "num_key_value_heads_per_layer": [4, 2, 4], "num_key_value_attention_heads": 2,
        "num_first_full_attention_layers": 1, "num_last_full_attention_layers": 1,
    },
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 4},
    "unlimited_ocr": {"vision_config": {"sam_config": {"downsample_channels": [32, 64]}}},
    "sam3_tracker": {"vision_config": _SAM3_NECK},
    "sam3_vision_model": _SAM3_NECK,
    "glm46v": {"text_config": _mrope(2, 3, 3)},
    "glmga": {"text_config": _mrope(2, 3, 3)},
    "edgetam": {"vision_config": _SAM3_NECK},
    "edgetam_vision_model": _SAM3_NECK,
    "minimax_m3_vl": {"merged_hidden_size": 256},
    **{name: {"text_config": _WIDE} for name in ("gemma4", "gemma4_unified", "embedding_gemma2")},
    **dict.fromkeys(("gemma4_text", "gemma4_unified_text", "embedding_gemma2_text"), _WIDE),
    # Sixteen windows, each of more than one token.
    "lw_detr": {"backbone_config": {"image_size": 256}},
    "levit": {"image_size": 128},  # its last stage must have more than one token
    "mobilevit": {"initializer_range": 0.4},  # with less, its depthwise convolutions leave nothing to attend to
    "mobilebert": {"intra_bottleneck_size": 32, "true_hidden_size": 32},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "muse_glimmer": {"out_hidden_size": 256},
    "muse_spark": {"out_hidden_size": 256},
    "lightglue": {"intermediate_size": 128, "keypoint_detector_config": {"keypoint_decoder_dim": 65}},
    "glmasr": {"audio_config": {"intermediate_size": 256}},
    "vibevoice": {"audio_token_id": 500},
    "voxtral": {"audio_token_id": 500, "audio_config": {"intermediate_size": 256}},
    "videoprism": {"vision_config": {"image_size": 72, "num_frames": 2}},
    "videoprism_vision_model": {"image_size": 72, "num_frames": 2},
    "vipllava": {"vision_feature_layer": [-2, -1]},
    "wavtokenizer": {"codebook_dim": 64},
    "wavtokenizer_encoder": {"codebook_dim": 64},
    "zamba": {
        "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "attention_hidden_size": 128,
        "attention_head_dim": 32, "layers_block_type": ["linear_attention", "hybrid"] * 2,
    },
    "zamba2": {
        "num_hidden_layers": 4, "attention_hidden_size": 128, "attention_head_dim": 32, "mamba_headdim": 16,
        "kv_channels": 16, "layers_block_type": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3],
    },
    "omdet-turbo": {
        "image_size": 224,
        "vision_features_channels": [64, 64, 64], "class_embed_dim": 512, "text_projection_in_dim": 512,
        "text_projection_out_dim": 512, "text_config": {"hidden_size": 512, "projection_dim": 512},
    },
    "oneformer": {"mask_dim": 64, "conv_dim": 64},
    "neucodec": {"quantization_dim": 128},
    "xcodec2": {"quantization_dim": 128},
    "reformer": {
        "axial_pos_embds_dim": [16, 48], "axial_pos_shape": [4, 4], "local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4,
    },
    "gemma3n": {
        "audio_soft_tokens_per_image": 4,
        "image_token_id": 410, "audio_token_id": 460,
        "vision_config": {"architecture": "mobilenetv5_base", "vocab_offset": 400, "vocab_size": 50},
        "audio_config": {"vocab_offset": 450, "vocab_size": 62},
    },
    "mllama": {"vision_config": {"vision_output_dim": 128}},
    "paddleocr_vl": {"text_config": _mrope(4, 6, 6)},
    "pi0": {"dit_config": {"head_dim": 16}},
    "pp_doclayout_v3": {"x4_feat_dim": 128},
    "qwen3_asr": {"audio_config": {"n_window": 50, "n_window_infer": 200}},
    "qwen3_omni_moe_thinker": {"text_config": _mrope(3, 3, 2), "audio_config": {"n_window": 50, "n_window_infer": 200}},
    "qwen3_asr_encoder": {"n_window": 50, "n_window_infer": 200},
    **{
        name: {"image_token_id": 500, "insert_layer_id": 0, "vision_config": {"insert_layer_id": 0}}
        for name in ("minicpm_ocr", "minicpmv4_6", "minicpmv4_7")
    },
    "minicpm_ocr_vision": {"insert_layer_id": 0},
    "minicpmv4_7_vision": {"insert_layer_id": 0},
    "perceiver": {"d_latents": 64, "num_latents": 16, "num_self_attends_per_block": 2},
    "jamba": {
        "num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "sam3_lite_text": {"text_config": {"num_hidden_layers": 4}},
    "sam3_lite_text_text_model": {"num_hidden_layers": 4},
    "nllb-moe": {"encoder_sparse_step": 2, "decoder_sparse_step": 2},
    "inkling2_loop_text": _LOOPED,
    "sam2_hiera_det_model": _HIERA_DET,
    **{name: {"backbone_config": _HIERA_DET, **_HIERA_NECK} for name in ("sam2_vision_model",)},
    "sam2": {"prompt_encoder_config": {"image_size": 128}, "vision_config": {"backbone_config": _HIERA_DET, **_HIERA_NECK}},
    "gemma3n_vision": {"architecture": "mobilenetv5_base"},
    "fast_vlm": {"vision_config": {"architecture": "fastvit_mci0", "hidden_size": 1024}},
    "hiera": {"image_size": [64, 64]},
    "layoutlmv3": {"coordinate_size": 12, "shape_size": 8},
    "clap": {"audio_config": {"patch_embeds_hidden_size": 16, "hidden_size": 128}},
    "dory": {
        "num_hidden_layers": 6, "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 3,
    },
    "glm5_next": {"text_config": {"index_kpool": 2}},
    "glm5_next_text": {"index_kpool": 2},
    "granite_speech": {"window_size": 15},
    "granite_speech_plus": {"window_size": 15},
    "clvp": {
        "text_config": {"hidden_size": 128, "projection_dim": 128},
        "speech_config": {"vocab_size": 512, "hidden_size": 128, "projection_dim": 128},
        "decoder_config": {"hidden_size": 128},
        "projection_dim": 128,
    },
    "efficientloftr": {"hidden_size": 64, "out_features": [16, 16, 32, 64], "stage_num_blocks": [1, 1, 1, 1], "num_attention_heads": 8, "num_key_value_heads": 8},
}  # fmt: skip

# What a small instance leaves out.
NOTES: dict[str, str] = {
    "llama4": "its forward reads a field that its language model does not give (5.24.0): a hook gives it",
    "dots3_note": "runs on text and pictures; the tower for sound is built and does not run",
    "glm_image": "runs on text; its picture tower runs as glm_image_vision",
    "neomme": "runs on text; pictures go through one linear layer into the same stream",
    "molmo2": "runs on text; the picture tower is built and does not run",
    "inkling_mm_model": "runs on text; the picture tower is built and does not run",
    "blip": "the cross attention of the text tower does not run: the model hands it no picture",
    "phi4_multimodal": "runs on text; the towers for pictures and sound are built and do not run",
    "seamless_m4t": "runs from speech to text; the text encoder and the unit model are built and do not run",
    "seamless_m4t_v2": "runs from speech to text; the text encoder and the unit model are built and do not run",
    "nemo_speechlm": "the word timestamp encoder is built and does not run",
    "video_llava": "runs on a picture; the film tower, of the same class, does not run",
    "gemma3n": "runs on text and sound; the picture tower, timm's MobileNetV5, is built and does not run",
    "janus": "the tower that reads pictures runs; the one that makes them (a VQ autoencoder) is built and does not run",
    "csm": "the backbone runs; the depth decoder and the codec run in training and generation only",
}

# The class where the one that AutoModel names does not take the type's configuration.
CLASS: dict[str, str] = {
    "musicgen": "MusicgenForConditionalGeneration",
    "musicgen_melody": "MusicgenMelodyForConditionalGeneration",
}

# Why no small instance is made.
NOT_SMALL: dict[str, str] = {
    "bark": "the model has no forward: its parts are run one after the other by generate()",
    "glm_image_vqmodel": "the model has no forward: its encoder and its quantizer are called by glm_image",
    **dict.fromkeys(("textnet", "uvdoc", "pp_ocrv6_small_det", "pp_ocrv6_medium_det"), "holds no attention; its sizes hang together too closely to shrink"),
    "voxtral_realtime_text": "the library names a class for it that it does not have",
    "dinat": "needs the natten library, whose kernels do not exist for the CPU",
    "layoutlmv2": "needs the detectron2 library",
    "higgs_audio_v2_tokenizer": "needs the torchaudio library",
    **dict.fromkeys(("edgetam_video", "sam2_video", "sam3_tracker_video", "sam3_video"), "forward takes an inference session of a video, not tensors"),
}  # fmt: skip
