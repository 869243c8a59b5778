import json
import math
import random
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from kappaone.conditioning import ConditioningReport, inspect
from kappaone.errors import LayoutError, MeasureError
from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.capture import record

from .oracles import EPS, F64, causal_mask, jacrev_jacobian

timm = pytest.importorskip("timm")
transformers = pytest.importorskip("transformers")


def vit(**options):
    torch.manual_seed(0)
    kind = timm.models.vision_transformer.VisionTransformer
    return kind(img_size=24, patch_size=8, num_classes=10, embed_dim=48, num_heads=3, depth=2, **options)


def gpt2(implementation="sdpa"):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_embd=24, n_layer=2, n_head=3, vocab_size=50, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    config._attn_implementation = implementation
    return transformers.GPT2Model(config)


def bert(implementation="sdpa"):
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=24, num_hidden_layers=2, num_attention_heads=3, vocab_size=50, intermediate_size=32
    )
    config._attn_implementation = implementation
    return transformers.BertModel(config)


def tokens_of(model, name, example):
    """What the module of this name is given, by a plain hook."""
    seen = []
    module = model.get_submodule(name)

    def hook(_module, args, kwargs):
        seen.append(next(t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor) and t.ndim == 3))

    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    model.eval()
    with torch.no_grad():
        model(**example) if isinstance(example, dict) else model(example)
    handle.remove()
    return seen[0].double()


def check_head(head, X, weights, biases, mask=None):
    """One head against plain double-precision mathematics from the model's own weights."""
    d = len(weights[0])
    weights = [w.detach().double() for w in weights]
    biases = [b.detach().double() for b in biases]
    q, k = (X @ w.T + b for w, b in zip(weights[:2], biases[:2], strict=True))
    logits = q @ k.T / math.sqrt(d) + (0.0 if mask is None else mask)
    P = torch.softmax(logits, dim=1)
    J = jacrev_jacobian(X, X, *weights, biases=biases, scale=d**-0.5, mask=mask)
    kappa = float(torch.linalg.cond(J))
    assert head.jacobian.status == "ok"
    assert head.jacobian.condition_number == pytest.approx(kappa, rel=max(1e-9, 1000 * EPS * kappa))
    kappa_P = float(torch.linalg.cond(P))
    assert head.probabilities.condition_number == pytest.approx(kappa_P, rel=max(1e-9, 1000 * EPS * kappa_P))
    values = torch.linalg.svdvals(X)
    assert head.kappa_X == pytest.approx(float(values[0] / values[head.rank_X - 1]), rel=1e-9)
    assert head.activity.attention_entropy == pytest.approx(float(torch.special.entr(P).sum(1).mean()), rel=1e-9)


@pytest.mark.parametrize("fused", [False, True])
def test_timm_vit(fused):
    model = vit(qkv_bias=True)
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = fused
    image = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    layers = find_attention(model)[1:]
    report = inspect(model, image, layouts=layers, sample=1)
    assert [layer.name for layer in report.layers] == ["blocks.1.attn"]
    X = tokens_of(model, "blocks.1.attn", image)[1]
    W, b = model.blocks[1].attn.qkv.weight, model.blocks[1].attn.qkv.bias
    head = report.layers[0].heads[2]
    assert head.jacobian.rows == 10 * 16
    rows = [slice(48 * i + 32, 48 * i + 48) for i in range(3)]
    check_head(head, X, [W[r] for r in rows], [b[r] for r in rows])
    assert head.bound.value == math.inf
    assert "blocks.1.attn" in str(report)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_gpt2(implementation):
    model = gpt2(implementation)
    example = {"input_ids": torch.arange(7)[None] * 3}
    report = inspect(model, example)
    X = tokens_of(model, "h.0.attn", example)[0]
    attention = model.h[0].attn.c_attn
    for head in (0, 2):
        rows = [slice(24 * i + 8 * head, 24 * i + 8 * head + 8) for i in range(3)]
        weights, biases = [attention.weight.T[r] for r in rows], [attention.bias[r] for r in rows]
        check_head(report.layers[0].heads[head], X, weights, biases, causal_mask(7))
    assert len(report.layers) == 2


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_bert_with_padding(implementation):
    """Padding tokens are left out as keys and as queries, and the report says so."""
    model = bert(implementation)
    mask = torch.tensor([[1] * 8, [1] * 5 + [0] * 3])
    example = {"input_ids": torch.arange(16).reshape(2, 8), "attention_mask": mask}
    report = inspect(model, example, sample=1)
    X = tokens_of(model, "encoder.layer.1.attention.self", example)[1, :5]
    attention = model.encoder.layer[1].attention.self
    parts = [attention.query, attention.key, attention.value]
    check_head(report.layers[1].heads[1], X, [p.weight[8:16] for p in parts], [p.bias[8:16] for p in parts])
    assert "3 of 8 tokens are masked for every query" in str(report)


