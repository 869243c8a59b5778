"""init_: the promises that no conformance row covers: wrappers, threads, names, refusals, loaded weights, goldens."""

import copy
import hashlib

import numpy as np
import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import LayoutError, MeasureError, SpecError, WriteError
from kappaone.layouts import AttentionLayout, RoleRows
from kappaone.layouts.blocks import parameters_by_name
from tests.conformance.rows import MODELS

CASES = {case.name: case for case in MODELS}
VIT = CASES["timm ViT"]


def weights(model):
    return {name: p.detach().clone() for name, p in parameters_by_name(model).items()}


def same(a, b):
    return set(a) == set(b) and all(torch.equal(a[name], b[name]) for name in a)


def test_done_when_of_the_first_issue():
    import timm

    model = timm.create_model("vit_base_patch16_224")
    report = kappaone.init_(model, "conditioned", seed=0)
    assert (len(report.layers), {layer.layout.heads for layer in report.layers}) == (12, {12})
    for block in model.blocks:
        heads = block.attn.qkv.weight.detach().double()[: 2 * 768].view(24, 64, 768)
        assert (heads @ heads.mT - torch.eye(64)).abs().max() < 1e-6
        assert torch.equal(block.attn.qkv.weight[1536:], torch.eye(768))
    assert "blocks.11.attn" in str(report)


@pytest.mark.parametrize("scheme", ["conditioned", "mimetic", "conditioned(qk=joint)", "default(redraw)"])
def test_same_bits_for_one_and_two_threads(scheme):
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model = VIT.model()
            kappaone.init_(model, scheme, seed=0)
            assert torch.get_num_threads() == count
            found.append(weights(model))
    finally:
        torch.set_num_threads(threads)
    assert same(*found)


def test_same_weights_for_compiled_and_ddp_models(tmp_path):
    plain, compiled, wrapped = (VIT.model() for _ in range(3))
    kappaone.init_(plain, "conditioned", seed=0)
    kappaone.init_(torch.compile(compiled), "conditioned", seed=0)
    assert same(weights(plain), weights(compiled))
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        ddp = nn.parallel.DistributedDataParallel(wrapped)
        report = kappaone.init_(ddp, "conditioned", seed=0)
        assert same(weights(plain), weights(wrapped))
        assert report.layers[0].layout.name == "blocks.0.attn"
        assert kappaone.check(ddp) and kappaone.check(wrapped)
    finally:
        torch.distributed.destroy_process_group()


def test_a_submodule_named_like_a_wrapper_keeps_its_name():
    model = nn.ModuleDict({"module": nn.TransformerEncoderLayer(16, 4)})
    assert kappaone.find_attention(model)[0].name == "module.self_attn"


def test_order_of_parameters_does_not_matter():
    model, other = VIT.model(), VIT.model()
    other.blocks = nn.Sequential(*list(other.blocks)[::-1])
    kappaone.init_(model, "conditioned", seed=0)
    kappaone.init_(other, "conditioned", seed=0)
    assert torch.equal(model.blocks[0].attn.qkv.weight, other.blocks[0].attn.qkv.weight)


def test_prefix_aligns_a_part_with_the_whole():
    whole = nn.ModuleDict({"encoder": VIT.model()})
    part = VIT.model()
    kappaone.init_(whole, "conditioned", seed=0)
    kappaone.init_(part, "conditioned", seed=0, prefix="encoder")
    assert same(weights(whole["encoder"]), weights(part))


def test_golden_blocks():
    """Bits are equal on one machine type and within an ulp across types: the golden hash is of 6 decimals."""
    model = VIT.model()
    found = {}
    for scheme in ("conditioned", "conditioned(qk=joint)", "trunc_normal", "fan_in", "xavier_fused", "orthogonal"):
        kappaone.init_(model, scheme, seed=0, overwrite=True)
        values = np.round(model.blocks[0].attn.qkv.weight.detach().double().numpy(), 6) + 0.0
        found[scheme] = hashlib.sha256(values.astype("<f8").tobytes()).hexdigest()[:12]
    assert found == {
        "conditioned": "6d7cfb29b349",
        "conditioned(qk=joint)": "6c9743962483",
        "trunc_normal": "dd3a048f6203",
        "fan_in": "0e731c7c6bec",
        "xavier_fused": "94dae584287f",
        "orthogonal": "b349815d6d05",
    }


