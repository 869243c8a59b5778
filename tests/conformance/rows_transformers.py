"""Rows for transformers, one a way of storing q, k and v; all other families are confirmed by `make coverage`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kappaone.testing import ModelCase

_TEXT: dict[str, Any] = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
_WIDE: dict[str, Any] = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 2}
_TINY: dict[str, Any] = {"hidden_size": 16, "num_attention_heads": 4, "intermediate_size": 24, "num_hidden_layers": 1}


def _hf(config: str, model: str, **options: Any):
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options)).eval()

    return build


def _tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(3, 50, (2, 7))}


def _both() -> dict[str, torch.Tensor]:
    return {**_tokens(), "decoder_input_ids": torch.randint(3, 50, (2, 6))}


def _images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


def _case(name: str, build: Any, source: str, example: Any = _tokens, **more: Any) -> ModelCase:
    return ModelCase(name, build, example, **{"layers": 2, "heads": 4, "source": f"transformers.{source}", **more})


def _one(name: str, build: Any, source: str, example: Any = _tokens, **more: Any) -> ModelCase:
    """A case of one layer."""
    return _case(name, build, source, example, **{"layers": 1, **more})


_T5 = {"d_model": 16, "d_kv": 6, "d_ff": 24, "num_layers": 1, "num_heads": 4}
_FALCON = {key: value for key, value in _TINY.items() if key != "intermediate_size"}
_SWIN = {"image_size": 16, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [4, 4], "window_size": 4}

# Every scheme in every dtype runs on these.
MODELS = [
    _one(
        "GPT-NeoX, head by head",
        _hf("GPTNeoXConfig", "GPTNeoXModel", **_TINY, **_TEXT),
        "fused",
        facts={"rotary": True},
    ),
    _one(
        "T5, encoder and decoder",
        _hf("T5Config", "T5Model", **_T5, **_TEXT),
        "separate",
        _both,
        layers=3,
        facts={"unscaled": True},
    ),
    _one("DeBERTa, biases apart", _hf("DebertaConfig", "DebertaModel", **_TINY, **_TEXT), "relative"),
]

# The layout of these, and every row of it, is checked.
LAYOUTS = [
    _one(
        "Falcon, multi-query",
        _hf("FalconConfig", "FalconModel", **_FALCON, multi_query=True, new_decoder_architecture=False, **_TEXT),
        "fused",
        kv_heads=1,
    ),
    _one(
        "Falcon, groups",
        _hf("FalconConfig", "FalconModel", **_FALCON, num_kv_heads=2, new_decoder_architecture=True, **_TEXT),
        "fused",
        kv_heads=2,
    ),
    _one(
        "Falcon, head by head, ALiBi",
        _hf(
            "FalconConfig",
            "FalconModel",
            **_FALCON,
            multi_query=False,
            new_decoder_architecture=False,
            alibi=True,
            **_TEXT,
        ),
        "fused",
        facts={"position_bias": True},
    ),
    _one(
        "CodeGen, four chunks of q, v, k",
        _hf("CodeGenConfig", "CodeGenModel", n_embd=16, n_layer=1, n_head=8, rotary_dim=2, n_positions=16, **_TEXT),
        "fused",
        heads=8,
    ),
    _one(
        "GPT-BigCode, head by head",
        _hf("GPTBigCodeConfig", "GPTBigCodeModel", n_embd=16, n_layer=1, n_head=4, multi_query=False, **_TEXT),
        "fused",
    ),
    _one(
        "Phi-3, unequal thirds",
        _hf("Phi3Config", "Phi3Model", **_TINY, num_key_value_heads=2, max_position_embeddings=32, **_TEXT),
        "fused",
        kv_heads=2,
    ),
    _one(
        "MPT, clamped",
        _hf(
            "MptConfig",
            "MptModel",
            d_model=16,
            n_heads=4,
            n_layers=1,
            max_seq_len=16,
            vocab_size=50,
            attn_config={"clip_qkv": 0.01},
        ),
        "fused",
        facts={"clamped": True, "position_bias": True},
    ),
    _one(
        "Bark, its first part",
        _hf(
            "BarkSemanticConfig",
            "BarkSemanticModel",
            hidden_size=16,
            num_heads=4,
            num_layers=1,
            block_size=16,
            input_vocab_size=50,
            output_vocab_size=50,
        ),
        "fused",
    ),
    _one(
        "XLNet, parameters of three axes",
        _hf("XLNetConfig", "XLNetModel", vocab_size=50, d_model=16, n_layer=1, n_head=4, d_inner=24),
        "relative",
        facts={"relative": True, "batch_first": False},
    ),
    _one(
        "DeBERTa v2, positions projected by the same weights",
        _hf(
            "DebertaV2Config",
            "DebertaV2Model",
            **_TINY,
            **_TEXT,
            relative_attention=True,
            pos_att_type=["c2p", "p2c"],
            share_att_key=True,
            position_buckets=4,
        ),
        "relative",
        facts={"relative": True},
    ),
    _one(
        "ProphetNet, two streams through one output",
        _hf(
            "ProphetNetConfig",
            "ProphetNetModel",
            hidden_size=16,
            num_encoder_layers=1,
            num_decoder_layers=1,
            num_encoder_attention_heads=4,
            num_decoder_attention_heads=4,
            encoder_ffn_dim=24,
            decoder_ffn_dim=24,
            **_TEXT,
        ),
        "separate",
        _both,
        layers=3,
    ),
    _one(
        "Longformer, windows",
        _hf("LongformerConfig", "LongformerModel", **_TINY, attention_window=4, **_TEXT),
        "bert",
        facts={"windows": True},
    ),
    _one(
        "Swin v2, cosines",
        _hf("Swinv2Config", "Swinv2Model", **_SWIN),
        "bert",
        _images,
        layers=2,
        facts={"cosine": True, "windows": True},
    ),
    _one(
        "BLIP's pictures",
        _hf("BlipVisionConfig", "BlipVisionModel", **_TINY, image_size=16, patch_size=4, initializer_range=0.1),
        "qkv",
        _images,
    ),
    _one(
        "ConvBERT, a convolution beside the heads",
        _hf("ConvBertConfig", "ConvBertModel", **_TINY, head_ratio=2, embedding_size=16, **_TEXT),
        "bert",
        heads=2,
    ),
]