def test_grouped_heads_use_their_own_key_head():
    class Grouped(nn.Module):
        kappaone_attention = AttentionSpec(heads=4, kv_heads=2, q="wq", k="wk", v="wv", o="wo")

        def __init__(self):
            super().__init__()
            self.wq, self.wk, self.wv = nn.Linear(12, 12), nn.Linear(12, 6), nn.Linear(12, 6)
            self.wo = nn.Linear(12, 12)

        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (-1, 3)).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
            k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
            out = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.wo(out.transpose(1, 2).flatten(2))

    torch.manual_seed(0)
    model = Grouped()
    x = torch.randn(1, 5, 12)
    heads = inspect(model, x).layers[0].heads
    assert [head.kv_head for head in heads] == [0, 0, 1, 1]
    rows = slice(3, 6)  # query head 1 reads key head 0, query head 2 key head 1
    for head, kv in ((1, slice(0, 3)), (2, slice(3, 6))):
        rows = slice(3 * head, 3 * head + 3)
        parts = [(model.wq, rows), (model.wk, kv), (model.wv, kv)]
        check_head(heads[head], x[0].double(), [p.weight[r] for p, r in parts], [p.bias[r] for p, r in parts])


def test_torch_encoder_and_cross_attention():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 2, kdim=10, vdim=10, batch_first=True)
    memory = torch.randn(1, 6, 10)
    report = inspect(layer, {"query": torch.randn(1, 4, 12), "key": memory, "value": memory})
    assert report.layers[0].heads[0].jacobian.columns == 6 * 12 + 6 * 10 + 6 * 10
    assert report.layers[0].heads[0].jacobian.status == "ok"
    report = inspect(nn.TransformerEncoderLayer(12, 2, 16, batch_first=True), torch.randn(1, 5, 12))
    assert report.layers[0].heads[1].jacobian.status == "ok"


def test_rotary_is_not_supported_and_says_why():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
        intermediate_size=32, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    report = inspect(transformers.LlamaModel(config), {"input_ids": torch.arange(6)[None]})
    head = report.layers[0].heads[3]
    assert head.kv_head == 1
    assert head.jacobian.status == "not_supported"
    assert "rotary" in head.jacobian.note
    assert math.isnan(head.jacobian.condition_number)
    assert head.bound is None
    assert head.probabilities.status == "ok"


def test_a_transformation_that_no_fact_mentions_is_noticed():
    """Queries pass a normalization between the weights and the softmax: a wrong kappa must not be reported."""

    class Hidden(nn.Module):
        kappaone_attention = AttentionSpec(heads=2, q="wq", k="wk", v="wv")

        def __init__(self):
            super().__init__()
            self.wq, self.wk, self.wv = (nn.Linear(8, 8) for _ in range(3))

        def forward(self, x):
            q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
            q = q / q.norm(dim=-1, keepdim=True)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

    torch.manual_seed(0)
    condition = inspect(Hidden(), torch.randn(1, 5, 8)).layers[0].heads[0].jacobian
    assert condition.status == "not_supported"
    assert "differs from W_Q times the tokens" in condition.note


