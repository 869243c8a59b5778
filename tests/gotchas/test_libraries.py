"""Known ways in which initialization goes wrong: transformers' flags and loading, layouts, special weights."""

from __future__ import annotations

import copy
import sys

import pytest
import torch
import transformers
from torch import nn

import kappaone
from kappaone.errors import LayoutError, SpecError, WriteError
from tests.apply.test_flags import InPlace, Kept
from tests.apply.test_materialize import Mixed, bert, encoder, gpt2, llama, timm_vit
from tests.apply.test_notes import FUSED, Twice, remarks
from tests.apply.test_zero3 import Zero


def test_D03_loading_into_a_model_whose_init_weights_writes_in_place(tmp_path):
    """transformers#46620: such a subclass gets random weights from from_pretrained, and nobody says so."""
    model = Kept(bert().config)
    report = kappaone.init_(model, "conditioned", seed=0, overwrite=True)
    model.save_pretrained(tmp_path)
    assert kappaone.check(Kept.from_pretrained(tmp_path), report)  # with the helper
    plain = InPlace.from_pretrained(tmp_path)
    plain.apply(plain._init_weights)
    assert not kappaone.check(plain, report)  # without it, the check after loading says so


def test_D04_init_weights_again_after_loading_keeps_what_was_set(tmp_path):
    model = llama()
    report = kappaone.init_(model, "conditioned", seed=0)
    model.save_pretrained(tmp_path / "one")
    again = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "one")
    again.init_weights()
    again.save_pretrained(tmp_path / "two")
    assert kappaone.check(transformers.LlamaForCausalLM.from_pretrained(tmp_path / "two"), report)


class Custom(transformers.BertPreTrainedModel):
    """Sets its attention within its constructor, before post_init."""

    def __init__(self, config):
        super().__init__(config)
        self.bert = transformers.BertModel(config)
        self.report = kappaone.init_(self, "conditioned", seed=0)
        self.post_init()


def test_D05_post_init_does_not_overwrite():
    model = Custom(bert().config)
    assert kappaone.check(model, model.report)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    kappaone.init_(model, "conditioned", seed=0)  # and the same call again changes nothing
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_D06_every_rule_says_what_it_matched_and_none_is_an_error():
    model = gpt2()
    report = kappaone.init_(model, "conditioned(layers=last)", seed=0)
    assert [layer.set_roles for layer in report.layers] == ["", "", "qkv"] and report.layers[0].why_left
    assert report.layers[2].roles["q"].parameter == "transformer.h.2.attn.c_attn.weight"
    with pytest.raises(LayoutError, match="matches none of the model's"):
        kappaone.init_(gpt2(), seed=0, layouts=[kappaone.AttentionSpec(match="h.*.attention", heads=4, fused="c_attn")])
    with pytest.raises(SpecError, match="the model has 3 attention layers"):
        kappaone.init_(gpt2(), "conditioned(layers=7)", seed=0)


def test_D07_models_within_models_are_all_set():
    model = Mixed()
    report = kappaone.init_(model, "conditioned", seed=0)
    assert {layer.layout.name.partition(".")[0] for layer in report.layers} == {"image", "text"}
    assert all(layer.set_roles == "qkv" for layer in report.layers)


def test_D08_nothing_but_attention_is_touched():
    model = gpt2()
    report = kappaone.init_(model, "conditioned", seed=0)
    model.resize_token_embeddings(120)
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    kappaone.init_(model, "conditioned", seed=1)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, kept[name])}
    assert changed == {
        entry.parameter for layer in report.layers for entry in layer.roles.values() if entry.status == "set"
    }


def test_D09_partitioned_parameters_are_never_a_silent_no_op(monkeypatch):
    model = Zero().partition(gpt2())
    nn.init.orthogonal_(model.transformer.h[0].attn.c_attn.weight.data.view(0, 0))  # torch's: returns, nothing done
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    with pytest.raises(WriteError, match="partitioned by ZeRO-3"):
        kappaone.init_(model, "conditioned", seed=0)


def test_D15_the_report_says_who_set_what():
    model = nn.TransformerEncoderLayer(16, 4)
    report = kappaone.init_(model, "conditioned", seed=0)
    (layer,) = report.layers
    assert layer.layout.o.parameter == "self_attn.out_proj.weight" and layer.set_roles == "qkv"  # o is as torch left it
    with torch.device("meta"):
        meta = nn.TransformerEncoderLayer(16, 4)
    set_by = kappaone.materialize_(meta, "cpu", seed=0).set_by
    assert set_by["self_attn.in_proj_weight"] == "kappaone conditioned"
    assert set_by["self_attn.out_proj.weight"] == "reset_parameters of its own module"


def test_D16_layers_that_are_copies_are_noticed_and_no_longer_are():
    model = encoder()
    report = kappaone.init_(model, "conditioned", seed=0)
    assert "held identical weights" in remarks(report)
    first, second = (layer.self_attn.in_proj_weight for layer in model.layers)
    assert not torch.equal(first[:96], second[:96])


def test_D27_a_parametrized_weight_is_set_or_refused_and_never_passed_by():
    model = timm_vit()
    layer = nn.utils.parametrizations.weight_norm(model.blocks[0].attn.qkv)
    old = layer.weight.detach().clone()
    nn.init.orthogonal_(layer.weight)  # torch's: nothing has happened
    assert torch.equal(layer.weight, old)
    kappaone.init_(model, "conditioned", seed=0)
    rows = layer.weight[:12].detach()
    assert torch.allclose(rows @ rows.T, torch.eye(12), atol=1e-5)
    other = timm_vit()
    nn.utils.parametrizations.spectral_norm(other.blocks[0].attn.qkv)
    with pytest.raises(WriteError, match="_SpectralNorm"):
        kappaone.init_(other, "conditioned(scale=2)", seed=0, overwrite=True)


