"""What is known to go wrong when models are initialised on many ranks; the numbers are those of the table in README.md."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import kappaone
from kappaone.layouts.blocks import parameters_by_name
from tests.apply.sharded_cases import MODELS
from tests.apply.test_shards import assert_equal_weights, ranks_of, world

__all__ = ["world"]


@pytest.mark.parametrize("ranks", [2, 4])
def test_D10_fsdp_after_meta_initialises_from_the_full_shape(world, ranks):
    """pytorch#104187, #90465, #104189: init sees flattened shapes, or runs over other modules' parameters again."""
    for result in ranks_of(world, ranks, "materialised_in_parts"):
        assert result["equal"] == [True, True] and result["fraction"] < 1.05 / ranks


@pytest.mark.parametrize("ranks", [2, 4])
def test_D11_orthogonal_on_dtensors_without_communication(world, ranks):
    """pytorch#131991, torchtitan#1777: `orthogonal_` has no DTensor rule, and users broadcast by hand."""
    results = ranks_of(world, ranks, "every_scheme")
    drawn = [{name: found for name, found in result.items() if "orthogonal" in name} for result in results]
    assert all(drawn)
    assert_equal_weights(drawn)
    for result in ranks_of(world, ranks, "what_is_sent"):
        assert result["1"]["others"] == result["3"]["others"] == 0
        assert result["1"]["all_reduces"] == result["3"]["all_reduces"], "what is sent grows with the layers"


def test_D12_same_weights_at_any_world_size(world):
    """pytorch#168058, #140301, OLMo-core#319: another world size, other weights; HSDP replicas differ."""
    found = [result for ranks in (1, 2, 4) for result in ranks_of(world, ranks, "the_same_everywhere")]
    assert len(found) == 7
    assert all(result == found[0] for result in found)
    for name, reported in found[0].items():
        report = kappaone.init_(MODELS[name](), "conditioned(scale=matched)", seed=7).to_dict(measure=False)
        for one, other in zip(report["layers"], reported["layers"], strict=True):
            assert [r["fingerprints"] for r in one["roles"].values()] == [
                r["fingerprints"] for r in other["roles"].values()
            ]
    replicas = [{k: v for k, v in result.items() if k.startswith("hsdp")} for result in ranks_of(world, 4, "grids")]
    assert all(replicas)
    assert_equal_weights(replicas)


def test_D13_offloaded_shards_are_not_copies_of_each_other(world):
    """torchtitan#3106, pytorch#196562: with CPU offload every rank draws the same numbers; random states move."""
    results = ranks_of(world, 2, "offloaded")
    assert len({result["mine"] for result in results}) == 2
    assert all(result["state kept"] and result["different"] == [] for result in results)


def test_D21_the_device_does_not_matter():
    """pytorch#19013: orthogonal init with one seed differs between CPU and CUDA."""
    plain = MODELS["vit"]()
    others = {"default device meta": copy.deepcopy(plain)}
    if torch.cuda.is_available():
        others["cuda"] = copy.deepcopy(plain).cuda()
    kappaone.init_(plain, "orthogonal", seed=0)
    for name, model in others.items():
        with torch.device("meta" if "meta" in name else "cpu"):
            kappaone.init_(model, "orthogonal", seed=0)
        for key, parameter in parameters_by_name(model).items():
            assert torch.equal(parameter.cpu(), parameters_by_name(plain)[key]), (name, key)


def test_D22_the_number_of_threads_does_not_matter():
    """With one seed, a QR on other threads differs in most entries."""
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            torch.manual_seed(0)
            model = nn.MultiheadAttention(256, 2)
            kappaone.init_(model, "orthogonal", seed=0)
            found.append(model.in_proj_weight.detach().clone())
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


def test_D29_wrappers_do_not_change_names_or_seeds(world):
    """pytorch#101107, #158519, peft#2957, timm#2003: `_orig_mod.`, `module.` and others in parameter names."""
    assert_equal_weights(ranks_of(world, 2, "wrappers"))
    for result in ranks_of(world, 2, "wrapped_names"):
        assert all(result["layouts"].values())


def test_D32_ties_survive_sharding(world):
    """modalities#357, Automodel#2213, transformers#43429: ties are lost by to_empty, FSDP or a replaced parameter."""
    assert ranks_of(world, 2, "ties_survive") == [{"before": True, "after": True}] * 2


@pytest.mark.parametrize("ranks", [1, 2])
def test_D44_sharded_parameters_are_written_in_place(world, ranks):
    """`param.data = tensor` breaks optimizers, FSDP and ties: identity, dtype, device, strides and memory stay."""
    for result in ranks_of(world, ranks, "forward_and_back"):
        assert result["identity"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_D44_plain_parameters_are_written_in_place(dtype):
    model = MODELS["gpt2"]().to(dtype)
    optimizer = torch.optim.AdamW(model.parameters())

    def identity():
        return {
            name: (id(p), p.data_ptr(), p.dtype, p.device, p.stride(), p.requires_grad)
            for name, p in parameters_by_name(model).items()
        }

    before = identity()
    kappaone.init_(model, "mimetic", seed=0, overwrite=True)
    assert identity() == before
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert {id(p) for p in model.parameters()} == held
