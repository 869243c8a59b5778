"""What cannot be written in place is refused by name, with what to do; nothing is changed."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import kappaone
from kappaone.errors import WriteError
from tests.layouts.test_stored import wrapped


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2, num_classes=3
    )


def refused(model: nn.Module, *words: str) -> None:
    before = {name: p.detach().clone() for name, p in model.named_parameters() if not p.is_meta}
    with pytest.raises(WriteError) as caught:
        kappaone.init_(model, "conditioned", seed=0)
    assert "blocks.1.attn" in caught.value.what and caught.value.todo
    for word in words:
        assert word in str(caught.value)
    for name, old in before.items():
        now = dict(model.named_parameters())[name]
        assert torch.equal(
            now.detach().view(torch.uint8) if now.dtype.itemsize == 1 else now.detach(),
            old.view(torch.uint8) if now.dtype.itemsize == 1 else old,
        )


def test_meta_says_both_ways_out():
    model = vit()
    model.blocks[1].attn.qkv.to("meta")
    refused(model, "meta device", "kappaone.materialize_(", "to_empty(device=...)", "tables in buffers")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_quantised_by_dtype(dtype):
    model = vit()
    qkv = model.blocks[1].attn.qkv
    qkv.weight = nn.Parameter(qkv.weight.detach().to(dtype), requires_grad=False)
    refused(model, str(dtype), "before quantising")


def test_four_bits_with_a_quant_state():
    model = vit()
    weight = model.blocks[1].attn.qkv.weight
    weight.quant_state = None
    refused(model, "quant_state", "before quantising")


def test_tensor_subclasses_that_compute_their_values():
    model = vit()
    model.blocks[1].attn.qkv.weight = nn.Parameter(type(wrapped())(torch.ones(48, 16, dtype=torch.int8), 0.1), False)
    with pytest.raises(WriteError, match="blocks.1.attn.qkv.weight.*Wrapped.*quantised, or wrapped"):
        kappaone.init_(model, "conditioned", seed=0)


def test_empty_parameters_are_not_skipped_in_silence():
    layer = nn.TransformerEncoderLayer(16, 4)
    (layout,) = kappaone.find_attention(layer)
    layer.self_attn.in_proj_weight.data = torch.empty(0)
    with pytest.raises(WriteError, match="in_proj_weight' is empty here"):
        kappaone.init_(layer, "conditioned", seed=0, layouts=[layout])
