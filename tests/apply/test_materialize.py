# ruff: noqa: NPY002
"""A model on the meta device becomes what its constructor would have made on the CPU, and its attention what init_ makes."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import timm
import torch
import transformers
from torch import nn

import kappaone
from kappaone.errors import LayoutError, SpecError, WriteError


def gpt2(**options) -> nn.Module:
    config = transformers.GPT2Config(
        vocab_size=97, n_positions=16, n_embd=48, n_layer=3, n_head=4, bos_token_id=0, eos_token_id=0, **options
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def bert() -> nn.Module:
    config = transformers.BertConfig(
        vocab_size=97, hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return transformers.BertForMaskedLM(config)


def hf_vit() -> nn.Module:
    config = transformers.ViTConfig(
        hidden_size=48, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, image_size=32, patch_size=8
    )
    return transformers.ViTForImageClassification(config)


def timm_vit(**options) -> nn.Module:
    return timm.create_model(
        "vit_tiny_patch16_224", depth=2, embed_dim=48, num_heads=4, img_size=32, patch_size=8, num_classes=5, **options
    )


def encoder() -> nn.Module:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(48, 4, 64, batch_first=True), 2)


class Mixed(nn.Module):
    """Models of two libraries in a user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.image, self.text, self.head = timm_vit(), bert(), nn.Linear(48, 2)


MODELS = [gpt2, llama, bert, hf_vit, timm_vit, encoder, Mixed]


def on_meta(build) -> nn.Module:
    with torch.device("meta"):
        return build()


def assert_same_law(name: str, one: torch.Tensor, other: torch.Tensor) -> None:
    """Mean, std, and largest entry of two tensors agree within what chance allows."""
    a, b = (x.detach().double().flatten().numpy() for x in (one, other))
    scale = max(a.std(), b.std())
    error = 6 * scale / a.size**0.5 + 1e-12
    assert abs(a.mean() - b.mean()) <= error, name
    assert abs(a.std() - b.std()) <= error, name
    if a.size > 500:
        kurtosis = [float(np.mean((x - x.mean()) ** 4) / (x.std() ** 4 + 1e-300)) for x in (a, b)]
        assert abs(kurtosis[0] - kurtosis[1]) <= 8 * (24 / a.size) ** 0.5 + 0.1, name


@pytest.mark.parametrize("build", MODELS, ids=lambda b: b.__name__)
def test_the_same_as_building_it_on_the_cpu(build):
    torch.manual_seed(3)
    expected, model = build(), on_meta(build)
    report = kappaone.materialize_(model, "cpu", "default", seed=0)
    assert not report.unset and not report.kept
    assert set(report.set_by) == {n for n, _ in model.named_parameters(remove_duplicate=False)} | {
        n for n, _ in model.named_buffers()
    }
    theirs = dict(expected.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.dtype == theirs[name].dtype and parameter.requires_grad == theirs[name].requires_grad
        assert bool(torch.isfinite(parameter).all()), name
        assert_same_law(name, parameter, theirs[name])
    buffers = dict(expected.named_buffers())
    assert set(buffers) == {name for name, _ in model.named_buffers()}
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, buffers[name]), name
    ties = [n for n, _ in model.named_parameters(remove_duplicate=False)], [n for n, _ in model.named_parameters()]
    assert len(ties[0]) - len(ties[1]) == sum(len(group) - 1 for group in report.ties)
    assert len(ties[1]) == len(theirs)


@pytest.mark.parametrize("build", [gpt2, llama, bert, hf_vit, timm_vit, encoder], ids=lambda b: b.__name__)
def test_the_attention_is_what_init_draws(build):
    model, plain = on_meta(build), build()
    report = kappaone.materialize_(model, "cpu", "conditioned", seed=7)
    again = kappaone.init_(plain, "conditioned", seed=7)
    assert report.attention is not None and report.attention.blocks_set == again.blocks_set
    ours, theirs = dict(model.named_parameters()), dict(plain.named_parameters())
    for layer in again.layers:
        for role, entry in layer.roles.items():
            if entry.status == "set":
                from kappaone.layouts.blocks import block_view

                rows = layer.layout.role(role)
                for head in range(rows.heads):
                    one, two = (block_view(w[entry.parameter], rows, role, head) for w in (ours, theirs))
                    assert torch.equal(one, two)
                assert report.set_by[entry.parameter] == "kappaone conditioned"
    assert kappaone.check(model)


