"""The image recipe: what the arms of a seed share, bit for bit, and what a run leaves behind."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from kappaone.errors import MissingExtra, SpecError
from kappaone.recipes import load_images
from kappaone.recipes.images import (
    RECIPE,
    ImageOptions,
    build_model,
    evaluate,
    run,
    shift_images,
    training_batches,
)

from .runs import lines_of

STREAMS = {"drop_rate": 0.2, "attention_drop_rate": 0.1, "drop_path_rate": 0.1, "shift": 2}
ARMS = [*RECIPE.study.arms, "none"] if RECIPE.study else []


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("options", [{}, STREAMS], ids=["plain", "dropout and augmentation"])
def test_the_default_arm_and_no_arm_have_the_same_curves(options: dict[str, Any]) -> None:
    default, none = lines_of("default", **options), lines_of("none", **options)
    assert default == none
    assert len(default) == 9  # attention before, seven evaluations, attention after
    assert lines_of("none", seed=1, **options) != none


def test_the_curves_are_the_same_in_another_process() -> None:
    here = Path(__file__).parent
    command = [sys.executable, "-m", "recipes.runs", "default", "3", json.dumps(STREAMS)]
    found = subprocess.run(command, cwd=here.parent, capture_output=True, text=True, check=True)
    assert json.loads(found.stdout) == lines_of("none", 3, **STREAMS)


def test_arms_share_every_tensor_outside_attention(tmp_path: Path) -> None:
    records = {}
    for arm in ARMS:
        options = {"preset": "smoke", "steps": 1, "warmup_steps": 0, "probe_images": 0}
        run({"arm": arm, "seed": 5, "options": options, "out": str(tmp_path)}, lambda line: None)
        records[arm] = json.loads((tmp_path / "record.json").read_text())
    changed = {arm: record["initialisation"]["changed"] for arm, record in records.items()}
    assert changed["none"] == changed["default"] == []
    model = build_model(RECIPE.make_options("smoke"), 5)
    attention = {name for name, _ in model.named_parameters() if ".attn." in name}
    for arm, names in changed.items():
        assert set(names) <= attention, arm
        if arm not in ("none", "default"):
            assert names, arm
    digests = {record["initialisation"]["non_attention_sha256"] for record in records.values()}
    assert len(digests) == 1


def test_the_shared_tensors_are_those_of_the_librarys_own_model() -> None:
    from timm.models.vision_transformer import VisionTransformer

    options = RECIPE.make_options("smoke")
    torch.manual_seed(11)
    own = VisionTransformer(
        img_size=28,
        patch_size=options.patch_size,
        in_chans=1,
        num_classes=10,
        embed_dim=16,
        depth=2,
        num_heads=2,
        class_token=False,
        global_pool="avg",
    )
    assert options.pool == "avg"
    ours = build_model(options, 11).state_dict()
    assert list(ours) == list(own.state_dict())
    for name, tensor in own.state_dict().items():
        assert torch.equal(ours[name], tensor), name


def test_a_run_leaves_every_global_random_state_alone() -> None:
    torch.manual_seed(1)
    states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()  # noqa: NPY002
    lines_of("conditioned", **STREAMS)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.random.get_state()[1].tolist() == states[1]  # noqa: NPY002
    assert random.getstate() == states[2]


def test_training_batches_are_a_function_of_seed_and_step() -> None:
    data = load_images("mnist-5k", train_size=50, test_size=10)
    options = ImageOptions(batch_size=8, shift=2)
    first = training_batches(data, options, seed=1)(6)
    torch.manual_seed(99)
    again = training_batches(data, options, seed=1)
    again(9)
    assert all(torch.equal(a, b) for a, b in zip(first, again(6), strict=True))
    assert not torch.equal(first[0], training_batches(data, options, seed=2)(6)[0])
    plain = training_batches(data, ImageOptions(batch_size=8), seed=1)(6)
    assert torch.equal(plain[1], first[1])  # augmentation does not touch the order
    assert not torch.equal(plain[0], first[0])
    # some shift of at most two pixels turns the plain image into the augmented one
    for before, after in zip(plain[0], first[0], strict=True):
        tried = [
            shift_images(before[None], torch.tensor([[down, right]]), fill=data.black)[0]
            for down in range(-2, 3)
            for right in range(-2, 3)
        ]
        assert any(torch.equal(after, one) for one in tried)


def test_shift_moves_each_image_pixel_by_pixel() -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(9, 2, 5, 4, generator=generator)
    offsets = torch.randint(-3, 4, (9, 2), generator=generator)
    moved = shift_images(images, offsets, fill=-7.0)
    for n, channel, row, column in np.ndindex(*images.shape):
        r, c = row - int(offsets[n, 0]), column - int(offsets[n, 1])
        inside = 0 <= r < 5 and 0 <= c < 4
        assert moved[n, channel, row, column] == (images[n, channel, r, c] if inside else -7.0)


@pytest.mark.parametrize("batch", [7, 1000])
def test_evaluation_equals_a_float64_loop_over_images(batch: int) -> None:
    data = load_images("mnist-5k", train_size=20, test_size=30)
    options = RECIPE.make_options("smoke", evaluation_batch_size=batch)
    model = build_model(options, 0).eval()
    with torch.no_grad():
        found = evaluate(model, data, options)
        right, losses = 0, []
        exact = build_model(options, 0).double().eval()
        for image, label in zip(data.test_images, data.test_labels, strict=True):
            scores = exact(image[None].double())[0].numpy()
            right += int(np.argmax(scores)) == int(label)
            losses.append(math.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[int(label)])
    assert found["test_accuracy"] == right / 30
    assert found["test_loss"] == pytest.approx(np.mean(losses), rel=1e-5)


def test_a_run_says_what_it_was_made_of(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    spec = {"arm": "conditioned", "seed": 2, "options": {"preset": "smoke"}, "out": str(tmp_path)}
    metrics = run(spec, lines.append)
    record = json.loads((tmp_path / "record.json").read_text())
    assert (record["schema"], record["arm"], record["seed"]) == (1, "conditioned", 2)
    assert record["data"]["name"] == "mnist-5k"
    assert (record["data"]["train_size"], record["data"]["test_size"]) == (200, 100)
    assert all(len(digest) == 64 for digest in record["data"]["sha256"].values())
    assert record["options"]["steps"] == 6
    assert record["initialisation"]["report"]["schema"] >= 1
    assert {"data", "build", "initialise", "inspect", "train", "evaluate"} <= set(record["seconds"])
    assert [line["step"] for line in lines if "test_accuracy" in line] == [0, 1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "kappa_J" in line] == [0, 6]
    assert lines == sorted(lines, key=lambda line: line["step"])
    for name in ("kappa_J", "kappa_J_n", "kappa_P", "logit_std", "relative_entropy", "train_loss"):
        assert metrics[name] == next(line[name] for line in reversed(lines) if name in line)
    assert not list(tmp_path.glob(".*"))  # nothing half written is left


def test_a_run_that_diverges_says_so_and_is_not_measured(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = []
    options = {"preset": "smoke", "learning_rate": 1e30, "clip_norm": None, "warmup_steps": 0}
    metrics = run({"arm": "none", "seed": 0, "options": options, "out": str(tmp_path)}, lines.append)
    assert not math.isfinite(metrics["test_loss"])
    record = json.loads((tmp_path / "record.json").read_text())
    assert record["diverged"]
    assert "diverged" in record["left_out"]["last"]["all"]
    assert "kappa_J" not in lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stepz": 3}, "no option 'stepz' \\(did you mean 'steps'"),
        ({"steps": "many"}, "option steps is 'many'; expected int"),
        ({"preset": "huge"}, "no preset 'huge'"),
        ({"heads": 3}, "option heads is 3; expected a divisor of embed_dim=16"),
        ({"pool": "max"}, "option pool is 'max'; expected 'token' or 'avg'"),
        ({"shift": 28}, "option shift is 28; expected from 0 to 27"),
        ({"drop_rate": 1.0}, "option drop_rate is 1.0"),
    ],
)
def test_wrong_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        run({"arm": "none", "seed": 0, "options": {"preset": "smoke", **options}}, lambda line: None)


def test_an_incomplete_spec_is_refused() -> None:
    with pytest.raises(SpecError, match="no 'arm'"):
        run({"seed": 0}, lambda line: None)


def test_timm_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "timm"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtra, match=r"timm, which is not installed\n.*kappaone\[train\]"):
        build_model(ImageOptions(), 0)


def test_the_model_is_a_vision_transformer_with_plain_attention() -> None:
    model = build_model(RECIPE.make_options("tiny"), 0)
    assert isinstance(model, nn.Module)
    assert type(model).__module__ == "timm.models.vision_transformer"
    assert sum(".attn.qkv.weight" in name for name, _ in model.named_parameters()) == 4
