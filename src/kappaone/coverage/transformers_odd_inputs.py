"""Inputs that a `forward`'s argument names do not tell, by model type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Inputs = dict[str, Any]
Change = Callable[[Any, Inputs], Inputs]

# Pictures cut into crops: pixel_values is (batch, crops, channels, height, width).
CROPS: dict[str, int] = {
    "idefics": 1, "idefics2": 1, "idefics3": 1, "smolvlm": 1, "modernvbert": 1, "ultravbert": 1, "pi0": 1,
    "granite_docling": 1, "perception_lm": 1, "llava_next": 2, "llava_next_video": 2, "llava_onevision": 2, "granite4_vision": 2,
}  # fmt: skip

# Films: pixel_values is (batch, frames, channels, height, width).
FRAMES: frozenset[str] = frozenset(
    {"videomae", "vivit", "timesformer", "xclip", "tvp", "instructblipvideo", "videoprism", "videoprism_vision_model"}
)

# Types whose forward needs an attention mask for its text.
MASKED: frozenset[str] = frozenset({"qwen2_audio"})

# Sounds with a channel axis, and how many samples: input_values is (batch, channels, samples).
VALUES: dict[str, int] = dict.fromkeys(
    (
        "dac", "encodec", "mimi", "mimi_encoder", "xcodec", "xcodec2", "neucodec", "vibevoice_acoustic_tokenizer",
        "pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder", "wavtokenizer", "wavtokenizer_encoder",
        "omniasr", "omniasr_audio", "omniasr_ctc", "pe_audio", "pe_audio_encoder", "pe_audio_video", "pe_audio_video_encoder",
        "vibevoice", "vibevoice_asr",
    ),
    7680,
)  # fmt: skip


def _with(**made: Callable[[Any, Inputs], Any]) -> Change:
    """Add or replace inputs, each made from the model and the inputs so far."""

    def change(model: Any, inputs: Inputs) -> Inputs:
        for key, make in made.items():
            inputs[key] = make(model, inputs)
        return inputs

    return change


def _without(*names: str) -> Change:
    return lambda _model, inputs: {key: value for key, value in inputs.items() if key not in names}


def _spread(shape: tuple[int, ...], *, low: int = 0, high: int | None = None) -> Tensor:
    return torch.randn(shape) if high is None else torch.randint(low, high, shape)


def _series(model: Any, inputs: Inputs) -> Inputs:
    config = model.config
    past = config.context_length + max(config.lags_sequence)
    features = config.num_time_features + config.num_dynamic_real_features
    inputs["past_values"] = torch.randn(2, past)
    inputs["past_time_features"] = torch.randn(2, past, features)
    inputs["past_observed_mask"] = torch.ones(2, past)
    inputs["future_values"] = torch.randn(2, config.prediction_length)
    inputs["future_time_features"] = torch.randn(2, config.prediction_length, features)
    return inputs


def _patched(model: Any, inputs: Inputs) -> Inputs:
    """Siglip 2: flattened patches with their grid."""
    vision = getattr(model.config, "vision_config", model.config)
    inputs["pixel_values"] = torch.randn(2, 16, vision.num_channels * vision.patch_size**2)
    inputs["pixel_attention_mask"] = torch.ones(2, 16, dtype=torch.long)
    inputs["spatial_shapes"] = torch.tensor([[4, 4]] * 2)
    return inputs


def _prompted(model: Any, inputs: Inputs) -> Inputs:
    """Segment anything: a point for each picture."""
    inputs["input_points"] = 20 * torch.rand(2, 1, 1, 2)
    inputs["input_labels"] = torch.ones(2, 1, 1, dtype=torch.long)
    return inputs


def _lxmert(model: Any, inputs: Inputs) -> Inputs:
    inputs["visual_feats"] = torch.randn(2, 8, model.config.visual_feat_dim)
    inputs["visual_pos"] = torch.rand(2, 8, model.config.visual_pos_dim)
    return inputs


def _tiles(model: Any, inputs: Inputs) -> Inputs:
    """Patches that keep their shape: (patches, channels, height, width)."""
    vision = getattr(model.config, "vision_config", model.config)
    side = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    inputs["pixel_values"] = torch.randn(len(inputs["pixel_values"]), 3, side, side)
    return inputs


def _merged_tiles(model: Any, inputs: Inputs) -> Inputs:
    """Pictures as merged patches that keep their shape, with a grid of merged patches."""
    vision = getattr(model.config, "vision_config", model.config)
    side = vision.patch_size * vision.spatial_merge_size
    inputs["pixel_values"] = torch.randn(2 * 4, side, side, vision.num_channels)
    inputs["image_grid_thw"] = torch.tensor([[1, 2, 2]] * 2)
    return inputs


def _stacked_sound(model: Any, inputs: Inputs) -> Inputs:
    linear = next(module for name, module in model.named_modules() if name.endswith("input_linear"))
    inputs["input_features"] = torch.randn(2, 32, linear.in_features)
    return inputs


def _question(model: Any, inputs: Inputs) -> Inputs:
    inputs["qformer_input_ids"] = torch.randint(8, 100, (2, 6))
    return inputs


def _minicpm(model: Any, inputs: Inputs) -> Inputs:
    """Pictures as strips of patches with their grids."""
    vision = getattr(model.config, "vision_config", model.config)
    grid = 4 * getattr(vision, "spatial_merge_size", 1)
    strip = vision.patch_size * grid * grid * 2
    inputs["pixel_values"] = torch.randn(1, vision.num_channels, vision.patch_size, strip)
    inputs["target_sizes"] = torch.tensor([[grid, grid]] * 2, dtype=torch.int32)
    return inputs


def _omdet(model: Any, inputs: Inputs) -> Inputs:
    vocabulary = model.config.text_config.vocab_size
    words = torch.randint(8, vocabulary - 8, (4, 6))
    inputs["classes_input_ids"], inputs["classes_attention_mask"] = words, torch.ones_like(words)
    inputs["tasks_input_ids"], inputs["tasks_attention_mask"] = words[:2] + 1, torch.ones_like(words[:2])
    inputs["classes_structure"] = torch.tensor([2, 2])
    return inputs


def _gemma4_picture(model: Any, inputs: Inputs) -> Inputs:
    """Flattened patches with their places; a pooling window of 3 x 3 patches makes one token."""
    vision = getattr(model.config, "vision_config", model.config)
    x, y = torch.meshgrid(torch.arange(6), torch.arange(6), indexing="xy")
    inputs["pixel_values"] = torch.rand(2, 36, 3 * vision.patch_size**2)
    places = torch.stack([x.flatten(), y.flatten()], dim=-1).expand(2, -1, -1)
    inputs["pixel_position_ids" if vision is model.config else "image_position_ids"] = places
    return inputs


def _true_mask(model: Any, inputs: Inputs) -> Inputs:
    return {
        key: value.bool() if key == "input_features_mask" else value
        for key, value in inputs.items()
        if key != "pixel_values"
    }


def _long(model: Any, inputs: Inputs) -> Inputs:
    """Block-sparse attention gives way to a full one below a number of blocks."""
    return {key: torch.randint(110, 250, (2, 64)) if key == "input_ids" else value for key, value in inputs.items()}


def _first_token_global(model: Any, inputs: Inputs) -> Inputs:
    inputs["global_attention_mask"] = torch.zeros_like(inputs["input_ids"])
    inputs["global_attention_mask"][:, 0] = 1
    return inputs


def _entities(model: Any, inputs: Inputs) -> Inputs:
    inputs["entity_ids"] = torch.randint(3, 60, (2, 3))
    inputs["entity_attention_mask"] = torch.ones(2, 3, dtype=torch.long)
    places = torch.full((2, 3, 5), -1)
    places[..., 0] = torch.tensor([1, 4, 7])
    inputs["entity_position_ids"] = places
    return inputs


def _protein(model: Any, inputs: Inputs) -> Inputs:
    inputs["protein_input_ids"] = torch.randint(5, 30, (2, 12))
    inputs["protein_attention_mask"] = torch.ones(2, 12, dtype=torch.long)
    return inputs


def _boxes(model: Any, inputs: Inputs) -> Inputs:
    inputs["input_boxes"] = torch.rand(2, 1, 4) / 2 + 0.1
    inputs["input_boxes_labels"] = torch.ones(2, 1, dtype=torch.long)
    return inputs


def _flattened(model: Any, inputs: Inputs) -> Inputs:
    """Kosmos 2.5: patches, each led by its row and column."""
    vision = model.config.vision_config
    places = torch.stack(torch.meshgrid(torch.arange(1, 5), torch.arange(1, 5), indexing="ij"), dim=-1).reshape(16, 2)
    patches = torch.randn(2, 16, vision.patch_embed_hidden_size)
    inputs["flattened_patches"] = torch.cat([places.float().expand(2, -1, -1), patches], dim=-1)
    count = model.config.latent_query_num
    inputs["image_embeds_position_mask"] = (torch.arange(inputs["input_ids"].shape[1]) < count).expand(2, -1).long()
    return inputs


def _mllama(model: Any, inputs: Inputs) -> Inputs:
    vision = model.config.vision_config
    tiles, side = vision.max_num_tiles, vision.image_size
    inputs["pixel_values"] = torch.randn(2, 1, tiles, vision.num_channels, side, side)
    inputs["aspect_ratio_ids"] = torch.full((2, 1), 5)
    inputs["aspect_ratio_mask"] = torch.ones(2, 1, tiles, dtype=torch.long)
    inputs["cross_attention_mask"] = torch.ones(2, inputs["input_ids"].shape[1], 1, tiles, dtype=torch.long)
    return inputs


def _codebooks(model: Any, inputs: Inputs) -> Inputs:
    """One row of codes for each codebook of each sample."""
    decoder = model.config.decoder
    inputs["decoder_input_ids"] = torch.randint(0, decoder.vocab_size // 2, (2 * decoder.num_codebooks, 8))
    return inputs


def _held_sound(model: Any, inputs: Inputs) -> Inputs:
    """Placeholders by hand: the model counts them before it runs its tower."""
    count = model.config.audio_config.max_source_positions // 2
    ids = inputs["input_ids"]
    token = getattr(model.config, "audio_token_id", None) or model.config.audio_token_index
    held = torch.full((2, count), token)
    inputs["input_ids"] = torch.cat([ids[:, :4], held, ids[:, 4:]], dim=1)
    return inputs


def _line_of_text(model: Any, inputs: Inputs) -> Inputs:
    inputs["pixel_values"] = torch.randn(2, 3, 96, 320)
    return inputs


def _hundred_frames(model: Any, inputs: Inputs) -> Inputs:
    """Sounds in chunks of a hundred frames, which the model's own arithmetic takes for granted."""
    inputs["input_features"] = torch.randn(2, 128, 100)
    mask = "feature_attention_mask" if "feature_attention_mask" in inputs else "input_features_mask"
    inputs[mask] = torch.ones(2, 100, dtype=torch.long)
    return inputs