def test_the_seed_decides_and_nothing_global_moves():
    before = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first, same, other = on_meta(gpt2), on_meta(gpt2), on_meta(gpt2)
    torch.manual_seed(5)
    kappaone.materialize_(first, "cpu", seed=0)
    with torch.device("meta"):  # the caller may still be in there
        torch.manual_seed(6)
        kappaone.materialize_(same, "cpu", seed=0)
    kappaone.materialize_(other, "cpu", seed=1)
    for (name, a), b, c in zip(first.named_parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert a.std() == 0 or not torch.equal(a, c), name
    torch.manual_seed(6)
    state = torch.random.get_rng_state()
    kappaone.materialize_(on_meta(timm_vit), "cpu", seed=0)
    assert torch.equal(state, torch.random.get_rng_state())
    assert random.getstate() == before[1] and (np.random.get_state()[1] == before[2]).all()


def test_a_dtype_chosen_before_stays():
    model = on_meta(llama).to(torch.bfloat16)
    kappaone.materialize_(model, "cpu", seed=0)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


def test_parameters_keep_their_attributes():
    model = on_meta(encoder)
    model.layers[0].linear1.weight._no_weight_decay = True
    model.layers[0].linear1.weight.requires_grad_(False)
    kappaone.materialize_(model, "cpu", seed=0)
    weight = model.layers[0].linear1.weight
    assert weight._no_weight_decay and not weight.requires_grad and type(weight) is nn.Parameter


class Tokens(nn.Module):
    """What its constructor sets by hand is on no list."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
        self.token = nn.Parameter(torch.zeros(1, 1, 16))
        self.register_buffer("places", torch.arange(5), persistent=False)
        self.register_buffer("seen", torch.zeros(3, dtype=torch.bool))
        self.table = torch.arange(4)


def test_what_nothing_sets_is_an_error_that_names_it():
    model = on_meta(Tokens)
    with pytest.raises(WriteError) as caught:
        kappaone.materialize_(model, "cpu", seed=0)
    text = str(caught.value)
    assert "4 tensors are not set" in text and "initialize=" in text
    assert "token: parameter (1, 1, 16), nothing that the model brings sets it" in text
    assert "places: buffer (5,)" in text and "seen: buffer (3,)" in text
    assert "table: attribute (4,), neither parameter nor buffer: it is still on the meta device" in text
    assert set(caught.value.report.unset) == {"token", "places", "seen", "table"}
    # All else is there: what is left can be set by hand.
    assert kappaone.check(model) and bool(model.token.isnan().all())


def test_what_nothing_sets_can_be_reported_or_set_by_the_caller():
    model = on_meta(Tokens)
    report = kappaone.materialize_(model, "cpu", seed=0, on_unset="report")
    assert set(report.unset) == {"token", "places", "seen", "table"}
    assert "4 not set" in str(report) and json.loads(report.to_json())["unset"].keys() == report.unset.keys()

    def rest(model):
        nn.init.zeros_(model.token)
        model.places.copy_(torch.arange(5))
        model.seen.zero_()
        model.table = torch.arange(4)

    model = on_meta(Tokens)
    report = kappaone.materialize_(model, "cpu", seed=0, initialize=rest)
    assert not report.unset and report.set_by["token"] == report.set_by["seen"] == "initialize="
    assert torch.equal(model.table, Tokens().table) and torch.equal(model.places, Tokens().places)


class HalfSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
        self.rows = nn.Parameter(torch.empty(4, 3))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        with torch.no_grad():
            self.rows[:3] = 1.0


def test_a_tensor_that_is_set_in_part_is_not_set():
    with pytest.raises(WriteError, match=r"rows: parameter \(4, 3\), 3 entries are left"):
        kappaone.materialize_(on_meta(HalfSet), "cpu", seed=0)


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
        self.scale = nn.Parameter(torch.ones(2))

    def reset_parameters(self) -> None:
        raise RuntimeError("no such table")


def test_an_initialization_that_fails_is_the_reason_given():
    with pytest.raises(WriteError, match=r"scale: .* reset_parameters of '' failed: RuntimeError: no such table"):
        kappaone.materialize_(on_meta(Failing), "cpu", seed=0)


def test_what_has_memory_already_keeps_its_values():
    import accelerate

    with accelerate.init_empty_weights():  # parameters on meta, buffers not; transformers' marks say "initialised"
        model = bert()
    assert not model.bert.embeddings.position_ids.is_meta
    model.cls.predictions.transform.dense.weight = nn.Parameter(torch.full((48, 48), 0.25))
    report = kappaone.materialize_(model, "cpu", seed=0)
    assert "cls.predictions.transform.dense.weight" in report.kept
    assert bool((model.cls.predictions.transform.dense.weight == 0.25).all())
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())
    assert float(model.bert.encoder.layer[0].intermediate.dense.weight.detach().std()) == pytest.approx(0.02, rel=0.1)


def test_loaded_attention_is_kept_or_the_caller_says_so():
    def half():
        model = on_meta(encoder)
        attention = nn.MultiheadAttention(48, 4, batch_first=True)
        nn.init.constant_(attention.in_proj_weight, 0.5)
        attention.in_proj_weight.data[0, 0] = 0.1
        model.layers[0].self_attn = attention
        return model

    with pytest.raises(WriteError, match="'layers.0.self_attn.in_proj_weight' .*seems to hold loaded or trained"):
        kappaone.materialize_(half(), "cpu", seed=0)
    model = half()
    assert kappaone.materialize_(model, "cpu", seed=0, overwrite=True).attention.blocks_set == 24


def test_attention_that_cannot_be_found_changes_nothing():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3))
    with pytest.raises(LayoutError, match="no attention"):
        kappaone.materialize_(model, "cpu", seed=0)
    assert model[0].weight.is_meta


def test_wrong_calls_say_what_to_do():
    with pytest.raises(SpecError, match="seed=0"):
        kappaone.materialize_(on_meta(encoder), "cpu")
    with pytest.raises(SpecError, match="on_unset"):
        kappaone.materialize_(on_meta(encoder), "cpu", seed=0, on_unset="ignore")
    with pytest.raises(SpecError, match="gives no memory"):
        kappaone.materialize_(on_meta(encoder), "meta", seed=0)
    with pytest.raises(WriteError, match="none of the model's"):
        kappaone.materialize_(encoder(), "cpu", seed=0)
    with pytest.raises(SpecError, match="no scheme"):
        kappaone.materialize_(on_meta(encoder), "cpu", "conditoned", seed=0)


class Breaks(nn.Module):
    """An initialization that replaces a tied parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
        self.embed, self.head = nn.Embedding(9, 16), nn.Linear(16, 9, bias=False)
        self.head.weight = self.embed.weight

    def init_weights(self) -> None:
        self.head.weight = nn.Parameter(torch.zeros(9, 16))


def test_an_initialization_that_breaks_a_tie_is_an_error():
    with pytest.raises(WriteError, match=r"'embed.weight' and 'head.weight' were one tensor"):
        kappaone.materialize_(on_meta(Breaks), "cpu", seed=0)


def test_a_module_in_two_places_is_set_once_and_stays_one():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.TransformerEncoderLayer(16, 4, 16, batch_first=True)
            self.second = self.first
            self.third = nn.Linear(16, 16)
            self.third.weight = self.first.linear1.weight

    model = on_meta(Twice)
    kappaone.materialize_(model, "cpu", seed=0)
    assert model.first is model.second and model.third.weight is model.first.linear1.weight
