"""Architectures of transformers on the meta device and small: the same classes and switches, and an input that runs."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from kappaone.coverage import transformers_zoo as zoo
from kappaone.errors import SpecError
from kappaone.layouts.running import evaluating, run

pytest.importorskip("transformers")

# Decoders, encoders, both, towers, mixtures: one of each way to be attended.
RUN = (
    "llama",
    "bert",
    "gpt2",
    "t5",
    "vit",
    "swin",
    "clip",
    "whisper",
    "deepseek_v3",
    "qwen3_next",
    "llava",
    "qwen2_vl",
)


def _ran(name: str) -> tuple[nn.Module, set[str]]:
    small = zoo.small(name)
    assert small is not None
    reached: set[str] = set()
    handles = [
        module.register_forward_hook(lambda _m, _i, _o, path=path: reached.add(path))  # type: ignore[misc]
        for path, module in small.model.named_modules()
    ]
    with evaluating(small.model):
        run(small.model, small.example)
    for handle in handles:
        handle.remove()
    return small.model, reached


@pytest.mark.parametrize("name", RUN)
def test_the_example_runs_every_weight(name: str) -> None:
    model, reached = _ran(name)
    # A short convolution in front of a recurrence is called by a kernel, past its module.
    tables = (nn.Embedding, nn.LayerNorm, nn.Conv1d)
    weights = [
        path
        for path, module in model.named_modules()
        if not isinstance(module, tables) and any(p.ndim > 1 for p in module.parameters(recurse=False))
    ]
    assert weights
    assert [path for path in weights if path not in reached] == []


def _kinds(model: nn.Module) -> set[str]:
    return {type(module).__name__ for module in model.modules()}


def _attention_entries(model: nn.Module) -> set[tuple[str, str]]:
    """Which parameters the attention classes have: biases, norms, gates, sinks."""
    attention = (module for module in model.modules() if "Atten" in type(module).__name__)
    return {(type(module).__name__, name) for module in attention for name, _ in module.named_parameters()}


@pytest.mark.parametrize("name", ["llama", "vit", "qwen3_next", "deepseek_v3", "gemma3_text"])
def test_small_has_the_kinds_of_blocks_of_the_default(name: str) -> None:
    small, default = zoo.small(name), zoo.on_meta(name)
    assert small is not None
    assert _kinds(small.model) == _kinds(default)
    assert _attention_entries(small.model) == _attention_entries(default) != set()


OFTEN = [
    "albert", "bamba", "bart", "beit", "big_bird", "bloom", "blip", "codegen", "cohere", "cohere2", "dbrx",
    "deberta", "deberta-v2", "deepseek_v2", "deit", "detr", "dinov2", "dinov3_vit", "distilbert", "electra",
    "falcon", "gemma", "gemma2", "gemma4_text", "glm", "glm4", "gpt_bigcode", "gpt_neo", "gpt_neox", "gpt_oss",
    "gptj", "granite", "jamba", "levit", "llama4", "longcat_flash", "longformer", "minimax", "mistral", "mixtral",
    "mllama", "mobilevit", "modernbert", "mpt", "mt5", "nystromformer", "olmo", "olmo2", "opt", "persimmon", "phi",
    "phi3", "pvt", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_5", "reformer", "roformer", "sam", "segformer", "siglip",
    "smollm3", "swinv2", "wav2vec2", "xlm", "xlnet", "zamba",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", OFTEN)
def test_the_types_in_use_run_small_with_every_kind_of_block(name: str) -> None:
    model, _ = _ran(name)
    assert _kinds(model) == _kinds(zoo.on_meta(name))


def test_names_are_the_types_that_automodel_builds() -> None:
    names = zoo.names()
    assert names == sorted(names)
    assert {"llama", "bert", "vit", "t5", "clip"} <= set(names)
    assert len(names) > 300


def test_on_meta_has_the_default_sizes_and_no_memory() -> None:
    model = zoo.on_meta("mixtral")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    assert sum(parameter.numel() for parameter in model.parameters()) > 40e9


@pytest.mark.parametrize(
    ("name", "heads", "kv_heads"), [("llama", 4, 4), ("mistral", 4, 2), ("gpt_bigcode", 4, None), ("gemma", 4, 4)]
)
def test_grouping_stays(name: str, heads: int, kv_heads: int | None) -> None:
    config = zoo.small_config(name)
    assert config.num_attention_heads == heads
    if kv_heads is not None:
        assert config.num_key_value_heads == kv_heads
    else:
        assert config.multi_query


def test_every_kind_of_layer_stays() -> None:
    from transformers import AutoConfig

    for name in ("qwen3_next", "gemma3_text", "gpt_oss", "lfm2"):
        assert set(zoo.small_config(name).layer_types) == set(AutoConfig.for_model(name).layer_types), name


def test_heads_wider_than_the_stream_stay_so() -> None:
    config = zoo.small_config("gemma")
    assert config.head_dim * config.num_attention_heads != config.hidden_size


def test_random_states_are_kept_and_the_weights_are_the_same_each_time() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # noqa: NPY002
    first, second = zoo.small("bert"), zoo.small("bert")
    zoo.on_meta("bert")
    assert first is not None and second is not None
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1] == random.getstate()
    assert states[2] == np.random.get_state()[1].tolist()  # type: ignore[union-attr]  # noqa: NPY002
    for one, other in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert torch.equal(first.example["input_ids"], second.example["input_ids"])


def test_what_cannot_be_made_small_says_why() -> None:
    assert zoo.small("bark") is None
    assert "forward" in zoo.why_not_small("bark")
    assert zoo.why_not_small("llama") == ""


def test_an_unknown_type_is_refused() -> None:
    with pytest.raises(SpecError, match="no model type 'nothing'"):
        zoo.on_meta("nothing")
    with pytest.raises(SpecError, match="no model type 'nothing'"):
        zoo.small("nothing")