def _given_image_outputs(model: Any, inputs: Inputs) -> Inputs:
    def give(_module: Any, _args: Any, output: Any) -> None:
        if not hasattr(output, "image_outputs"):
            object.__setattr__(output, "image_outputs", None)

    model.language_model.register_forward_hook(give)
    return inputs


def _states(model: Any, inputs: Inputs) -> Inputs:
    config = model.config
    return {
        "states": torch.randn(2, 6, config.state_dim), "actions": torch.randn(2, 6, config.act_dim),
        "rewards": torch.randn(2, 6, 1), "returns_to_go": torch.randn(2, 6, 1), "timesteps": torch.arange(6).repeat(2, 1),
        "attention_mask": torch.ones(2, 6),
    }  # fmt: skip


def _phrase(model: Any, inputs: Inputs) -> Inputs:
    """Grounding DINO: tokens see those of their phrase, which ends at a special token (BERT's [CLS] 101, [SEP] 102).

    The first and the last token of a text see themselves alone.
    """
    ids = inputs["input_ids"]
    ids = ids + 4 * ((ids == 101) | (ids == 102)).long()
    ids[:, 0], ids[:, -2] = 101, 102
    return {**inputs, "input_ids": ids}


def _dimmed(model: Any, inputs: Inputs) -> Inputs:
    """A darker picture with more tokens: an untrained network without biases gives large ones to a bright one."""
    return {**inputs, "pixel_values": 0.1 * torch.randn(2, 3, 128, 128)}


