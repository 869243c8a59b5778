"""Attention whose weights are parametrized, packed, partitioned or wrapped is found, or refused with the reason."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

import kappaone
from kappaone.errors import LayoutError
from kappaone.layouts.find import survey


def vit() -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)


@pytest.mark.filterwarnings("ignore")
def test_packed_projections_are_refused_with_the_reason():
    model = torch.ao.quantization.quantize_dynamic(vit(), {nn.Linear}, dtype=torch.qint8)
    assert [item.name for item in survey(model).refused] == ["blocks.0.attn", "blocks.1.attn"]
    with pytest.raises(LayoutError, match=r"blocks.0.attn .*has qkv, which is dynamically quantised \(packed"):
        kappaone.find_attention(model)


def test_four_bit_projections_are_refused_with_the_reason():
    model = vit()
    for block in model.blocks:
        block.attn.qkv.weight = nn.Parameter(torch.zeros(384, 1, dtype=torch.uint8), requires_grad=False)
        block.attn.qkv.weight.quant_state = None
    with pytest.raises(LayoutError, match="has qkv, which is stored as torch.uint8 with a quant_state"):
        kappaone.find_attention(model)


def test_lazy_projections_say_run_once():
    model = vit()
    model.blocks[1].attn.qkv = nn.LazyLinear(48)
    with pytest.raises(LayoutError, match=r"'blocks.1.attn.qkv.weight' has no shape yet \(a lazy module\)"):
        kappaone.find_attention(model)


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.orthogonal])
def test_parametrized_projections_have_the_layout_of_plain_ones(wrap):
    model = vit()
    plain = kappaone.find_attention(model)
    for block in model.blocks:
        wrap(block.attn.qkv)
    assert [layer.to_dict() for layer in kappaone.find_attention(model)] == [layer.to_dict() for layer in plain]


def test_parametrized_in_proj_of_torch():
    layer = nn.TransformerEncoderLayer(16, 4)
    (plain,) = kappaone.find_attention(layer)
    nn.utils.parametrizations.weight_norm(layer.self_attn, "in_proj_weight")
    (found,) = kappaone.find_attention(layer)
    assert found.q == plain.q and found.source == "torch.mha"


def test_looking_does_not_move_the_power_iteration_of_spectral_norm():
    model = vit().train()
    wrapped = nn.utils.parametrizations.spectral_norm(model.blocks[0].attn.qkv)
    state = {name: buffer.clone() for name, buffer in wrapped.named_buffers()}
    assert state
    kappaone.find_attention(model)
    assert all(torch.equal(buffer, state[name]) for name, buffer in wrapped.named_buffers())
    assert wrapped.parametrizations.weight.training


def test_weights_in_parts_have_the_layout_of_whole_ones():
    model = vit()
    plain = kappaone.find_attention(model)
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id, parameter.ds_shape = number, parameter.shape
        parameter.data = torch.empty(0)
    assert [layer.to_dict() for layer in kappaone.find_attention(model)] == [layer.to_dict() for layer in plain]


class Tuner(nn.Module):
    """As adapters wrap a projection: the base is a child, and `weight` a property that hands it out."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict({"default": nn.Linear(base.in_features, 2, bias=False)})
        self.lora_B = nn.ModuleDict({"default": nn.Linear(2, base.out_features, bias=False)})

    @property
    def weight(self) -> torch.Tensor:
        return self.base_layer.weight

    @property
    def bias(self) -> torch.Tensor | None:
        return self.base_layer.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base_layer(x) + self.lora_B["default"](self.lora_A["default"](x))


def test_adapters_are_looked_through():
    model = vit()
    model.blocks[0].attn.qkv = Tuner(model.blocks[0].attn.qkv)
    first, second = kappaone.find_attention(model)
    assert (
        first.q.parameter == "blocks.0.attn.qkv.base_layer.weight"
        and first.q.bias == "blocks.0.attn.qkv.base_layer.bias"
    )
    assert second.q.parameter == "blocks.1.attn.qkv.weight"
