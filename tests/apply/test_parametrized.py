"""Weights behind torch's parametrizations: set exactly, or refused by name with everything put back."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import kappaone
from kappaone.errors import SpecError, WriteError
from tests.apply.test_materialize import llama


def vit() -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=16, depth=2, num_heads=2)


def everything(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def places(model: nn.Module) -> dict[str, tuple]:
    return {name: (id(p), p.data_ptr(), p.dtype, p.stride(), p.requires_grad) for name, p in model.named_parameters()}


def steps(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference in rounding steps of the dtype at the size of the largest entry."""
    scale = torch.finfo(one.dtype).eps * float(other.detach().double().abs().max())
    return float((one.detach().double() - other.detach().double()).abs().max()) / scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weight_norm_computes_what_a_plain_weight_would_be(dtype):
    plain, model = vit().to(dtype), vit().to(dtype)
    for block in model.blocks:
        parametrizations.weight_norm(block.attn.qkv)
    before = places(model)
    report = kappaone.init_(model, "conditioned", seed=0)
    kappaone.init_(plain, "conditioned", seed=0)
    for ours, theirs in zip(model.blocks, plain.blocks, strict=True):
        assert steps(ours.attn.qkv.weight, theirs.attn.qkv.weight) <= 4
        # What it is computed from says so too: v's rows scaled to g.
        held = ours.attn.qkv.parametrizations.weight
        g, v = held.original0.detach().double(), held.original1.detach().double()
        by_hand = g * v / v.norm(dim=1, keepdim=True)
        assert steps(by_hand.to(dtype), theirs.attn.qkv.weight) <= 4
    assert places(model) == before  # in place: same parameters, same memory
    assert kappaone.check(model) and any("_WeightNorm" in remark for remark in report.remarks)
    with torch.no_grad():
        model.blocks[0].attn.qkv.parametrizations.weight.original0[0] *= 2
    assert not kappaone.check(model)


def test_in_proj_of_torch():
    model = nn.TransformerEncoderLayer(16, 4)
    parametrizations.weight_norm(model.self_attn, "in_proj_weight")
    plain = nn.TransformerEncoderLayer(16, 4)
    kappaone.init_(model, "conditioned", seed=0)
    kappaone.init_(plain, "conditioned", seed=0)
    assert steps(model.self_attn.in_proj_weight, plain.self_attn.in_proj_weight) <= 4


def test_orthogonal_takes_a_weight_that_is_orthogonal_and_no_other():
    model = llama()
    for layer in model.model.layers:
        parametrizations.orthogonal(layer.self_attn.q_proj)
    before, where = everything(model), places(model)
    # Each head alone is semi-orthogonal, all of them together are not.
    with pytest.raises(WriteError) as caught:
        kappaone.init_(model, "conditioned(parts=q)", seed=0, overwrite=True)
    text = str(caught.value)
    assert "model.layers.0.self_attn.q_proj.weight" in text and "parametrized by _Orthogonal" in text
    assert "gives back another weight: role q, head" in text and "remove_parametrizations" in text
    after = everything(model)
    assert all(torch.equal(before[name], after[name]) for name in before) and places(model) == where
    report = kappaone.init_(model, "conditioned(qk=joint, parts=q)", seed=0, overwrite=True)
    plain = llama()
    kappaone.init_(plain, "conditioned(qk=joint, parts=q)", seed=0)
    for ours, theirs in zip(model.model.layers, plain.model.layers, strict=True):
        assert steps(ours.self_attn.q_proj.weight, theirs.self_attn.q_proj.weight) <= 64
    assert kappaone.check(model) and report.blocks_set == 8 and places(model) == where


def test_spectral_norm_is_refused_by_name_and_everything_is_put_back():
    model = vit().train()
    parametrizations.spectral_norm(model.blocks[1].attn.qkv)
    before = everything(model)
    with pytest.raises(
        WriteError, match=r"'blocks.1.attn.qkv.weight' is parametrized by _SpectralNorm, which gives back"
    ):
        kappaone.init_(model, "conditioned(scale=3)", seed=0, overwrite=True)
    after = everything(model)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training and model.blocks[1].attn.qkv.parametrizations.weight.training


class Doubled(nn.Module):
    """A parametrization of a user's that nobody can invert."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


class Halved(Doubled):
    def right_inverse(self, x: torch.Tensor) -> torch.Tensor:
        return x / 2


def test_a_parametrization_without_an_inverse_is_refused():
    model = vit()
    parametrize.register_parametrization(model.blocks[0].attn.qkv, "weight", Doubled())
    before = everything(model)
    with pytest.raises(WriteError, match="parametrized by Doubled, which cannot be set"):
        kappaone.init_(model, "conditioned", seed=0, overwrite=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in everything(model).items())


def test_a_parametrization_of_ones_own_with_an_inverse_is_exact():
    model, plain = vit(), vit()
    for block in model.blocks:
        parametrize.register_parametrization(block.attn.qkv, "weight", Halved())
    kappaone.init_(model, "conditioned", seed=0, overwrite=True)
    kappaone.init_(plain, "conditioned", seed=0)
    for ours, theirs in zip(model.blocks, plain.blocks, strict=True):
        assert torch.equal(ours.attn.qkv.weight, theirs.attn.qkv.weight)
        assert torch.equal(2 * ours.attn.qkv.parametrizations.weight.original, theirs.attn.qkv.weight)


def test_a_failure_in_a_later_layer_puts_the_earlier_one_back():
    model = vit()
    parametrizations.weight_norm(model.blocks[0].attn.qkv)
    parametrize.register_parametrization(model.blocks[1].attn.qkv, "weight", Doubled())
    before = everything(model)
    with pytest.raises(WriteError, match="Doubled"):
        kappaone.init_(model, "conditioned", seed=0, overwrite=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in everything(model).items())


def test_a_scale_that_is_watched_while_it_is_set_is_refused():
    model = vit()
    parametrizations.weight_norm(model.blocks[0].attn.qkv)
    with pytest.raises(SpecError, match="is parametrized, so that scale=logit"):
        kappaone.init_(model, "conditioned(scale=logit(1))", seed=0, example=torch.randn(2, 3, 32, 32))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("wrap", "words"),
    [
        (lambda layer: nn.utils.weight_norm(layer), "weight norm of the old style"),
        (lambda layer: nn.utils.spectral_norm(layer), "spectral norm of the old style"),
        (lambda layer: prune.random_unstructured(layer, "weight", 0.5), "pruned"),
    ],
)
def test_weights_made_anew_by_hooks_are_refused_by_name(wrap, words):
    model = vit()
    wrap(model.blocks[1].attn.qkv)
    before = everything(model)
    with pytest.raises(WriteError) as caught:
        kappaone.init_(model, "conditioned", seed=0)
    assert "blocks.1.attn.qkv.weight" in str(caught.value) and words in str(caught.value)
    assert all(torch.equal(before[name], tensor) for name, tensor in everything(model).items())
