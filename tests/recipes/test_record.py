"""What a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from kappaone.recipes.images import ImageOptions, build_model
from kappaone.recipes.record import digests, non_attention_digest, write_record


def _model() -> nn.Module:
    return build_model(ImageOptions(embed_dim=8, depth=2, heads=2), 0)


def test_the_digest_sees_every_bit_outside_attention_and_none_inside() -> None:
    whole = non_attention_digest(_model())
    for name in _model().state_dict():
        model = _model()
        flat = model.state_dict()[name].flatten()  # a view: what is written here is in the model
        bits = flat.view(torch.int32)
        bits[-1] ^= 1
        attention = ".attn.qkv" in name or ".attn.proj" in name
        assert (non_attention_digest(model) == whole) == attention, name
        before, after = digests(_model())[1], digests(model)[1]
        assert [n for n in after if after[n] != before[n]] == [name]


def test_dtype_and_shape_are_part_of_the_digest() -> None:
    assert non_attention_digest(_model().to(torch.bfloat16)) != non_attention_digest(_model())


def test_a_record_is_whole_or_absent(tmp_path: Path) -> None:
    path = write_record(tmp_path, {"arm": "a"})
    assert json.loads(path.read_text())["arm"] == "a"
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_record(tmp_path, {"arm": float("nan")})
    assert json.loads(path.read_text())["arm"] == "a"
    assert [p.name for p in tmp_path.iterdir()] == ["record.json"]
