"""Rows of the conformance suite: torchvision, x-transformers, vit-pytorch, open_clip, diffusers, and copied code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from kappaone.testing import ModelCase
from tests.layouts import copied


def _images(size: int = 16) -> torch.Tensor:
    return torch.randn(2, 3, size, size)


def _tokens() -> torch.Tensor:
    return torch.randn(2, 6, 16)


def _ids() -> torch.Tensor:
    return torch.randint(0, 40, (2, 6))


def _torchvision_swin(version: int) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        swin = pytest.importorskip("torchvision.models.swin_transformer")
        options = {} if version == 1 else {
            "block": swin.SwinTransformerBlockV2,
            "downsample_layer": swin.PatchMergingV2,
        }  # fmt: skip
        model: nn.Module = swin.SwinTransformer([2, 2], 16, [2], [2], [4, 4], num_classes=3, **options)
        return model

    return build


def _torchvision_maxvit() -> nn.Module:
    maxvit = pytest.importorskip("torchvision.models.maxvit")
    model: nn.Module = maxvit.MaxVit((32, 32), 8, 4, [16], [1], 8, 0.0, num_classes=3)
    return model


def _x_transformers(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = pytest.importorskip("x_transformers")
        layers = library.Decoder(**{"dim": 16, "depth": 2, "heads": 4, "attn_dim_head": 4, **options})
        model: nn.Module = library.TransformerWrapper(num_tokens=40, max_seq_len=8, attn_layers=layers)
        return model

    return build


def _vit_pytorch(module: str, name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        pytest.importorskip("vit_pytorch")
        shared = {"image_size": 16, "patch_size": 8, "num_classes": 3, "dim": 16, "depth": 1, "heads": 4, "mlp_dim": 16}
        model: nn.Module = getattr(pytest.importorskip(f"vit_pytorch.{module}"), name)(
            **{**shared, "dim_head": 4, **options}
        )
        return model

    return build


def _levit() -> nn.Module:
    library = pytest.importorskip("vit_pytorch.levit")
    model: nn.Module = library.LeViT(
        image_size=64, num_classes=3, stages=1, dim=16, depth=1, heads=2, mlp_mult=1, dim_key=4, dim_value=6
    )
    return model


def _open_clip(**options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        pytest.importorskip("open_clip")
        model: nn.Module = pytest.importorskip("open_clip.transformer").CustomResidualAttentionBlock(16, 4, **options)
        return model

    return build


def _unet(*, fused: bool) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        library = pytest.importorskip("diffusers")
        model: nn.Module = library.UNet2DConditionModel(
            sample_size=8,
            block_out_channels=(16,),
            norm_num_groups=4,
            down_block_types=("CrossAttnDownBlock2D",),
            up_block_types=("UpBlock2D",),
            mid_block_type=None,
            layers_per_block=1,
            cross_attention_dim=12,
            attention_head_dim=4,
        )
        if fused:
            model.fuse_qkv_projections()
        return model

    return build


def _sd3() -> nn.Module:
    library = pytest.importorskip("diffusers")
    model: nn.Module = library.SD3Transformer2DModel(
        sample_size=8,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=4,
        num_attention_heads=4,
        caption_projection_dim=16,
        joint_attention_dim=12,
        pooled_projection_dim=8,
        pos_embed_max_size=8,
        qk_norm="rms_norm",
    )
    return model


def _wan() -> nn.Module:
    library = pytest.importorskip("diffusers")
    model: nn.Module = library.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=4,
        out_channels=4,
        text_dim=16,
        freq_dim=16,
        ffn_dim=16,
        num_layers=1,
        rope_max_seq_len=16,
    )
    return model


def _text_to_image(**options: Any) -> dict[str, Any]:
    return {"timestep": torch.tensor([1, 2]), "encoder_hidden_states": torch.randn(2, 5, 12), **options}


MODELS = [
    ModelCase(
        "copied nanoGPT",
        lambda: nn.Sequential(copied.NanoGPT(), copied.NanoGPT()),
        _tokens,
        layers=2,
        heads=4,
        source="reference.code",
    ),
    ModelCase(
        "x-transformers, kv heads modulo",
        _x_transformers(attn_kv_heads=2),
        _ids,
        layers=2,
        heads=4,
        kv_heads=2,
        source="x_transformers.attention",
        facts={"kv_map": "modulo"},
    ),
]

_X = {"layers": 2, "heads": 4, "source": "x_transformers.attention"}
_V = {"layers": 1, "heads": 4, "source": "vit_pytorch.attention"}
LAYOUTS = [
    ModelCase("copied nanochat", copied.NanoChat, _tokens, layers=1, heads=4, kv_heads=2, facts={"qk_norm": True}),
    ModelCase("copied Llama", copied.Llama, _tokens, layers=1, heads=4, kv_heads=2, source="reference.code"),
    ModelCase("copied torchtitan", copied.Titan, _tokens, layers=1, heads=4, kv_heads=2, source="reference.code"),
    ModelCase("copied lucidrains", copied.Lucid, _tokens, layers=1, heads=4, source="vit_pytorch.attention"),
    ModelCase(
        "torchvision Swin", _torchvision_swin(1), _images, layers=2, heads=2, facts={"windows": True},
        source="torchvision.windows",
    ),
    ModelCase(
        "torchvision Swin v2", _torchvision_swin(2), _images, layers=2, heads=2, facts={"cosine": True},
        source="torchvision.windows",
    ),
    ModelCase("torchvision MaxViT", _torchvision_maxvit, lambda: _images(32), layers=2, heads=2),
    ModelCase("x-transformers, talking heads", _x_transformers(attn_pre_talking_heads=True), _ids, **_X),
    ModelCase("x-transformers, values normalized", _x_transformers(attn_value_rmsnorm=True), _ids, **_X),
    ModelCase("x-transformers, values wider", _x_transformers(attn_value_dim_head=6), _ids, **_X),
    ModelCase(
        "x-transformers, latents",
        _x_transformers(attn_use_latent_q=True, attn_dim_latent_q=8, attn_use_latent_kv=True, attn_dim_latent_kv=6),
        _ids,
        **_X,
        facts={"low_rank": True},
    ),
    ModelCase("vit-pytorch ViT", _vit_pytorch("vit", "ViT"), _images, **_V),
    ModelCase("vit-pytorch, re-attention", _vit_pytorch("deepvit", "DeepViT"), _images, **_V, facts={"talking_heads": True}),
    ModelCase(
        "vit-pytorch, LSA", _vit_pytorch("vit_for_small_dataset", "ViT", image_size=32), lambda: _images(32), **_V
    ),
    ModelCase(
        "vit-pytorch, normalized weights",
        _vit_pytorch("normalized_vit", "nViT", image_size=32),
        lambda: _images(32),
        **_V,
        facts={"cosine": True},
    ),
    ModelCase(
        "vit-pytorch LeViT",
        _levit,
        lambda: _images(64),
        layers=1,
        heads=2,
        source="vit_pytorch.attention",
        facts={"projection_norm": True},
    ),
    ModelCase(
        "open_clip, normalized inside",
        _open_clip(qk_norm=True, scale_heads=True, scale_attn_inner=True),
        _tokens,
        layers=1,
        heads=4,
        source="open_clip.attention",
        facts={"output_norm": True},
    ),
    ModelCase(
        "diffusers UNet",
        _unet(fused=False),
        lambda: _text_to_image(sample=torch.randn(2, 4, 8, 8)),
        layers=2,
        heads=4,
        source="diffusers.attention",
    ),
    ModelCase(
        "diffusers UNet, fused",
        _unet(fused=True),
        lambda: _text_to_image(sample=torch.randn(2, 4, 8, 8)),
        layers=2,
        heads=4,
        source="diffusers.attention",
    ),
    ModelCase(
        "diffusers Wan",
        _wan,
        lambda: {
            "hidden_states": torch.randn(1, 4, 2, 8, 8),
            "timestep": torch.tensor([1]),
            "encoder_hidden_states": torch.randn(1, 5, 16),
        },
        layers=2,
        heads=2,
        source="diffusers.attention",
        facts={"qk_norm": "whole"},
    ),
]  # fmt: skip