def _bright(model: Any, inputs: Inputs) -> Inputs:
    """Untrained, RepViT leaves 1e-9 of a picture's contrast: its batch norms are set to what they see."""
    norms = [m for n, m in model.named_modules() if "timm_model" in n and isinstance(m, torch.nn.BatchNorm2d)]
    for norm in norms:
        norm.train()
        norm.momentum = 1.0
    with torch.no_grad():
        model.vision_encoder(inputs["pixel_values"])
    for norm in norms:
        norm.eval()
    return _prompted(model, inputs)


def _lively(model: Any, inputs: Inputs) -> Inputs:
    """FastViT without its norms leaves 1e-34 of an untrained network's signal: its convolutions are drawn wider."""
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.Conv2d):
                module.weight.normal_(std=module.weight[0].numel() ** -0.5)
    return {**inputs, "pixel_values": torch.randn(2, 3, 128, 128)}


def _biased(model: Any, inputs: Inputs) -> Inputs:
    """Conditional DETR: queries start at zero and, without biases, stay so through the first self-attention."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("self_attn.o_proj.bias"):
                parameter.normal_(std=0.2)
    return inputs


# What else it takes to make an input, from (model, inputs so far).
ODD: dict[str, Change] = {
    "autoformer": _series,
    "informer": _series,
    "time_series_transformer": _series,
    "siglip2": _patched,
    "siglip2_vision_model": _patched,
    "sam": _prompted,
    "sam_hq": _prompted,
    "sam2": _prompted,
    "sam3_tracker": _prompted,
    "edgetam": _bright,
    "conditional_detr": _biased,
    "lxmert": _lxmert,
    "decision_transformer": _states,
    "patchtst": _with(past_values=lambda m, i: torch.randn(2, m.config.context_length, m.config.num_input_channels)),
    "patchtsmixer": _with(past_values=lambda m, i: torch.randn(2, m.config.context_length, m.config.num_input_channels)),
    "timesfm2_5": _with(past_values=lambda m, i: torch.randn(2, m.config.context_length)),
    "perceiver": _with(inputs=lambda m, i: torch.randn(2, 12, m.config.d_model)),
    "speecht5": lambda m, i: {
        "input_values": torch.randn(2, 12, m.config.hidden_size), "decoder_input_values": torch.randn(2, 8, m.config.hidden_size),
    },
    "kosmos-2": _with(
        image_embeds_position_mask=lambda m, i: (torch.arange(i["input_ids"].shape[1]) < m.config.latent_query_num).expand(2, -1)
    ),
    "blip_2_qformer": lambda m, i: {"query_embeds": torch.randn(2, 8, m.config.hidden_size), "encoder_hidden_states": torch.randn(2, 10, m.config.encoder_hidden_size)},
    "efficientloftr": lambda m, i: {"pixel_values": torch.rand(2, 2, 1, 64, 64)},
    "lightglue": lambda m, i: {"pixel_values": torch.rand(2, 2, 3, 64, 64)},
    "idefics": _with(image_attention_mask=lambda m, i: torch.ones(2, i["input_ids"].shape[1], 1, dtype=torch.long)),
    "kimi_k25": _tiles,
    "kimi_k25_vision": _tiles,
    "inkling2": _merged_tiles,
    "inkling2_loop": _merged_tiles,
    "inkling2_vision": _merged_tiles,
    "granite_speech5_ctc": _stacked_sound,
    "granite_speech5_encoder": _stacked_sound,
    "granite_docling": _with(pixel_attention_mask=lambda m, i: torch.ones(2, i["pixel_values"].shape[1], dtype=torch.bool)),
    "instructblip": _question,
    "instructblipvideo": _question,
    "lfm2_vl": _patched,
    "kyutai_speech_to_text": _with(input_ids=lambda m, i: torch.randint(1, 400, (2, 12, m.config.num_codebooks + 1))),
    "minicpm_ocr": _minicpm,
    "minicpm_ocr_vision": _minicpm,
    "minicpmv4_6": _minicpm,
    "minicpmv4_7": _minicpm,
    "minicpmv4_7_vision": _minicpm,
    "omdet-turbo": _omdet,
    "oneformer": _with(task_inputs=lambda m, i: torch.randint(1, 100, (2, m.config.task_seq_len))),
    "musicgen_melody": lambda m, i: {**_codebooks(m, i), "input_features": torch.randn(2, 10, m.config.num_chroma)},
    "musicgen": _codebooks,
    "mllama": _mllama,
    "granite_speech": _without("input_features_mask"),
    "granite_speech_plus": _without("input_features_mask"),
    "molmo2": _without("pixel_values"),
    "inkling_mm_model": _without("pixel_values"),
    "muse_glimmer_assistant": _with(
        noise_embeds=lambda m, i: torch.randn(2, 4, m.config.hidden_size),
        context_hidden_states=lambda m, i: torch.randn(2, 8, next(x for n, x in m.named_modules() if n.endswith("fc")).in_features),
    ),
    "nemotron3_5_transcribe_word_timestamp": lambda m, i: {"inputs_embeds": torch.randn(2, 12, m.config.hidden_size)},
    "neomme": _without("pixel_values"),
    "paddleocr_vl": _tiles,
    "mimi_decoder": lambda m, i: {"latents": torch.randn(2, m.config.hidden_size, 12)},
    "pi0": _with(
        action_embeds=lambda m, i: torch.randn(2, 6, m.config.dit_config.hidden_size),
        pixel_attention_mask=lambda m, i: torch.ones(2, 1, dtype=torch.bool),
    ),
    "pocket_tts_audio_tokenizer_decoder": lambda m, i: {"latents": torch.randn(2, m.config.hidden_size, 12)},
    "speech_to_text": _with(input_features=lambda m, i: torch.randn(2, 64, m.config.input_feat_per_channel)),
    "timesfm": _with(
        past_values=lambda m, i: torch.randn(2, m.config.context_length),
        past_values_padding=lambda m, i: torch.zeros(2, m.config.context_length),
        freq=lambda m, i: torch.zeros(2, 1, dtype=torch.long),
    ),
    "video_llama_3": _with(image_merge_sizes=lambda m, i: torch.tensor([1, 1])),
    "video_llama_3_vision": _with(merge_sizes=lambda m, i: torch.tensor([2, 2])),
    "vibevoice_acoustic_tokenizer_encoder": lambda m, i: {"hidden_states": torch.randn(2, 1, 6400)},
    "vibevoice_acoustic_tokenizer_decoder": lambda m, i: {"hidden_states": torch.randn(2, m.config.hidden_size, 8)},
    "rt_detr": _dimmed,
    "rt_detr_v2": _dimmed,
    "grounding-dino": _phrase,
    "fast_vlm": _lively,
    "mm-grounding-dino": _phrase,
    # Patches of several bytes, so that each patch has a choice.
    "blt": _with(patch_lengths=lambda m, i: torch.tensor([[1, 5, 5, 5]] * 2)),
    "big_bird": _long,
    "bigbird_pegasus": _long,
    "longformer": _first_token_global,
    "led": _first_token_global,
    "luke": _entities,
    "evolla": _protein,
    "sam3": _boxes,
    "sam3_lite_text": _boxes,
    "kosmos-2.5": _flattened,
    "glm_image": _without("pixel_values", "image_grid_thw"),
    "voxtral_realtime": _with(input_ids=lambda m, i: i["input_ids"][:, :8]),
    "xmod": _with(lang_ids=lambda m, i: torch.zeros(2, dtype=torch.long)),
    "musicflamingo": _held_sound,
    "qwen3_asr": _hundred_frames,
    "qwen3_asr_encoder": _hundred_frames,
    "seggpt": lambda m, i: {key: torch.rand(2, 3, 64, 64) for key in ("pixel_values", "prompt_pixel_values", "prompt_masks")},
    "qwen3_omni_moe_thinker": _hundred_frames,
    # Its position table takes one film at a time.
    "tvp": lambda m, i: {key: value[:1] for key, value in i.items()},
    "neucodec": lambda m, i: {"input_values": i["input_values"], "input_features": torch.randn(2, 24, 160)},
    "pp_ocrv5_mobile_rec": _line_of_text,
    "pp_ocrv5_server_rec": _line_of_text,
    "pp_ocrv6_small_rec": _line_of_text,
    "pp_ocrv6_tiny_rec": _line_of_text,
    "xcodec2": lambda m, i: {"input_values": i["input_values"], "input_features": torch.randn(2, 24, 160)},
    "dots3_note": _without("input_features"),
    "llama4": _given_image_outputs,
    "qwen2_audio": _held_sound,
    "diffusion_gemma": _gemma4_picture,
    "csm": _without("input_values", "input_values_cutoffs"),
    "fuyu": _with(pixel_values=lambda m, i: torch.randn(2, 4, m.config.num_channels * m.config.patch_size**2)),
    "gemma3n_audio": lambda m, i: {"audio_mel": torch.randn(2, 64, m.config.input_feat_size), "audio_mel_mask": torch.zeros(2, 64, dtype=torch.bool)},
    "gemma3n": _true_mask,
    "gemma4_audio": lambda m, i: {"input_features": torch.randn(2, 64, 128), "attention_mask": torch.ones(2, 64, dtype=torch.bool)},
    "gemma4_vision": _gemma4_picture,
    "clap": _with(input_features=lambda m, i: torch.randn(2, 1, 64, m.config.audio_config.num_mel_bins), is_longer=lambda m, i: torch.ones(2, 1, dtype=torch.bool)),
    "audio-spectrogram-transformer": lambda m, i: {"input_values": torch.randn(2, m.config.max_length, m.config.num_mel_bins)},
    "deepseek_vl_hybrid": _with(high_res_pixel_values=lambda m, i: i["pixel_values"]),
    "dia": _with(decoder_input_ids=lambda m, i: torch.randint(0, 60, (2, 8, m.config.decoder_config.num_channels))),
    "depth_pro": lambda m, i: {"pixel_values": torch.randn(2, 3, 4 * m.config.patch_size, 4 * m.config.patch_size)},
}  # fmt: skip
