"""Families beyond the supported ones: each layer is confirmed row by row by the probe, or refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from kappaone.layouts import survey
from kappaone.layouts.notice import by_structure
from kappaone.layouts.probe import verify

SMALL: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
FACTORIZED = {**SMALL, "embedding_size": 16}
STAGES = {
    "hidden_sizes": [16, 32],
    "depths": [1, 1],
    "num_attention_heads": [2, 4],
    "num_encoder_blocks": 2,
    "sr_ratios": [2, 1],
    "patch_sizes": [4, 3],
    "strides": [4, 2],
    "mlp_ratios": [2, 2],
}


def _transformers(name: str, options: dict[str, Any]) -> nn.Module:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(name, **options)).eval()
    assert isinstance(model, nn.Module)
    return model


@pytest.mark.parametrize(
    ("name", "options"),
    [("electra", FACTORIZED), ("roformer", FACTORIZED), ("mistral", GROUPED), ("olmo", GROUPED)],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_described_families_are_confirmed(name: str, options: dict[str, Any]) -> None:
    model = _transformers(name, options)
    example = {"input_ids": torch.randint(5, 60, (2, 8))}
    found = survey(model, example)
    assert found.layouts and not found.refused
    report = verify(model, found.layouts, example, rows_per_head=None)
    assert report.ok, str(report)
    assert bool(found.layouts[0].facts.get("rotary")) == (name != "electra")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mra", SMALL),  # sampled blocks of the attention matrix
        ("roformer", {**FACTORIZED, "rotary_value": True}),  # values are rotated too
        ("qwen3_next", {**GROUPED, "num_experts": 4, "moe_intermediate_size": 16}),  # linear attention
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_other_families_are_refused_by_name(name: str, options: dict[str, Any]) -> None:
    found = survey(_transformers(name, options))
    assert not found.layouts
    assert found.refused or found.outside


@pytest.mark.parametrize(
    ("name", "options", "fact"),
    [
        ("olmo", {**GROUPED, "clip_qkv": 0.1}, "clamped"),
        ("segformer", STAGES, "reduced_keys"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_what_differs_is_stated_as_a_fact(name: str, options: dict[str, Any], fact: str) -> None:
    found = survey(_transformers(name, options))
    assert found.layouts and not found.refused
    assert found.layouts[0].facts.get(fact)


def test_a_block_that_fuses_attention_and_mlp_is_noticed() -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("vit_base_patch16_xp_224", img_size=32, depth=2, embed_dim=32, num_heads=4)
    assert {"blocks.0", "blocks.1"} <= set(by_structure(dict(model.named_modules()), set()))
    assert [layout.name for layout in survey(model).layouts] == ["blocks.0", "blocks.1"]


def test_a_module_that_only_counts_heads_is_not_attention() -> None:
    model = nn.Linear(4, 4)
    model.num_heads = 2  # type: ignore[assignment]
    assert by_structure({"": model}, set()) == {}
