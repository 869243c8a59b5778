from __future__ import annotations

import json

import pytest

from kappaone.schemes import ENTRIES, lookup


def test_every_scheme_is_listed_within_80_columns(command):
    answer = command("schemes")
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    first = {line.split()[0] for line in answer.out.splitlines() if line and not line.startswith(" ")}
    assert set(ENTRIES) <= first


@pytest.mark.parametrize("name", ENTRIES)
def test_one_scheme_is_explained_with_its_source_and_options(command, name):
    answer = command("schemes", name)
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    flat = " ".join(answer.out.split())
    assert lookup(name).source in flat
    assert "Touches" in flat  # from the scheme's own file
    for option in lookup(name).options:
        assert f"\n{option} " in answer.out


def test_schemes_as_json(command):
    found = {item["name"]: item for item in json.loads(command("schemes", "--json").out)}
    assert list(found) == list(ENTRIES)
    assert found["conditioned"]["options"]["value"]["default"] == "fused"
    assert "rectangular identity" in found["conditioned"]["about"]


def test_layouts_of_a_declared_model(command):
    answer = command("layouts", "model.py:build")
    assert answer.code == 0
    assert "{0,1} (2 layers): 2 heads x 4, width 8, scale 0.5, by declaration" in answer.out
    assert "q     wires.weight  rows 0:4, 12:16" in answer.out
    assert "v     wires.weight  rows 8:12, 20:24" in answer.out
    assert "o     out.weight    columns 0:8" in answer.out
    assert "2 attention layers described, 0 refused" in answer.out


def test_layouts_verify_needs_an_input_and_uses_it(command, folder):
    import torch
    from safetensors.torch import save_file

    first, last = command("layouts", "model.py:build", "--verify").refused()
    assert "--verify" in first
    assert "--data" in last
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        save_file({"input": torch.randn(1, 5, 8)}, folder / "x.safetensors")
    answer = command("layouts", "model.py:build", "--verify", "--data", "x.safetensors", "--json")
    found = json.loads(answer.out)
    assert answer.code == 0
    assert found["probe"] == {"ok": True, "rows": 12, "wrong": [], "unreached": []}


def test_a_contradicted_layout_is_exit_code_1(command, folder):
    import torch
    from safetensors.torch import save_file

    text = (folder / "model.py").read_text().replace("head(q k v)", "head(k q v)")
    (folder / "model.py").write_text(text)
    save_file({"input": torch.linspace(-1, 1, 40).sin().reshape(1, 5, 8)}, folder / "x.safetensors")
    answer = command("layouts", "model.py:build", "--verify", "--data", "x.safetensors")
    assert answer.code == 1
    assert "8 contradict their layout" in answer.out


def test_nothing_described_is_an_error(command):
    first, last = command("layouts", "model.py:number").refused()
    assert "expected a torch.nn.Module" in first
    assert last == "what to do: return the model, or the model and an example input"


def test_gpt2_stays_readable_in_80_columns(command):
    answer = command("layouts", "hf:gpt2(n_layer=3, n_embd=48, n_head=4, vocab_size=99)", "--data", "none")
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert "h.{0..2}.attn (3 layers): 4 heads x 12, width 48" in answer.out
    assert "k     c_attn.weight  columns 48:96" in answer.out
    assert "o     c_proj.weight  rows 0:48" in answer.out
    assert "…" not in answer.out