def test_nothing_of_the_model_or_the_random_states_moves():
    model = vit(attn_drop_rate=0.5, proj_drop_rate=0.5)
    model.train()
    model.blocks[0].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    modes = [module.training for module in model.modules()]
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(5)
    np.random.seed(5)  # noqa: NPY002  # the global state is meant
    random.seed(5)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    image = torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    first = inspect(model, image, jacobian=False)
    assert torch.equal(states[0], torch.get_rng_state())
    assert np.array_equal(states[1], np.random.get_state()[1])  # noqa: NPY002
    assert states[2] == random.getstate()
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(bool((p.grad == 1).all()) for p in model.parameters())
    assert first.to_json() == inspect(model, image, jacobian=False).to_json()  # dropout is off


def test_without_an_example_only_weights():
    report = inspect(vit())
    assert all(not layer.heads for layer in report.layers)
    assert "on sample" not in str(report)


def test_the_models_of_timm_are_found():
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, num_classes=10, depth=1)
    report = inspect(model, torch.randn(1, 3, 32, 32), max_jacobian_rows=1000)
    assert [len(layer.heads) for layer in report.layers] == [3]
    assert report.layers[0].heads[0].jacobian.status == "too_large"  # 17 tokens times 64


def test_limits_and_refusals():
    model = gpt2()
    example = {"input_ids": torch.arange(7)[None]}
    report = inspect(model, example, max_jacobian_rows=55)
    assert report.layers[0].heads[0].jacobian.status == "too_large"
    with pytest.raises(MeasureError, match="sample 3 asked for"):
        inspect(model, example, sample=3)
    with pytest.raises(MeasureError, match="failed on the example"):
        inspect(model, {"input_ids": torch.zeros(1, 99, dtype=torch.long)})
    with pytest.raises(LayoutError):
        inspect(nn.Sequential(nn.Linear(3, 3)))


def test_half_precision_model():
    model = gpt2().to(torch.bfloat16)
    head = inspect(model, {"input_ids": torch.arange(5)[None] * 7}).layers[0].heads[0]
    assert head.jacobian.status == "ok"
    assert model.wte.weight.dtype == torch.bfloat16


