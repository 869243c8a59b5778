"""Remarks about shared, copied and adapted weights; fused copies are set with their originals."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

import kappaone
from kappaone.errors import WriteError
from tests.apply.test_materialize import encoder, llama
from tests.layouts.test_special_weights import Tuner


def remarks(report: kappaone.InitReport) -> str:
    return "\n".join(report.remarks)


def test_layers_that_are_copies_of_one_are_noticed_and_differ_afterwards():
    model = encoder()
    first, second = (layer.self_attn.in_proj_weight for layer in model.layers)
    assert torch.equal(first, second)
    report = kappaone.init_(model, "conditioned", seed=0)
    assert "2 layers held identical weights, copies of one another (layers.0.self_attn, layers.1.self_attn)" in remarks(
        report
    )
    assert not torch.equal(first[:48], second[:48])
    assert "identical" not in remarks(kappaone.init_(encoder(), "conditioned(layers=first)", seed=0))


def test_albert_is_set_once_and_says_by_how_many_layers_it_is_shared():
    config = transformers.AlbertConfig(
        vocab_size=97,
        embedding_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=5,
        num_attention_heads=4,
    )
    model = transformers.AlbertModel(config)
    example = {"input_ids": torch.arange(8)[None]}
    (layer,) = kappaone.find_attention(model, example)
    assert layer.facts["shared"] == 5
    report = kappaone.init_(model, "conditioned", seed=0, example=example)
    assert report.blocks_set == 12 and "is shared by 5 layers: it is set once" in remarks(report)


def test_adapters_are_left_alone_and_the_base_is_set():
    model, plain = llama(), llama()
    for layer in model.model.layers:
        layer.self_attn.q_proj = Tuner(layer.self_attn.q_proj)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if "lora" in name}
    report = kappaone.init_(model, "conditioned", seed=0)
    assert "adapters are attached at 2 projections" in remarks(report) and "PiSSA" in remarks(report)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
    kappaone.init_(plain, "conditioned", seed=0)
    ours, theirs = model.model.layers[1].self_attn, plain.model.layers[1].self_attn
    assert torch.equal(ours.k_proj.weight, theirs.k_proj.weight)
    rows = ours.q_proj.base_layer.weight[:12].detach()
    assert torch.allclose(rows @ rows.T, torch.eye(12), atol=1e-5)


def test_peft_itself():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=2))
    before = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" in name}
    report = kappaone.init_(model, "conditioned", seed=0)
    assert report.blocks_set == 16 and "adapters are attached at 4 projections" in remarks(report)
    assert {entry.parameter.split(".")[-2] for layer in report.layers for entry in layer.roles.values()} == {
        "base_layer",
        "k_proj",
    }
    assert before and all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
    assert kappaone.check(model)


class Twice(nn.Module):
    """As diffusers' attention after `fuse_projections`: both forms, and a flag that says which runs."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.fused_projections = heads, False
        self.to_q, self.to_k, self.to_v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def fuse(self) -> None:
        weight = torch.cat([self.to_q.weight, self.to_k.weight, self.to_v.weight]).detach()
        self.to_qkv = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.to_qkv.weight.data.copy_(weight)
        self.fused_projections = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.to_qkv(x).chunk(3, -1) if self.fused_projections else (self.to_q(x), self.to_k(x), self.to_v(x))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        out = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return self.to_out[0](out)


APART = kappaone.AttentionSpec(match="", heads=4, q="to_q", k="to_k", v="to_v")
FUSED = kappaone.AttentionSpec(match="", heads=4, fused="to_qkv", order="q k v")


@pytest.mark.parametrize("spec", [APART, FUSED], ids=["apart", "fused"])
def test_both_forms_of_a_fused_layer_are_set(spec):
    model = Twice()
    model.fuse()
    report = kappaone.init_(model, "conditioned", seed=0, layouts=[spec], overwrite=True)
    assert "hold their projections twice" in remarks(report)
    together = torch.cat([model.to_q.weight, model.to_k.weight, model.to_v.weight])
    assert torch.equal(model.to_qkv.weight, together)
    rows = model.to_q.weight[:4].detach()
    assert torch.allclose(rows @ rows.T, torch.eye(4), atol=1e-5)


def test_a_stale_form_is_refused_where_the_other_one_runs():
    model = Twice()
    model.fuse()
    with torch.no_grad():
        model.to_qkv.weight.add_(0.1)  # trained on since
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with pytest.raises(
        WriteError, match=r"holds its projections twice and says fused_projections=True, but its layout names 'to_q"
    ):
        kappaone.init_(model, "conditioned", seed=0, layouts=[APART], overwrite=True)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    report = kappaone.init_(model, "conditioned", seed=0, layouts=[FUSED], overwrite=True)
    assert report.blocks_set == 12 and torch.equal(model.to_q.weight, before["to_q.weight"])


def test_an_interrupt_puts_copies_back_too(monkeypatch):
    from kappaone.apply import special

    model = Twice()
    model.fuse()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    original = special.copies.set_copies

    def late(*args):
        original(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(special.copies, "set_copies", late)
    with pytest.raises(KeyboardInterrupt):
        kappaone.init_(model, "conditioned", seed=0, layouts=[APART], overwrite=True)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
