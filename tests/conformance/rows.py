"""The rows of the conformance suite: a new scheme or adapter joins by one row."""

from __future__ import annotations

import torch
from torch import nn

from kappaone.testing import ModelCase
from tests.conformance import rows_libraries, rows_proj, rows_timm, rows_transformers


def _hf(config: str, model: str, **options: object):
    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**options))

    return build


def _vit(**options: object):
    def build() -> nn.Module:
        from timm.models.vision_transformer import VisionTransformer

        return VisionTransformer(
            **{
                "img_size": 16,
                "patch_size": 8,
                "embed_dim": 32,
                "depth": 2,
                "num_heads": 4,
                "num_classes": 5,
                **options,
            }
        )

    return build


def _deit() -> nn.Module:
    from timm.models.deit import VisionTransformerDistilled

    return VisionTransformerDistilled(img_size=16, patch_size=8, embed_dim=32, depth=2, num_heads=4, num_classes=5)


def _images() -> torch.Tensor:
    return torch.randn(2, 3, 16, 16)


def _tokens() -> dict[str, torch.Tensor]:
    return {"input_ids": torch.randint(0, 50, (2, 6))}


_TEXT = {"vocab_size": 50, "bos_token_id": 1, "eos_token_id": 2}
_BERT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40, **_TEXT}

MODELS = [
    ModelCase(
        "torch encoder",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        lambda: torch.randn(2, 5, 16),
        layers=2,
        heads=4,
        source="torch.mha",
        facts={"batch_first": True},
    ),
    ModelCase(
        "torch encoder, sequence first",
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32), 2, enable_nested_tensor=False),
        lambda: torch.randn(5, 2, 16),
        layers=2,
        heads=4,
        source="torch.mha",
        facts={"batch_first": False},
    ),
    ModelCase(
        "torch decoder",
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(16, 4, 32, batch_first=True), 1),
        lambda: (torch.randn(2, 5, 16), torch.randn(2, 7, 16)),
        layers=2,
        heads=4,
        source="torch.mha",
    ),
    ModelCase("timm ViT", _vit(), _images, layers=2, heads=4, source="timm.vit"),
    ModelCase("timm ViT, no qkv bias", _vit(qkv_bias=False), _images, layers=2, heads=4, source="timm.vit"),
    ModelCase(
        "timm ViT, QK norm", _vit(qk_norm=True), _images, layers=2, heads=4, source="timm.vit", facts={"qk_norm": True}
    ),
    ModelCase("timm DeiT", _deit, _images, layers=2, heads=4, source="timm.vit"),
    ModelCase(
        "GPT-2",
        _hf("GPT2Config", "GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, n_positions=16, **_TEXT),
        _tokens,
        layers=2,
        heads=4,
        source="transformers.gpt2",
    ),
    ModelCase(
        "GPT-2, eager",
        _hf(
            "GPT2Config",
            "GPT2Model",
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=16,
            attn_implementation="eager",
            **_TEXT,
        ),
        _tokens,
        layers=2,
        heads=4,
        source="transformers.gpt2",
    ),
    ModelCase(
        "BERT",
        _hf("BertConfig", "BertModel", **_BERT),
        lambda: {**_tokens(), "attention_mask": torch.tensor([[1] * 6, [1] * 4 + [0] * 2])},
        layers=2,
        heads=4,
        source="transformers.bert",
    ),
    ModelCase(
        "transformers ViT",
        _hf(
            "ViTConfig",
            "ViTModel",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=40,
            image_size=16,
            patch_size=8,
        ),
        _images,
        layers=2,
        heads=4,
    ),
    ModelCase(
        "Llama, grouped kv",
        _hf(
            "LlamaConfig",
            "LlamaModel",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=40,
            **_TEXT,
        ),
        _tokens,
        layers=2,
        heads=4,
        kv_heads=2,
        source="transformers.proj",
        facts={"rotary": True},
    ),
]

# Whose q, k and v the tests of recording compute by hand, by the libraries' names.
BY_HAND = [*MODELS]

MODELS += rows_transformers.MODELS + rows_proj.MODELS + rows_libraries.MODELS + rows_timm.MODELS

# Their layouts are checked, row by row; no scheme runs on them.
LAYOUTS = [*rows_transformers.LAYOUTS, *rows_proj.LAYOUTS, *rows_libraries.LAYOUTS, *rows_timm.LAYOUTS]

SCHEMES = [
    "conditioned",
    "conditioned(value=per_head, qk=joint)",
    "conditioned(scale=matched)",
    "conditioned(scale=matched(group=role))",
    "conditioned(scale=trunc_normal(std=0.05))",
    "conditioned(parts=qk, layers=first, scale=0.5)",
    "default",
    "default(std=faithful)",
    "default(scale=conditioned)",
    "default(redraw)",
    "trunc_normal",
    "fan_in",
    "xavier_per_role",
    "xavier_fused",
    "orthogonal",
    "mimetic",
    "mimetic(signs=language, parts=qk)",
    "unit_logits",
]