def test_report_is_strict_json_with_its_version():
    report = inspect(gpt2(), {"input_ids": torch.arange(5)[None]})
    assert isinstance(report, ConditioningReport)
    plain = json.loads(report.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert plain["schema"] == "kappaone/conditioning-report"
    assert plain["schema_version"] == 1
    assert plain["model"] == "GPT2Model"
    assert plain["layers"][0]["heads"][0]["bound"]["value"] == "inf"
    assert plain["layers"][0]["heads"][0]["kappa_J"]["status"] == "ok"
    summary = plain["layers"][0]["summary"]["kappa_J"]
    values = [head["kappa_J"]["condition_number"] for head in plain["layers"][0]["heads"]]
    assert (summary["min"], summary["max"], summary["heads"]) == (min(values), max(values), 3)
    assert "\x1b[" not in str(report)


def test_float64_model_agrees_with_its_single_precision_copy():
    model = gpt2()
    example = {"input_ids": torch.arange(6)[None] * 5}
    single = inspect(model, example).layers[1].heads[0]
    double = inspect(model.to(F64), example).layers[1].heads[0]
    assert single.jacobian.condition_number == pytest.approx(double.jacobian.condition_number, rel=1e-3)


class Eager(nn.Module):
    """Attention by hand with an additive bias and a causal mask."""

    kappaone_attention = AttentionSpec(heads=2, q="wq", k="wk", v="wv")

    def __init__(self, slope, lowest=-math.inf):
        super().__init__()
        self.wq, self.wk, self.wv = (nn.Linear(8, 8) for _ in range(3))
        self.slope, self.lowest = slope, lowest

    def bias(self, n):
        place = torch.arange(n)
        bias = -self.slope * (place[:, None] - place[None, :]).abs().float()
        return bias.masked_fill(place[:, None] < place[None, :], self.lowest)

    def forward(self, x):
        q, k, v = (p(x).unflatten(-1, (2, 4)).transpose(1, 2) for p in (self.wq, self.wk, self.wv))
        logits = q @ k.mT / 2.0 + self.bias(x.shape[1])
        return (torch.softmax(logits, dim=-1) @ v).transpose(1, 2).flatten(2)


@pytest.mark.parametrize("lowest", [-math.inf, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("slope", [0.0, 1e-4, 0.5])
def test_eager_rounding_is_no_mask_and_a_bias_is_kept(slope, lowest):
    """Beside masked entries: rounding of the logits is exactly zero, ALiBi of the same order as the logits stays."""
    torch.manual_seed(0)
    model = Eager(slope, lowest)
    x = torch.randn(1, 5, 8)
    recorded = record(model, find_attention(model), x)[""]
    finite = recorded.mask > -math.inf
    assert torch.equal(finite[0, 0], torch.ones(5, 5).tril().bool())
    expected = model.bias(5).masked_fill(~finite[0, 0], 0.0)
    if slope == 0.0:
        assert bool((recorded.mask[finite] == 0).all())
    else:
        torch.testing.assert_close(recorded.mask[0, 0].masked_fill(~finite[0, 0], 0.0), expected, atol=1e-6, rtol=0.0)
    head = inspect(model, x).layers[0].heads[1]
    parts = [(p.weight[4:], p.bias[4:]) for p in (model.wq, model.wk, model.wv)]
    exact = recorded.mask[0, 1].double() if slope else causal_mask(5)
    check_head(head, x[0].double(), [w for w, _ in parts], [b for _, b in parts], exact)


def test_progress_is_told_and_may_end_the_measurement():
    model, told = vit(), []
    image = torch.randn(1, 3, 24, 24)
    inspect(model, image, jacobian=False, progress=lambda *now: told.append(now))
    assert [done for done, _, _ in told] == list(range(9))  # two layers' weights and 2 x 3 heads
    assert {total for _, total, _ in told} == {8}
    assert told[0][2] is None
    assert all(left >= 0 for _, _, left in told[1:])
    assert told[-1][2] == 0

    def interrupt(done, _total, _left):
        if done == 3:
            raise KeyboardInterrupt

    threads, running = torch.get_num_threads(), threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        inspect(model, image, progress=interrupt)
    assert torch.get_num_threads() == threads
    assert threading.active_count() == running  # the workers have ended


def test_without_the_bound_nothing_else_changes():
    model, image = vit(), torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    whole, less = inspect(model, image), inspect(model, image, bound=False)
    assert all(head.bound is None for layer in less.layers for head in layer.heads)
    stripped = [replace(head, bound=None) for layer in whole.layers for head in layer.heads]
    assert [h.to_dict() for h in stripped] == [h.to_dict() for layer in less.layers for h in layer.heads]
    assert "heuristic" in str(whole)
    assert "heuristic" not in str(less)


def test_bits_do_not_depend_on_the_number_of_threads():
    model, image = vit(), torch.randn(1, 3, 24, 24, generator=torch.Generator().manual_seed(1))
    threads, found = torch.get_num_threads(), []
    recorded = record(model, find_attention(model), image)
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            with pytest.MonkeyPatch.context() as patch:
                # The forward pass is the model's own business.
                patch.setattr(sys.modules["kappaone.conditioning.inspect"], "record", lambda *_: recorded)
                found.append(inspect(model, image).to_json())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1]


def test_facts_of_the_layout_are_shown():
    from tests.conformance.rows import MODELS

    case = next(case for case in MODELS if case.name == "timm ViT, QK norm")
    report = inspect(case.model(), case.input())
    assert report.layers[0].to_dict()["facts"] == {"qk_norm": True}
    assert "qk_norm: q and k are normalized" in " ".join(str(report).split())
