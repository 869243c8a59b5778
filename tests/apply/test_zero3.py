"""DeepSpeed's ZeRO-3, by a stand-in that carries what deepspeed puts on parameters and gathers as deepspeed does."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import SpecError, WriteError
from tests.apply.test_materialize import gpt2, llama


class Zero:
    """Parameters in parts: empty here, whole only within `GatheredParameters`."""

    def __init__(self) -> None:
        self.store: dict[int, torch.Tensor] = {}
        self.gathered: list[list[int]] = []
        self.open = 0

    def partition(self, model: nn.Module) -> nn.Module:
        for number, parameter in enumerate(model.parameters()):
            parameter.ds_id, parameter.ds_shape, parameter.ds_numel = number, parameter.shape, parameter.numel()
            self.store[number] = parameter.data
            parameter.data = torch.empty(0, dtype=parameter.dtype)
        return model

    def whole(self, model: nn.Module) -> dict[str, torch.Tensor]:
        return {name: self.store[p.ds_id].clone() for name, p in model.named_parameters()}

    def module(self) -> SimpleNamespace:
        """What `import deepspeed` gives."""
        zero = self

        class GatheredParameters:
            def __init__(self, params, modifier_rank=None, fwd_module=None, enabled=True) -> None:
                self.params, self.rank = list(params), modifier_rank

            def __enter__(self) -> None:
                zero.gathered.append([p.ds_id for p in self.params])
                zero.open += 1
                assert zero.open == 1, "one layer at a time"
                for p in self.params:
                    assert p.numel() == 0
                    p.data = zero.store[p.ds_id].clone()

            def __exit__(self, *_: object) -> None:
                zero.open -= 1
                for p in self.params:
                    if self.rank is not None:
                        zero.store[p.ds_id] = p.data
                    p.data = torch.empty(0, dtype=p.dtype)

        return SimpleNamespace(zero=SimpleNamespace(GatheredParameters=GatheredParameters))


@pytest.fixture
def zero():
    return Zero()


def init_(zero: Zero, model: nn.Module, *args, **options):
    """With deepspeed at hand; only now, since transformers looks for it when a model is built."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "deepspeed", zero.module())
        return kappaone.init_(model, *args, **options)


@pytest.mark.parametrize("build", [gpt2, llama])
@pytest.mark.parametrize("scheme", ["conditioned", "mimetic", "conditioned(scale=matched)", "conditioned(layers=last)"])
def test_the_weights_are_those_of_a_plain_model(zero, build, scheme):
    torch.manual_seed(0)
    plain = build()
    torch.manual_seed(0)
    model = zero.partition(build())
    expected = kappaone.init_(plain, scheme, seed=3)
    report = init_(zero, model, scheme, seed=3)
    ours = zero.whole(model)
    for name, parameter in plain.named_parameters():
        assert torch.equal(ours[name], parameter), name
    assert all(p.numel() == 0 for p in model.parameters())
    assert report.blocks_set == expected.blocks_set and report.scheme == expected.scheme
    for one, two in zip(report.layers, expected.layers, strict=True):
        for role, entry in two.roles.items():
            if entry.status == "set":
                assert one.roles[role].fingerprints == entry.fingerprints
                assert one.roles[role].norms_before == pytest.approx(entry.norms_before)
    assert any("one layer at a time" in remark for remark in report.remarks)
    assert len(zero.gathered) == len([layer for layer in expected.layers if layer.set_roles])


def test_without_deepspeed_it_is_refused_with_the_recipe(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    zero = Zero()
    model = zero.partition(gpt2())
    before = zero.whole(model)
    with pytest.raises(WriteError) as caught:
        kappaone.init_(model, "conditioned", seed=0)
    assert "'transformer.h.0.attn.c_attn.weight' is partitioned by ZeRO-3: (0,) of (48, 144) is here" in str(
        caught.value
    )
    assert "GatheredParameters" in caught.value.todo and "before deepspeed partitions" in caught.value.todo
    assert all(torch.equal(before[name], tensor) for name, tensor in zero.whole(model).items())


def test_a_failure_in_a_later_layer_puts_the_earlier_ones_back(zero):
    model = gpt2()
    model.transformer.h[2].attn.c_attn.weight.data.fill_(0.25)
    model.transformer.h[2].attn.c_attn.weight.data[0, 0] = 1  # no law: it seems loaded
    zero.partition(model)
    before = zero.whole(model)
    with pytest.raises(WriteError, match=r"transformer.h.2.attn.c_attn.weight.*seems to hold loaded"):
        init_(zero, model, "conditioned", seed=0)
    assert len(zero.gathered) > 3  # it had begun
    assert all(torch.equal(before[name], tensor) for name, tensor in zero.whole(model).items())


def test_what_runs_the_model_is_refused(zero):
    model = zero.partition(gpt2())
    for options in ({"example": torch.zeros(1, 2, dtype=torch.long)}, {}):
        scheme = "conditioned" if options else "unit_logits"
        with pytest.raises((SpecError, WriteError)):
            init_(zero, model, scheme, seed=0, **options)


def test_a_gathered_model_is_a_plain_one(zero):
    model, plain = zero.partition(gpt2()), gpt2()
    with zero.module().zero.GatheredParameters(list(model.parameters()), modifier_rank=0):
        kappaone.init_(model, "conditioned", seed=0)
    kappaone.init_(plain, "conditioned", seed=0)
    whole = zero.whole(model)
    assert torch.equal(whole["transformer.h.0.attn.c_attn.weight"], plain.transformer.h[0].attn.c_attn.weight)