def test_a_model_without_attention():
    with pytest.raises(LayoutError, match="no attention was found among 1 modules"):
        kappaone.init_(nn.Linear(3, 3), "conditioned", seed=0)


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        return self.to_o(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.known, self.unknown = nn.TransformerEncoderLayer(16, 4, batch_first=True), Odd()

    def forward(self, x):
        return self.unknown(self.known(x))


def test_unknown_attention_is_refused_by_name_with_a_spec_to_fill_in():
    with pytest.raises(LayoutError) as caught:
        kappaone.init_(Mixed(), "conditioned", seed=0)
    text = str(caught.value)
    assert "unknown (Odd; has to_q and to_k): to_q.weight (16, 16)" in text
    assert "AttentionSpec(match='unknown', heads=?" in text


def test_skipping_sets_the_rest_and_reports_it():
    model = Mixed()
    before = weights(model.unknown)
    report = kappaone.init_(model, "conditioned", seed=0, on_refused="skip")
    assert same(before, weights(model.unknown))
    assert report.blocks_set == 12
    assert "unknown (Odd" in report.refused[0]
    assert "refused: unknown" in str(report)
    with pytest.raises(LayoutError, match="nobody described"):
        kappaone.init_(Odd(), "conditioned", seed=0, on_refused="skip")


def test_a_spec_or_a_declaration_makes_it_known():
    spec = kappaone.AttentionSpec(match="unknown", heads=4, q="to_q", k="to_k", v="to_v", o="to_o")
    model, x = Mixed(), torch.randn(2, 5, 16)
    report = kappaone.init_(model, "mimetic", seed=0, layouts=[spec], example=x, verify=True)
    assert [layer.layout.source for layer in report.layers] == ["torch.mha", "spec"]
    declared = Mixed()
    declared.unknown.kappaone_attention = spec
    assert kappaone.find_attention(declared)[1].source == "declaration"


def test_verify_catches_a_wrong_spec_before_anything_is_written():
    wrong = kappaone.AttentionSpec(match="unknown", heads=4, q="to_k", k="to_q", v="to_v", o="to_o")
    model, x = Mixed(), torch.randn(2, 5, 16)
    before = weights(model)
    with pytest.raises(LayoutError, match="the layout says q of heads"):
        kappaone.init_(model, "conditioned", seed=0, layouts=[wrong], example=x, verify=True)
    assert same(before, weights(model))
    with pytest.raises(SpecError, match="needs an input"):
        kappaone.init_(model, "conditioned", seed=0, layouts=[wrong], verify=True)


def test_attention_is_noticed_by_its_calls():
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.alpha, self.beta = nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            a, b, c = self.alpha(x).chunk(3, -1)
            return self.beta(torch.softmax(a @ b.mT, -1) @ c)

    with pytest.raises(LayoutError, match="no attention was found"):
        kappaone.init_(Hidden(), "conditioned", seed=0)
    with pytest.raises(LayoutError, match=r"Hidden; calls softmax\): alpha.weight \(24, 8\)"):
        kappaone.init_(Hidden(), "conditioned", seed=0, example=torch.randn(2, 4, 8))


def test_from_pretrained_weights_are_kept(tmp_path):
    """layouts.md D4 and issue 3.8 in small: what a checkpoint brought is only replaced with overwrite=True."""
    import transformers

    case = CASES["GPT-2"]
    case.model().save_pretrained(tmp_path)
    model = transformers.GPT2LMHeadModel.from_pretrained(tmp_path)
    with pytest.raises(WriteError, match="loaded from a checkpoint"):
        kappaone.init_(model, "conditioned", seed=0)
    assert kappaone.init_(model, "conditioned", seed=0, overwrite=True).blocks_set == 24
    kappaone.init_(model, "fan_in", seed=0)  # it is our own now


def test_trained_weights_are_kept():
    model = VIT.model()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.pow_(3).mul_(900)
    with pytest.raises(WriteError, match="follows none of the library's init laws"):
        kappaone.init_(model, "conditioned", seed=0)
    assert kappaone.init_(model, "conditioned", seed=0, overwrite=True).blocks_set == 24
    assert kappaone.init_(model, "trunc_normal", seed=0).blocks_set == 24
    model.blocks[0].attn.qkv.weight.data.pow_(3)
    with pytest.raises(WriteError, match=r"blocks\.0"):
        kappaone.init_(model, "conditioned", seed=0)


def test_biases_of_what_is_set_are_zeroed_where_the_library_zeroes_them():
    model = VIT.model()
    model.blocks[0].attn.qkv.bias.data.fill_(0.5)
    report = kappaone.init_(model, "conditioned(parts=qk)", seed=0)
    bias = model.blocks[0].attn.qkv.bias
    assert not bias[:64].any() and (bias[64:] == 0.5).all()
    assert report.layers[0].roles["q"].bias == "zeroed"


def test_shared_and_tied_weights():
    layer = nn.TransformerEncoderLayer(16, 4, batch_first=True)
    shared = nn.Sequential(layer, layer)
    assert len(kappaone.init_(shared, "conditioned", seed=0).layers) == 1
    tied = nn.Sequential(nn.TransformerEncoderLayer(16, 4), nn.TransformerEncoderLayer(16, 4))
    tied[1].self_attn.in_proj_weight = tied[0].self_attn.in_proj_weight
    report = kappaone.init_(tied, "conditioned", seed=0)
    assert tied[1].self_attn.in_proj_weight is tied[0].self_attn.in_proj_weight
    assert [layer.roles["q"].status for layer in report.layers] == ["set", "tied"]
    assert kappaone.check(tied)
    foreign = nn.ModuleDict({"a": nn.TransformerEncoderLayer(16, 4), "b": nn.Linear(16, 48)})
    foreign["b"].weight = foreign["a"].self_attn.in_proj_weight
    with pytest.raises(WriteError, match="tied to 'b.weight', which is not attention"):
        kappaone.init_(foreign, "conditioned", seed=0)


def test_what_cannot_be_written_is_refused_with_what_to_do():
    with torch.device("meta"):
        meta = nn.TransformerEncoderLayer(16, 4)
    with pytest.raises(WriteError, match="to_empty"):
        kappaone.init_(meta, "conditioned", seed=0)
    with torch.inference_mode():
        frozen = nn.TransformerEncoderLayer(16, 4)
    with pytest.raises(WriteError, match="inference_mode"):
        kappaone.init_(frozen, "conditioned", seed=0)
    vit = VIT.model()
    nn.utils.parametrizations.orthogonal(vit.blocks[0].attn.qkv)
    with pytest.raises(WriteError, match="parametrized"):
        kappaone.init_(vit, "conditioned", seed=0, overwrite=True)


def test_quantised_weights_are_refused():
    vit = VIT.model()
    qkv = vit.blocks[0].attn.qkv
    qkv.weight = nn.Parameter(qkv.weight.detach().to(torch.int8), requires_grad=False)
    with pytest.raises(WriteError, match="quantised"):
        kappaone.init_(vit, "conditioned", seed=0)


def test_scale_logit_sets_the_spread_of_every_layer():
    from kappaone.apply.logits import centred_logit_std
    from kappaone.layouts.capture import record

    for name in ("timm ViT", "GPT-2", "BERT", "Llama, grouped kv"):
        model, example = CASES[name].model(), CASES[name].input()
        report = kappaone.init_(model, "fan_in(scale=logit(0.7))", seed=0, example=example)
        calls = record(model, [layer.layout for layer in report.layers], example)
        assert [centred_logit_std(call) for call in calls.values()] == pytest.approx([0.7] * 2, rel=2e-3), name
        assert all(layer.gain for layer in report.layers)
        assert kappaone.check(model)
    with pytest.raises(SpecError, match="measured on an input"):
        kappaone.init_(VIT.model(), "fan_in(scale=logit(0.7))", seed=0)


def test_matched_norms_by_head_and_by_role():
    for scheme in ("conditioned(scale=matched)", "conditioned(scale=matched(group=role))"):
        report = kappaone.init_(VIT.model(), scheme, seed=0)
        entry = report.layers[0].roles["q"]
        if "role" in scheme:
            assert np.linalg.norm(entry.norms_after) == pytest.approx(np.linalg.norm(entry.norms_before), rel=1e-5)
        else:
            assert entry.norms_after == pytest.approx(entry.norms_before, rel=1e-5)
    report = kappaone.init_(VIT.model(), "default(scale=conditioned)", seed=0)
    assert report.layers[0].roles["v"].norms_after == pytest.approx([8**0.5] * 4, rel=1e-5)


def test_report_numbers_against_plain_formulas():
    model = VIT.model()
    report = kappaone.init_(model, "trunc_normal", seed=0).measure()
    layer = report.layers[1]
    W = model.blocks[1].attn.qkv.weight.detach().double().numpy()
    q, k = W[:8], W[32:40]
    assert layer.roles["q"].kappa_heads[0].condition_number == pytest.approx(np.linalg.cond(q))
    assert layer.roles["k"].kappa_role.condition_number == pytest.approx(np.linalg.cond(W[32:64]), rel=1e-6)
    assert layer.kappa_fused.condition_number == pytest.approx(np.linalg.cond(W), rel=1e-6)
    assert layer.logit_std[0] == pytest.approx(8**-0.5 * np.linalg.norm(q.T @ k))
    x, y = np.random.default_rng(0).standard_normal((2, 200_000, 32))
    assert layer.logit_std[0] == pytest.approx(np.std(8**-0.5 * np.einsum("ni,ni->n", x @ q.T, y @ k.T)), rel=0.02)
    assert '"schema": 1' in report.to_json()


def test_report_is_not_measured_on_other_weights():
    model = VIT.model()
    report = kappaone.init_(model, "conditioned", seed=0)
    model.blocks[0].attn.qkv.weight.data[0, 0] += 1
    with pytest.raises(MeasureError, match="have changed since"):
        report.measure()
    assert "are not shown" in str(report)
    assert not kappaone.check(model)
    del model
    with pytest.raises(MeasureError, match="gone"):
        report.measure()


def test_check_needs_a_report_and_takes_one():
    model = VIT.model()
    report = kappaone.init_(model, "conditioned", seed=0)
    twin = copy.deepcopy(model)
    with pytest.raises(LayoutError, match="nothing to compare"):
        kappaone.check(twin)
    assert kappaone.check(twin, report)
    twin.blocks[1].attn.qkv.weight.data[[0, 1]] = twin.blocks[1].attn.qkv.weight.data[[1, 0]]
    result = kappaone.check(twin, report)
    assert result.changed == ("blocks.1.attn.qkv.weight, role q, head 0",)


def test_facts_that_make_an_option_idle_are_said():
    report = kappaone.init_(CASES["timm ViT, QK norm"].model(), "conditioned", seed=0)
    assert any("has no effect in" in remark for remark in report.remarks)
    with pytest.raises(WriteError, match="normalizes q and k"):
        kappaone.init_(CASES["timm ViT, QK norm"].model(), "fan_in(scale=logit(1))", seed=0, example=VIT.input())
    grouped = kappaone.init_(CASES["Llama, grouped kv"].model(), "conditioned", seed=0)
    assert any("first 16 of 32 coordinates" in remark for remark in grouped.remarks)


def test_matched_is_not_matched_to_what_kappaone_itself_wrote():
    """A second arm on the same model would silently get the first arm's norms as its control."""
    model = VIT.model()
    kappaone.init_(model, "conditioned", seed=0)
    with pytest.raises(WriteError, match="holds what kappaone wrote before"):
        kappaone.init_(model, "conditioned(scale=matched)", seed=0)
    assert kappaone.init_(model, "conditioned(scale=matched)", seed=0, overwrite=True).blocks_set == 24


def test_layers_in_one_bank_of_weights_are_drawn_apart():
    class Banks(nn.Module):
        def __init__(self):
            super().__init__()
            self.bank = nn.Parameter(torch.randn(2, 24, 8))
            self.layers = nn.ModuleList(nn.Identity() for _ in range(2))

    def rows(layer, role):
        return RoleRows("bank", (24 * layer + 8 * role, 24 * layer + 8 * role + 4), 4, 8, axes=2)

    model = Banks()
    layouts = [AttentionLayout(f"layers.{i}", "Identity", "mine", *(rows(i, r) for r in range(3))) for i in range(2)]
    report = kappaone.init_(model, "orthogonal", seed=0, layouts=layouts)
    assert report.blocks_set == 12
    assert not torch.equal(model.bank[0], model.bank[1])
    for layer in range(2):
        for role in range(3):
            W = model.bank[layer, 8 * role : 8 * role + 8]
            assert torch.allclose(W @ W.T, torch.eye(8), atol=1e-5)


def test_hybrids_are_set_block_by_block_and_say_what_was_left():
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(
        "qwen3_next", vocab_size=64, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, intermediate_size=48, num_experts=4, moe_intermediate_size=16, shared_expert_intermediate_size=16,
        linear_num_value_heads=4, linear_num_key_heads=2, linear_key_head_dim=8, linear_value_head_dim=8,
    )  # fmt: skip
    model = transformers.AutoModel.from_config(config)
    report = kappaone.init_(model, "conditioned", seed=0)
    assert [layer.layout.name for layer in report.layers] == ["layers.3.self_attn"]
    assert report.blocks_set == 4 + 2 + 2
    assert any("left alone" in remark and "layers.0.linear_attn" in remark for remark in report.remarks)
