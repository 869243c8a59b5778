"""The training loop of the recipes: AdamW, warm-up and cosine, on a fixed grid of evaluations, through Accelerate.

Accelerate places the model (CPU, GPU, several processes), scales mixed precision and clips gradients; what is left
here is the order of events, which a paired study needs to know exactly:

* the batch of a step is a function of (seed, step), asked of the caller; nothing is drawn by the loop;
* the global torch state, which only dropout and its kin read, is set to a function of the seed before the first
  step, so that an arm that drew more or fewer numbers while it was initialised cannot shift it;
* evaluation happens at the same steps in every run: 0, every `evaluate_every`, and the last.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaone import streams
from kappaone.errors import MissingExtra, SpecError, StudyError

Batch = tuple[Tensor, Tensor]
Metrics = dict[str, float]


@dataclass(frozen=True)
class TrainingOptions:
    """How long and how to train; every recipe's options start with these.

    Attributes:
        steps: optimizer steps.
        batch_size: examples a step, over all processes together.
        learning_rate: the peak, reached at the end of the warm-up.
        final_learning_rate: where the cosine ends.
        warmup_steps: steps of linear warm-up from a hundredth of the peak.
        weight_decay: AdamW's, on weights of two or more axes; not on biases, norms, position and class tokens.
        beta1: AdamW's decay of the first moment.
        beta2: AdamW's decay of the second moment.
        clip_norm: largest gradient norm; None for no clipping.
        evaluate_every: evaluate at step 0, at every multiple of this, and at the last step.
        evaluation_batch_size: examples a forward pass when evaluating; changes the speed only.
        device: "auto" (Accelerate's choice) or "cpu".
        mixed_precision: "no", "bf16" or "fp16".

    Raises:
        SpecError: a value outside its range.

    Examples:
        >>> TrainingOptions(steps=25, warmup_steps=5, evaluate_every=10).evaluation_steps()
        (0, 10, 20, 25)
    """

    steps: int = 1000
    batch_size: int = 64
    learning_rate: float = 1e-3
    final_learning_rate: float = 0.0
    warmup_steps: int = 100
    weight_decay: float = 0.05
    beta1: float = 0.9
    beta2: float = 0.999
    clip_norm: float | None = 1.0
    evaluate_every: int = 50
    evaluation_batch_size: int = 125
    device: str = "auto"
    mixed_precision: str = "no"

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "evaluate_every", "evaluation_batch_size"):
            self.require(getattr(self, name) >= 1, name, "at least 1")
        self.require(self.learning_rate > 0, "learning_rate", "more than 0")
        self.require(
            0 <= self.final_learning_rate <= self.learning_rate, "final_learning_rate", "from 0 to learning_rate"
        )
        self.require(0 <= self.warmup_steps < self.steps, "warmup_steps", f"from 0 to less than steps={self.steps}")
        self.require(self.weight_decay >= 0, "weight_decay", "at least 0")
        self.require(0 <= self.beta1 < 1, "beta1", "from 0 to less than 1")
        self.require(0 <= self.beta2 < 1, "beta2", "from 0 to less than 1")
        self.require(self.clip_norm is None or self.clip_norm > 0, "clip_norm", "more than 0, or None")
        self.require(self.device in ("auto", "cpu"), "device", "'auto' or 'cpu'")
        self.require(self.mixed_precision in ("no", "bf16", "fp16"), "mixed_precision", "'no', 'bf16' or 'fp16'")

    def require(self, holds: bool, name: str, expected: str) -> None:
        """Raise a SpecError that names the option, its value and the expectation, unless `holds`."""
        if not holds:
            raise SpecError(f"option {name} is {getattr(self, name)!r}; expected {expected}", f"correct {name}")

    def evaluation_steps(self) -> tuple[int, ...]:
        """The steps after which the model is evaluated, ascending; 0 is before the first one."""
        return tuple(sorted({*range(0, self.steps, self.evaluate_every), self.steps}))


@dataclass(frozen=True)
class TrainingOutcome:
    """What a training run came to.

    Attributes:
        metrics: the last value of each metric.
        steps: the step of the last evaluation.
        diverged: a training loss or an evaluation was not finite; the run stopped there.
        device: where it ran.
        processes: how many processes shared each batch.
        seconds: time spent in "train" and in "evaluate".
    """

    metrics: Metrics
    steps: int
    diverged: bool
    device: str
    processes: int
    seconds: dict[str, float] = field(default_factory=dict)


class BatchOrder:
    """The order of the training examples, a function of the seed alone.

    Each epoch is one permutation, drawn from its own keyed stream; batches are cut from their concatenation, so that
    every batch has the full size and every example comes equally often.

    Args:
        size: number of training examples.
        batch_size: examples a batch.
        seed: the run's seed.

    Examples:
        >>> order = BatchOrder(6, 4, seed=0)
        >>> sorted(int(i) for step in range(3) for i in order.indices(step))
        [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    """

    def __init__(self, size: int, batch_size: int, seed: int) -> None:
        if size < 1:
            raise SpecError(f"there are {size} training examples; expected at least 1", "name data with examples")
        self.size = size
        self.batch_size = batch_size
        self.seed = seed
        self._epoch: tuple[int, NDArray[np.int64]] = (-1, np.empty(0, dtype=np.int64))

    def indices(self, step: int) -> NDArray[np.int64]:
        """Indices of the batch of one step (counted from 0): (batch_size,) int64."""
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size)
        picked = np.empty(self.batch_size, dtype=np.int64)
        for epoch in range(int(positions[0]) // self.size, int(positions[-1]) // self.size + 1):
            here = positions // self.size == epoch
            picked[here] = self._permutation(epoch)[positions[here] % self.size]
        return picked

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if self._epoch[0] != epoch:
            drawn = streams.generator(self.seed, "recipes", "order", epoch).permutation(self.size)
            self._epoch = (epoch, drawn)
        return self._epoch[1]


def train(
    model: nn.Module,
    options: TrainingOptions,
    *,
    seed: int,
    batch: Callable[[int], Batch],
    loss: Callable[[Tensor, Tensor], Tensor],
    evaluate: Callable[[nn.Module], Metrics],
    emit: Callable[[dict[str, Any]], None],
) -> TrainingOutcome:
    """Train a model in place and emit its metrics on the fixed grid of evaluations.

    The global torch random state is set before the first step and left where the run leaves it: a caller who needs
    his own wraps the call in `torch.random.fork_rng()`.

    Args:
        model: the model; on return it is on the device of the run, in training mode as it was.
        options: length, rates, grid.
        seed: fixes the global torch state (dropout) before the first step.
        batch: gives inputs and targets of one step, counted from 0, with the batch axis first.
        loss: maps outputs and targets to a scalar.
        evaluate: metrics of the model, called in evaluation mode, without gradients; the names must not be
            "train_loss" or "grad_norm".
        emit: receives {"step", "train_loss", "grad_norm", ...}: the mean loss and the mean gradient norm (before
            clipping; left out without clipping) of the steps since the last evaluation, and the metrics of
            `evaluate`. At step 0 there are only the latter.

    Returns:
        The outcome. A run whose loss is not finite stops at the next evaluation, with `diverged` set.

    Raises:
        MissingExtra: Accelerate is not installed.
        StudyError: a batch that does not divide over the processes, or a device that cannot be had.
    """
    accelerator = _accelerator(options)
    shown, of = accelerator.process_index, accelerator.num_processes
    if options.batch_size % of:
        raise StudyError(
            f"batch_size {options.batch_size} does not divide over {of} processes",
            f"use a multiple of {of}, so that each step sees the same examples at any number of processes",
        )
    optimizer = _optimizer(model, options)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, options))
    was_training = model.training
    prepared, optimizer = accelerator.prepare(model, optimizer)
    seconds = {"train": 0.0, "evaluate": 0.0}
    metrics: Metrics = {}

    def evaluated(step: int, losses: list[Tensor], norms: list[Tensor]) -> bool:
        started = time.perf_counter()
        line = _mean({"train_loss": losses, "grad_norm": norms})
        prepared.eval()
        with torch.inference_mode():
            line |= evaluate(prepared)
        prepared.train(was_training)
        metrics.update(line)
        if accelerator.is_main_process:
            emit({"step": step, **line})
        seconds["evaluate"] += time.perf_counter() - started
        # A gradient norm may overflow under fp16, where the scaler then skips the step: it is no sign by itself.
        return all(math.isfinite(value) for name, value in line.items() if name != "grad_norm")

    torch.manual_seed(int(streams.generator(seed, "recipes", "dropout").integers(2**63)))
    grid = options.evaluation_steps()
    finite = evaluated(0, [], [])
    done = 0
    for end in grid[1:]:
        if not finite:
            break
        started = time.perf_counter()
        losses, norms = [], []
        for step in range(done, end):
            # Every process asks for the whole batch and takes its share: the union does not depend on their number.
            inputs, targets = (part[shown::of].to(accelerator.device) for part in batch(step))
            value = loss(prepared(inputs), targets)
            accelerator.backward(value)
            if options.clip_norm is not None and accelerator.sync_gradients:
                norms.append(accelerator.clip_grad_norm_(prepared.parameters(), options.clip_norm).detach())
            optimizer.step()
            if not optimizer.step_was_skipped:
                schedule.step()
            optimizer.zero_grad()
            losses.append(accelerator.reduce(value.detach(), "mean"))
        done = end
        seconds["train"] += time.perf_counter() - started
        finite = evaluated(end, losses, norms)
    return TrainingOutcome(
        metrics=metrics,
        steps=done,
        diverged=not finite,
        device=str(accelerator.device),
        processes=of,
        seconds=seconds,
    )


def learning_rate_factor(step: int, options: TrainingOptions) -> float:
    """The learning rate of a step (counted from 0) over the peak: linear warm-up, then half a cosine.

    Examples:
        >>> options = TrainingOptions(steps=101, warmup_steps=10)
        >>> [round(learning_rate_factor(s, options), 2) for s in (0, 10, 55, 100)]
        [0.01, 1.0, 0.5, 0.0]
    """
    if step < options.warmup_steps:
        return 0.01 + 0.99 * step / options.warmup_steps
    # The last step that is taken is steps - 1; the schedule is asked once more, after it.
    span = max(options.steps - 1 - options.warmup_steps, 1)
    share = min((step - options.warmup_steps) / span, 1.0)
    floor = options.final_learning_rate / options.learning_rate
    return floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2


def _accelerator(options: TrainingOptions) -> Any:
    try:
        from accelerate import Accelerator
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "accelerate":
            raise
        raise MissingExtra("training a recipe", "accelerate", "train") from error
    accelerator = Accelerator(cpu=options.device == "cpu", mixed_precision=options.mixed_precision)
    if options.device == "cpu" and accelerator.device.type != "cpu":
        raise StudyError(
            f"device='cpu' was asked for, but this process already trains on {accelerator.device}",
            "start the run in a process of its own",
        )
    return accelerator


def _optimizer(model: nn.Module, options: TrainingOptions) -> torch.optim.Optimizer:
    # timm's models name what no one decays (position and class tokens) in this method.
    named = getattr(model, "no_weight_decay", None)
    kept: Iterable[str] = named() if callable(named) else ()
    groups: Mapping[bool, list[nn.Parameter]] = {True: [], False: []}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[parameter.ndim > 1 and name not in set(kept)].append(parameter)
    return torch.optim.AdamW(
        [
            {"params": groups[True], "weight_decay": options.weight_decay},
            {"params": groups[False], "weight_decay": 0.0},
        ],
        lr=options.learning_rate,
        betas=(options.beta1, options.beta2),
        fused=True,  # one kernel instead of fifty small ones: 5 ms a step less at the smallest size
    )


def _mean(values: dict[str, list[Tensor]]) -> Metrics:
    return {name: float(torch.stack(list(rows)).double().mean()) for name, rows in values.items() if len(rows) > 0}
