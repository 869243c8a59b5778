"""The recipe "images": a small Vision Transformer, timm's own class, on 28 x 28 images.

What the arms of one seed share, bit for bit, and what makes it so:

* every non-attention tensor: the model is built under the seed before any scheme touches it, and a scheme writes
  attention only (a run records a digest of all other tensors, and what its scheme changed);
* the order of the examples and the augmentation: each has its own stream, keyed by (seed, purpose, epoch or step);
* dropout and its kin, which can only read the global torch state: `training.train` sets that to a function of the
  seed before the first step, after all initialisation and measuring.

Bits are equal on one machine type with one number of threads; a study's workers have one each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kappaone import streams
from kappaone.errors import MissingExtra, SpecError
from kappaone.recipes.data import ImageData, find_images, load_images
from kappaone.recipes.health import attention_metrics
from kappaone.recipes.recipe import NO_ARM, Recipe, StudyDefaults, options_to_dict
from kappaone.recipes.record import Clock, digests, write_record
from kappaone.recipes.training import Batch, BatchOrder, TrainingOptions, train


@dataclass(frozen=True)
class ImageOptions(TrainingOptions):
    """Options of the recipe "images"; those of `TrainingOptions` come first.

    Attributes:
        dataset: "auto" (Fashion-MNIST where its files are found, else MNIST-5k), "mnist-5k" or "fashion-mnist".
        data_path: where the files are, if not where they usually are.
        train_size: training images that are used, evenly over the classes; None for all.
        test_size: the same for the test images.
        shift: augmentation: each training image is moved by up to so many pixels along each axis; 0 for none.
        patch_size: side of a patch in pixels; divides 28.
        embed_dim: width D of the tokens.
        depth: number of blocks.
        heads: attention heads; divides `embed_dim`.
        mlp_ratio: width of the MLP over `embed_dim`.
        pool: what the classifier reads: "token" (the class token) or "avg" (the mean of the patches).
        drop_rate: dropout of the embedded tokens, after attention, inside the MLP and before the classifier.
        attention_drop_rate: dropout of the attention probabilities.
        drop_path_rate: stochastic depth of the last block; it grows linearly from 0 at the first.
        label_smoothing: of the training loss.
        probe_images: test images on which attention is measured before and after training; 0 for no measuring.
        jacobian_images: of these, images on which kappa of the attention Jacobian is measured too.

    Raises:
        SpecError: a value outside its range.

    Examples:
        >>> ImageOptions(patch_size=5)
        Traceback (most recent call last):
        ...
        kappaone.errors.SpecError: option patch_size is 5; expected a divisor of 28
          what to do: correct patch_size
    """

    dataset: str = "auto"
    data_path: str | None = None
    train_size: int | None = None
    test_size: int | None = None
    shift: int = 0
    patch_size: int = 7
    embed_dim: int = 64
    depth: int = 4
    heads: int = 4
    mlp_ratio: float = 4.0
    pool: str = "token"
    drop_rate: float = 0.0
    attention_drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    label_smoothing: float = 0.0
    probe_images: int = 4
    jacobian_images: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("patch_size", "embed_dim", "depth", "heads"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(28 % self.patch_size == 0, "patch_size", "a divisor of 28")
        self.require(self.embed_dim % self.heads == 0, "heads", f"a divisor of embed_dim={self.embed_dim}")
        self.require(self.mlp_ratio > 0, "mlp_ratio", "more than 0")
        self.require(self.pool in ("token", "avg"), "pool", "'token' or 'avg'")
        self.require(0 <= self.shift < 28, "shift", "from 0 to 27 pixels")
        for name in ("drop_rate", "attention_drop_rate", "drop_path_rate", "label_smoothing"):
            self.require(0 <= getattr(self, name) < 1, name, "from 0 to less than 1")
        self.require(0 <= self.probe_images <= 1000, "probe_images", "from 0 to 1000")
        self.require(self.jacobian_images >= 0, "jacobian_images", "at least 0")


def build_model(options: ImageOptions, seed: int) -> nn.Module:
    """A fresh Vision Transformer on the CPU, as timm itself initialises it; the global random state is left alone.

    Args:
        options: patch, width, depth, heads, dropout.
        seed: fixes every tensor.

    Returns:
        `timm.models.vision_transformer.VisionTransformer`: (n, 1, 28, 28) to (n, 10).

    Raises:
        MissingExtra: timm is not installed.

    Examples:
        >>> model = build_model(ImageOptions(embed_dim=16, depth=1, heads=2), seed=0)
        >>> tuple(model(torch.zeros(3, 1, 28, 28)).shape)
        (3, 10)
    """
    try:
        from timm.models.vision_transformer import VisionTransformer
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "timm":
            raise
        raise MissingExtra("the recipe 'images'", "timm", "train") from error
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.check_seed(seed))
        model: nn.Module = VisionTransformer(
            img_size=28,
            patch_size=options.patch_size,
            in_chans=1,
            num_classes=10,
            embed_dim=options.embed_dim,
            depth=options.depth,
            num_heads=options.heads,
            mlp_ratio=options.mlp_ratio,
            global_pool=options.pool,
            class_token=options.pool == "token",
            drop_rate=options.drop_rate,
            pos_drop_rate=options.drop_rate,
            proj_drop_rate=options.drop_rate,
            attn_drop_rate=options.attention_drop_rate,
            drop_path_rate=options.drop_path_rate,
        )
    return model


def load_data(options: ImageOptions) -> ImageData:
    """The images that the options name; see `load_images`."""
    return load_images(
        options.dataset, path=options.data_path, train_size=options.train_size, test_size=options.test_size
    )


def evaluate(model: nn.Module, data: ImageData, options: ImageOptions) -> dict[str, float]:
    """Accuracy (a fraction) and mean cross-entropy (nats) on the test images.

    Args:
        model: the model, in evaluation mode.
        data: the images.
        options: `evaluation_batch_size` is used.

    Returns:
        {"test_accuracy", "test_loss"}.
    """
    device = next(model.parameters()).device
    right, total = 0, 0.0
    size = options.evaluation_batch_size
    for begin in range(0, len(data.test_labels), size):
        labels = data.test_labels[begin : begin + size].to(device)
        scores = model(data.test_images[begin : begin + size].to(device)).float()
        right += int((scores.argmax(dim=1) == labels).sum())
        total += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
    return {"test_accuracy": right / len(data.test_labels), "test_loss": total / len(data.test_labels)}


def training_batches(data: ImageData, options: ImageOptions, seed: int) -> Callable[[int], Batch]:
    """The training batches as a function of the step, counted from 0; a function of the seed alone.

    Args:
        data: the images.
        options: `batch_size` and `shift` are used.
        seed: the run's seed.

    Returns:
        A callable: step to images (batch_size, 1, 28, 28) and labels (batch_size,).
    """
    order = BatchOrder(len(data.train_labels), options.batch_size, seed)

    def batch(step: int) -> Batch:
        rows = torch.from_numpy(order.indices(step))
        images = data.train_images[rows]
        if options.shift:
            drawn = streams.generator(seed, "recipes", "shift", step).integers(
                -options.shift, options.shift, size=(len(rows), 2), endpoint=True
            )
            images = shift_images(images, torch.from_numpy(drawn), fill=data.black)
        return images, data.train_labels[rows]

    return batch


def shift_images(images: Tensor, offsets: Tensor, *, fill: float) -> Tensor:
    """Move each image by its own whole number of pixels down and to the right.

    Args:
        images: (n, channels, height, width).
        offsets: (n, 2) integers: down, right; negative for up, left.
        fill: value of the pixels that come in from outside.

    Returns:
        (n, channels, height, width).

    Examples:
        >>> image = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
        >>> shift_images(image, torch.tensor([[1, 0]]), fill=0.0)[0, 0].tolist()
        [[0.0, 0.0], [1.0, 2.0]]
    """
    count, _, height, width = images.shape
    margin = int(offsets.abs().max()) if count else 0
    padded = nn.functional.pad(images, (margin,) * 4, value=fill)
    rows = margin - offsets[:, :1] + torch.arange(height)  # (n, height)
    columns = margin - offsets[:, 1:] + torch.arange(width)  # (n, width)
    picked = padded[torch.arange(count)[:, None, None], :, rows[:, :, None], columns[:, None, :]]
    return picked.movedim(-1, 1)  # the index lists come first: (n, height, width, channels)


def run(spec: Mapping[str, Any], emit: Callable[[dict[str, Any]], None]) -> dict[str, float]:
    """Train one arm with one seed; the entry point of a study's worker.

    The options of the spec are those of `ImageOptions`, and "preset" (default "tiny"), whose values they replace.
    Beside the metrics, `record.json` is written into the run's folder: the data (name, sizes, hashes), the report of
    the initialisation, a digest of all tensors outside attention, where the seconds went, and why a measurement is
    missing, if one is. The global torch state is as before when the run ends.

    Args:
        spec: {"arm": scheme or "none", "seed": int, "options": {...}, "out": folder (optional)}.
        emit: receives the metrics by step.

    Returns:
        The last value of each metric.

    Raises:
        SpecError: the spec lacks an arm or a seed, or an option is wrong.
        KappaoneError: data, libraries or the scheme's own conditions are missing.
    """
    clock = Clock()
    for key in ("arm", "seed"):
        if key not in spec:
            raise SpecError(f"the run's spec has no {key!r}: it has {', '.join(spec)}", f"add {key!r}")
    arm, seed = str(spec["arm"]), streams.check_seed(spec["seed"])
    given = dict(spec.get("options") or {})
    options: ImageOptions = RECIPE.make_options(given.pop("preset", "tiny"), **given)
    data = load_data(options)
    # Spread over the test images, which are in the order of their classes: always the same ones.
    probe = data.test_images[torch.linspace(0, len(data.test_images) - 1, options.probe_images).long()]
    clock.lap("data")
    devices = list(range(torch.cuda.device_count()))
    with torch.random.fork_rng(devices=devices):
        model = build_model(options, seed)
        clock.lap("build")
        initialised = _initialise(model, arm, seed, probe if len(probe) else data.test_images[:1])
        clock.lap("initialise")
        left_out: dict[str, dict[str, str]] = {}
        metrics: dict[str, float] = {}

        def measure(step: int, when: str) -> None:
            if len(probe) == 0:
                left_out[when] = {"all": "probe_images is 0"}
                return
            found, left_out[when] = attention_metrics(model, probe, jacobian_examples=options.jacobian_images)
            metrics.update(found)
            if found:
                emit({"step": step, **found})

        measure(0, "first")
        clock.lap("inspect")
        outcome = train(
            model,
            options,
            seed=seed,
            batch=training_batches(data, options, seed),
            loss=nn.CrossEntropyLoss(label_smoothing=options.label_smoothing),
            evaluate=lambda current: evaluate(current, data, options),
            emit=emit,
        )
        clock.lap("loop")
        if outcome.diverged:
            left_out["last"] = {"all": f"the run diverged by step {outcome.steps}"}
        else:
            measure(outcome.steps, "last")
        clock.lap("inspect")
    record = {
        "recipe": RECIPE.name,
        "arm": arm,
        "seed": seed,
        "options": options_to_dict(options),
        "data": data.record(),
        "initialisation": initialised,
        "left_out": {when: why for when, why in left_out.items() if why},
        "diverged": outcome.diverged,
        "steps": outcome.steps,
        "device": outcome.device,
        "processes": outcome.processes,
        "threads": torch.get_num_threads(),
        "seconds": {**clock.seconds, **outcome.seconds},
    }
    if spec.get("out"):
        write_record(Path(spec["out"]), record)
    return {**metrics, **outcome.metrics}


def _initialise(model: nn.Module, arm: str, seed: int, example: Tensor) -> dict[str, Any]:
    before = digests(model)[1]
    report = None
    if arm != NO_ARM:
        from kappaone.apply import init_

        report = init_(model, arm, seed=seed, example=example).to_dict()
    digest, after = digests(model)
    return {
        "scheme": arm,
        "report": report,
        "changed": [name for name in after if after[name] != before[name]],
        "non_attention_sha256": digest,
    }


def _resolve(options: ImageOptions) -> ImageOptions:
    """Settle which data are meant, so that every run of a study, on whatever machine, reads the same."""
    name, _ = find_images(options.dataset, path=options.data_path)
    path = None if options.data_path is None else str(Path(options.data_path).expanduser().absolute())
    return replace(options, dataset=name, data_path=path)


RECIPE = Recipe(
    name="images",
    summary="a small Vision Transformer (timm) on 28 x 28 images: MNIST-5k, or Fashion-MNIST where it is found",
    run="kappaone.recipes.images:run",
    options=ImageOptions,
    presets={
        # Seconds, for tests: nothing can be concluded from it.
        "smoke": {
            "steps": 6,
            "warmup_steps": 2,
            "batch_size": 16,
            "evaluate_every": 1,
            "learning_rate": 3e-3,
            "train_size": 200,
            "test_size": 100,
            "embed_dim": 16,
            "depth": 2,
            "heads": 2,
            "pool": "avg",
            "probe_images": 1,
            "device": "cpu",
        },
        "tiny": {
            # 56 runs of the default study, two at a time on one thread each, take under six minutes on two quiet cores.
            "steps": 100,
            "warmup_steps": 10,
            "batch_size": 64,
            "evaluate_every": 10,
            # Chosen for the library's own initialization, on the tuning seeds 100 and 101 (never those of a study), from
            # 2e-3, 4e-3, 6e-3, 8e-3 and 12e-3: mean test accuracy .667, .692, .686, .686 and .661 after 120 steps (a flat top).
            "learning_rate": 4e-3,
            "test_size": 1000,
            "embed_dim": 64,
            "depth": 4,
            "heads": 4,
            "pool": "avg",
            "probe_images": 1,
            "device": "cpu",
        },
    },
    build_model=build_model,
    load_data=load_data,
    evaluate=evaluate,
    resolve=_resolve,
    study=StudyDefaults(
        arms=(
            "default",
            "default(redraw)",
            "conditioned",
            "conditioned(scale=matched)",
            "default(scale=conditioned)",
            "default(std=faithful)",
            "mimetic",
        ),
        reference="default",
        noise_arm="default(redraw)",
        metric="test_accuracy",
        higher_is_better=True,
        # Half a point of accuracy: five of the thousand test images.
        margin=0.005,
        tracked=("kappa_J", "kappa_P", "logit_std", "relative_entropy"),
        target_window=3,
        # A curve that still rises at its end, as these short ones do, cannot stay above its own last value for three
        # evaluations. The mean of its last five smoothed evaluations (of nine) is one that a rising curve reaches, the reference too.
        target_tail=0.6,
    ),
)
