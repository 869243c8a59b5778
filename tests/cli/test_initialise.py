"""init, check: weights on disk and what they remember."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import kappaone
from kappaone.cli.models import load_model

TIMM = "timm:vit_tiny_patch16_224(img_size=32, depth=2, embed_dim=48, num_classes=3)"


def test_round_trip_init_check_inspect(command, folder):
    done = command("init", TIMM, "--scheme", "conditioned(qk=joint)", "--seed", "5", "--out", "w.safetensors")
    assert done.code == 0, done.err
    assert "weights: w.safetensors" in done.out
    # The file holds what the same lines of Python give.
    model = load_model(TIMM, seed=5).model
    kappaone.init_(model, "conditioned(qk=joint)", seed=5)
    stored = load_file(folder / "w.safetensors")
    assert stored.keys() == model.state_dict().keys()
    assert all(torch.equal(stored[name], value) for name, value in model.state_dict().items())
    # Its provenance is inside.
    with safe_open(folder / "w.safetensors", "pt") as file:
        metadata = file.metadata()
    assert metadata["kappaone.model"] == TIMM
    assert json.loads(metadata["kappaone.report"])["scheme"] == "conditioned(qk=joint)"
    answer = command("check", "w.safetensors")
    assert answer.code == 0
    assert "all 18 blocks are as they were set" in answer.out
    seen = command("inspect", "w.safetensors", "--data", "none", "--json")
    assert seen.code == 0, seen.err
    assert len(json.loads(seen.out)["layers"]) == 2


def test_check_says_what_changed_and_exits_with_1(command, folder):
    assert command("init", "model.py:build", "--out", "w.safetensors", "--report", "r.json").code == 0
    tensors = load_file(folder / "w.safetensors")
    tensors["1.wires.weight"][0, 0] += 1
    save_file(tensors, folder / "other.safetensors")
    answer = command("check", "other.safetensors", "--report", "r.json")
    assert answer.code == 1
    assert "1 of 12 blocks" in answer.out
    assert "1.wires.weight, role q, head 0" in answer.out
    found = json.loads(command("check", "other.safetensors", "--report", "r.json", "--json").out)
    assert found["ok"] is False
    first, last = command("check", "other.safetensors").refused()
    assert "holds no report" in first
    assert "kappaone init --out" in last


def test_weights_made_from_weights_still_name_their_model(command, folder):
    command("init", TIMM, "--out", "a.safetensors")
    first, last = command("init", "a.safetensors", "--scheme", "orthogonal", "--out", "b.safetensors").refused()
    assert "loaded from a file" in first
    assert "--overwrite" in last
    again = command("init", "a.safetensors", "--scheme", "orthogonal", "--overwrite", "--out", "b.safetensors")
    assert again.code == 0, again.err
    assert load_model("b.safetensors").origin == TIMM
    a, b = load_file("a.safetensors"), load_file("b.safetensors")
    assert torch.equal(a["head.weight"], b["head.weight"])
    assert not torch.equal(a["blocks.0.attn.qkv.weight"], b["blocks.0.attn.qkv.weight"])


def test_nothing_is_written_where_something_is_wrong(command, folder):
    before = sorted(folder.iterdir())
    for words, what in [
        (["--out", "w.pt"], "does not end in .safetensors"),
        (["--out", "no/where/w.safetensors"], "there is no folder"),
        (["--out", "."], "does not end in"),
        (["--report", "no/where.json"], "there is no folder"),
        (["--report", str(folder)], "is a folder"),
        (["--scheme", "conditioned(value=x)", "--out", "w.safetensors"], "value=x"),
        (["--on-refused", "ignore", "--out", "w.safetensors"], "raise or skip"),
        (["--scheme", "unit_logits", "--out", "w.safetensors"], "needs an example"),
        (["--scheme", "conditioned(layers=9)", "--out", "w.safetensors"], "layers=9"),
    ]:
        first = command("init", "model.py:build", *words).refused()[0]
        assert what in first, words
    assert [path for path in sorted(folder.iterdir()) if path.name != "__pycache__"] == before


def test_refused_attention_is_an_error_that_shows_a_spec(command):
    lines = command("init", "model.py:undeclared", "--data", "none").refused()
    assert "no attention was found" in lines[0] or "nobody described" in lines[0]
    assert "AttentionSpec(" in lines[-1]


def test_init_says_when_nothing_was_kept(command):
    answer = command("init", "model.py:torch_encoder")
    assert answer.code == 0
    assert "nothing was written" in answer.out


def test_the_report_as_json_and_as_a_file_are_one(command, folder):
    answer = command("init", "model.py:torch_encoder", "--report", "r.json", "--json")
    shown, stored = json.loads(answer.out), json.loads((folder / "r.json").read_text())
    assert shown["layers"][0]["roles"].keys() == stored["layers"][0]["roles"].keys()
    assert shown["seed"] == stored["seed"] == 0


@pytest.mark.parametrize("name", ["missing.safetensors", "broken.safetensors", "folder.safetensors"])
def test_weights_that_cannot_be_read(command, folder, name):
    (folder / "broken.safetensors").write_bytes(b"\xff" * 64)
    (folder / "folder.safetensors").mkdir()
    for words in (["check", name], ["inspect", name, "--data", "none"], ["layouts", f"model.py:build@{name}"]):
        first = command(*words).refused()[0]
        assert name in first
        assert "cannot be read as safetensors" in first


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": "init_report", "schema": 1}', '{"kind": "study"}'])
def test_a_report_that_is_none(command, folder, text):
    command("init", "model.py:build", "--out", "w.safetensors")
    (folder / "r.json").write_text(text)
    command("check", "w.safetensors", "--report", "r.json").refused()
