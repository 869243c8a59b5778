"""MODEL in all its forms, and what is said when it is none of them."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from kappaone.cli.models import example_for, load_model
from kappaone.errors import SpecError


def test_timm_with_options(folder):
    found = load_model("timm:vit_tiny_patch16_224(img_size=[32, 48], depth=1, in_chans=1, qkv_bias=false)")
    assert found.image_size == (1, 32, 48)
    assert len(found.model.blocks) == 1
    assert found.model.blocks[0].attn.qkv.bias is None
    example, words = example_for(found, None)
    assert example.shape == (1, 1, 32, 48)
    assert "photograph" in words
    assert float(example.mean()) == pytest.approx(0, abs=1e-5)
    found.model(example)


@pytest.mark.parametrize(
    ("spec", "tokens"),
    [
        ("hf:gpt2(n_layer=1, n_embd=32, n_head=2, vocab_size=77)", True),
        (
            "hf:bert(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=8, vocab_size=77)",
            True,
        ),
        (
            "hf:vit(num_hidden_layers=1, hidden_size=32, num_attention_heads=2, intermediate_size=8, image_size=32)",
            False,
        ),
    ],
)
def test_transformers_types(folder, spec, tokens):
    found = load_model(spec)
    example, _ = example_for(found, None)
    if tokens:
        assert example["input_ids"].shape == (1, 64)
        assert int(example["input_ids"].max()) < 77
        found.model(**example)
    else:
        assert example.shape == (1, 3, 32, 32)
        found.model(example)


def test_torchvision(folder):
    found = load_model("torchvision:vit_b_32(image_size=32, num_classes=2)")
    assert found.image_size == (3, 32, 32)
    found.model(example_for(found, None)[0])


def test_the_same_seed_gives_the_same_model_and_global_state_is_kept(folder):
    state = torch.get_rng_state()
    models = [load_model("model.py:build", seed=seed).model for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    a, b, c = (m[0].wires.weight for m in models)
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert not any(m.training for m in models[0].modules())


def test_a_file_named_like_a_library_hides_nothing(folder):
    (folder / "torch.py").write_text(
        "from dataclasses import dataclass\nfrom model import build as make\n@dataclass\nclass A:\n    x: int\nbuild = make\n"
    )
    assert load_model("torch.py:build").model
    assert sys.modules["torch"] is torch


def test_a_folder_of_save_pretrained(folder):
    import transformers

    config = transformers.GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=50, bos_token_id=1, eos_token_id=2)
    model = transformers.GPT2LMHeadModel(config)
    model.save_pretrained(folder / "saved")
    found = load_model("saved")
    assert found.loaded
    assert isinstance(found.model, transformers.GPT2LMHeadModel)
    assert torch.equal(found.model.transformer.h[0].attn.c_attn.weight, model.transformer.h[0].attn.c_attn.weight)
    # A config that names something else than a model, or code, builds a model of its type and runs nothing.
    path = folder / "saved" / "config.json"
    data = json.loads(path.read_text())
    path.write_text(json.dumps({**data, "architectures": ["pipeline"], "auto_map": {"AutoModel": "evil.Evil"}}))
    (folder / "saved" / "evil.py").write_text("raise SystemExit('run')")
    assert isinstance(load_model("saved").model, transformers.GPT2Model)
    (folder / "saved" / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(SpecError, match="saved cannot be built"):
        load_model("saved")
    (folder / "saved" / "model.safetensors").unlink()
    with pytest.raises(SpecError, match="no .safetensors weights"):
        load_model("saved")


def test_a_model_with_other_weights(folder):
    model = load_model("model.py:build", seed=3).model
    save_file({name: value + 1 for name, value in model.state_dict().items()}, "w.safetensors")
    found = load_model("model.py:build@w.safetensors")
    assert found.loaded
    assert found.origin == "model.py:build"
    assert torch.equal(found.model[0].out.bias, model[0].out.bias + 1)
    with pytest.raises(SpecError, match="does not say which model") as error:
        load_model("w.safetensors")
    assert "MODEL@w.safetensors" in error.value.todo
    save_file({"0.wires.weight": torch.zeros(2, 2)}, "w.safetensors")
    with pytest.raises(SpecError, match=r"not those of model\.py:build"):
        load_model("model.py:build@w.safetensors")


def test_code_that_a_weights_file_names_is_not_run(folder):
    (folder / "evil.py").write_text("raise SystemExit('run')")
    save_file({"x": torch.zeros(1)}, "w.safetensors", metadata={"kappaone.model": "evil.py:build"})
    with pytest.raises(SpecError, match="is not run") as error:
        load_model("w.safetensors")
    assert "evil.py:build@w.safetensors" in error.value.todo
    save_file({"x": torch.zeros(1)}, "w.safetensors", metadata={"kappaone.model": "timm:nope"})
    with pytest.raises(SpecError, match=r"made from 'timm:nope': timm has no model"):
        load_model("w.safetensors")


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ("", "MODEL is empty"),
        ("nope", "neither a file nor a known source"),
        ("nope:x", "neither a file nor a known source"),
        ("timm:", "neither a file nor a known source"),
        ("timm:vit_tiny", "timm has no model"),
        ("timm:../../etc/passwd", "timm has no model"),
        ("timm:hf-hub:someone/model", "timm has no model"),
        ("timm:vit_tiny_patch16_224(depth=", "cannot read the options"),
        ("timm:vit_tiny_patch16_224(depth)", "expected NAME=VALUE"),
        ("timm:vit_tiny_patch16_224(depth=f(3))", "expected NAME=VALUE"),
        ("timm:vit_tiny_patch16_224(nope=3)", "cannot be built"),
        ("hf:gpt2-large", "no model type"),
        ("hf:someone/gpt2", "no model type"),
        ("hf:gpt2(n_head=7)", "cannot be built"),
        ("torchvision:nope", "torchvision has no model"),
        ("model.py:", "names no function"),
        ("model.py:nope", "has no function 'nope'"),
        ("model.py:WIDTH", "has no function 'WIDTH'"),
        ("model.py:number", "expected a torch.nn.Module"),
        ("model.py:broken", "RuntimeError: this builder is broken"),
        ("missing.py:build", "there is no file"),
        (".", "a folder without config.json"),
        ("a\nb", "neither a file"),
        ("[red]x[/red]", "neither a file"),
        ("x" * 5000, "too long"),
    ],
)
def test_what_is_no_model(command, spec, what):
    words = command("layouts", spec, "--data", "none").refused()
    assert what in "\n".join(words)
    assert "[red]" in spec or "second line" not in "\n".join(words)


def test_a_file_that_does_not_compile(command, folder):
    (folder / "bad.py").write_text("def build(:\n")
    assert "SyntaxError" in command("layouts", "bad.py:build").refused()[0]


def test_data(folder):
    from PIL import Image

    found = load_model("timm:vit_tiny_patch16_224(img_size=32, depth=1)")
    Image.new("RGBA", (7, 9), (255, 0, 0, 128)).save("a.png")
    assert example_for(found, "a.png")[0].shape == (1, 3, 32, 32)
    assert example_for(found, "none") == (None, "no input")
    (folder / "no.png").write_text("no picture")
    for name in ("no.png", "missing.png"):
        with pytest.raises(SpecError, match=name):
            example_for(found, name)
    save_file({"x": torch.ones(1, 2)}, "x.safetensors")
    assert example_for(found, "x.safetensors")[0]["x"].shape == (1, 2)
    plain = load_model("model.py:build")
    with pytest.raises(SpecError, match="takes no image"):
        example_for(plain, "a.png")


def test_a_picture_of_one_colour_gives_finite_numbers(folder):
    from PIL import Image

    found = load_model("timm:vit_tiny_patch16_224(img_size=32, depth=1)")
    Image.new("L", (8, 8), 7).save("flat.png")
    with pytest.raises(SpecError, match="one colour"):
        example_for(found, "flat.png")


def test_models_are_modules(folder):
    assert isinstance(load_model("model.py:torch_encoder").model, nn.Module)