def test_D28_lazy_modules_say_run_one_forward_pass():
    model = timm_vit()
    model.blocks[0].attn.qkv = nn.LazyLinear(144)
    with pytest.raises(LayoutError, match=r"'blocks.0.attn.qkv.weight' has no shape yet .*\n.*run one forward pass"):
        kappaone.init_(model, "conditioned", seed=0)


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
def test_D30_quantised_weights_are_refused_clearly(dtype):
    model = timm_vit()
    qkv = model.blocks[0].attn.qkv
    qkv.weight = nn.Parameter(qkv.weight.detach().to(dtype), requires_grad=False)
    with pytest.raises(WriteError, match="blocks.0.attn.qkv.weight.*quantised"):
        kappaone.init_(model, "conditioned", seed=0)


def test_D31_adapters_are_never_touched_and_their_base_is():
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(llama(), peft.LoraConfig(target_modules=["q_proj"], r=2))
    before = {name: p.detach().clone() for name, p in model.named_parameters() if "lora_" in name}
    report = kappaone.init_(model, "conditioned", seed=0)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters() if name in before)
    assert "attach them after kappaone.init_" in remarks(report)
    assert report.layers[0].roles["q"].parameter.endswith("q_proj.base_layer.weight")
    plain = llama()
    kappaone.init_(plain, "conditioned", seed=0)
    W_Q = plain.get_submodule(report.layers[0].layout.module.removeprefix("base_model.model.")).q_proj.weight
    assert torch.equal(model.get_submodule(report.layers[0].layout.module).q_proj.base_layer.weight, W_Q)


def test_D33_a_module_that_all_layers_share_is_set_once():
    config = transformers.AlbertConfig(
        vocab_size=97,
        embedding_size=16,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=12,
        num_attention_heads=4,
    )
    report = kappaone.init_(transformers.AlbertModel(config), seed=0, example={"input_ids": torch.arange(8)[None]})
    assert report.blocks_set == 12 and "is shared by 12 layers" in remarks(report)


def test_D34_grouped_and_fused_projections_are_found():
    grouped, fused = llama(), gpt2()
    assert {(item.heads, item.kv_heads) for item in kappaone.find_attention(grouped)} == {(4, 2)}
    assert all(item.fused() and item.q.transposed for item in kappaone.find_attention(fused))


def test_D35_an_empty_result_is_an_error_that_lists_what_was_seen():
    with pytest.raises(LayoutError, match=r"no attention was found among 3 modules \(Linear, ReLU, Sequential\)"):
        kappaone.init_(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), seed=0)


def test_D37_another_order_of_the_rows_is_contradicted_by_the_probe():
    """metaseq stores K, V, Q; a spec that says Q, K, V has the right shapes."""

    class Metaseq(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kvq, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

        def forward(self, x):
            k, v, q = self.kvq(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            return self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))

    model, example = Metaseq(), torch.randn(2, 6, 16)
    wrong, right = (
        kappaone.AttentionSpec(match="", heads=4, fused="kvq", order=o, o="out") for o in ("q k v", "k v q")
    )
    with pytest.raises(LayoutError):
        kappaone.init_(model, seed=0, layouts=[wrong], example=example, verify=True)
    assert kappaone.init_(model, seed=0, layouts=[right], example=example, verify=True).blocks_set == 12


def test_D45_copies_made_before_keep_their_own_weights():
    """Nothing is tracked: averages and master copies that were made before the call are as they were."""
    model = timm_vit()
    average = torch.optim.swa_utils.AveragedModel(model)
    old = {name: p.detach().clone() for name, p in average.named_parameters()}
    kappaone.init_(model, "conditioned", seed=0)
    assert all(torch.equal(p, old[name]) for name, p in average.named_parameters())
    fresh = copy.deepcopy(model)
    assert torch.equal(fresh.blocks[0].attn.qkv.weight, model.blocks[0].attn.qkv.weight)


def test_D46_fused_copies_are_both_set():
    model = Twice()
    model.fuse()
    report = kappaone.init_(model, "conditioned", seed=0, layouts=[FUSED], overwrite=True)
    assert torch.equal(model.to_qkv.weight, torch.cat([model.to_q.weight, model.to_k.weight, model.to_v.weight]))
    assert "both are set" in remarks(report)


def test_D47_a_scale_without_effect_is_said():
    model = timm_vit(qk_norm=True)
    report = kappaone.init_(model, "conditioned(scale=2)", seed=0)
    assert report.layers[0].layout.facts["qk_norm"]
    assert "the scale of W_Q and W_K, so scale= too, has no effect in 2 layers" in remarks(report)


def test_D48_an_output_projection_of_zeros_hides_nothing():
    model = timm_vit()
    for block in model.blocks:
        nn.init.zeros_(block.attn.proj.weight)
    report = kappaone.init_(model, "conditioned", seed=0)
    assert report.layers[0].set_roles == "qkv"
    result = kappaone.inspect(model, torch.randn(1, 3, 32, 32))
    assert result.to_dict()["layers"]  # measured before W_O
