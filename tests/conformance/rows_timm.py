"""Rows of timm: one that every scheme runs on, and others of each storage for their layouts."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kappaone.testing import ModelCase


def _timm(module: str, name: str, **options: Any):
    def build() -> nn.Module:
        import importlib

        made: nn.Module = getattr(importlib.import_module(f"timm.models.{module}"), name)(num_classes=5, **options)
        return made

    return build


def _images(side: int = 32):
    return lambda: torch.randn(2, 3, side, side)


_SWIN = {"img_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 16, "depths": (2,), "num_heads": (2,)}
_SMALL = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 1, "num_heads": 4}


def _parallel() -> nn.Module:
    from timm.models.vision_transformer import ParallelScalingBlock, VisionTransformer

    return VisionTransformer(**_SMALL, num_classes=5, block_fn=ParallelScalingBlock)


MODELS = [
    ModelCase(
        "timm Swin",
        _timm("swin_transformer", "SwinTransformer", **_SWIN),
        _images(),
        layers=2,
        heads=2,
        source="timm.qkv",
        facts={"position_bias": True, "windows": True},
    ),
]

LAYOUTS = [
    ModelCase(
        "timm CaiT",
        _timm("cait", "Cait", **{**_SMALL, "depth_token_only": 1}),
        _images(),
        layers=2,
        heads=4,
    ),
    ModelCase(
        "timm EVA",
        _timm("eva", "Eva", **_SMALL, use_rot_pos_emb=True),
        _images(),
        layers=1,
        heads=4,
        source="timm.qkv",
        facts={"rotary": True},
    ),
    ModelCase(
        "timm XCiT",
        _timm("xcit", "Xcit", **_SMALL, cls_attn_layers=1),
        _images(),
        layers=2,
        heads=4,
    ),
    ModelCase(
        "timm NesT",
        _timm("nest", "Nest", img_size=32, num_levels=1, embed_dims=(16,), num_heads=(2,), depths=(1,)),
        _images(),
        layers=1,
        heads=2,
        source="timm.qkv",
        facts={"windows": True},
    ),
    ModelCase(
        "timm ViT-22B block",
        _parallel,
        _images(),
        layers=1,
        heads=4,
        source="timm.block",
        facts={"parallel": True},
    ),
]
