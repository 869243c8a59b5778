"""The training loop, against a plain float64 one written here, and its order of events."""

from __future__ import annotations

import math
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kappaone.errors import MissingExtra, SpecError
from kappaone.recipes.training import BatchOrder, TrainingOptions, learning_rate_factor, train

BASE: dict[str, Any] = {"device": "cpu", "warmup_steps": 0, "evaluate_every": 10**6}


def _constant(model: nn.Module) -> dict[str, float]:
    return {"test_loss": 1.0}


@given(size=st.integers(1, 23), batch=st.integers(1, 30), seed=st.integers(0, 2**64 - 1))
def test_every_example_comes_equally_often(size: int, batch: int, seed: int) -> None:
    order = BatchOrder(size, batch, seed)
    steps = 3 * size  # so that the batches fill whole epochs
    stream = np.concatenate([order.indices(step) for step in range(steps)])
    assert len(stream) == batch * steps
    for epoch in stream.reshape(-1, size):
        assert Counter(epoch.tolist()) == Counter(range(size))
    # any step can be asked for on its own, in any order
    assert BatchOrder(size, batch, seed).indices(steps - 1).tolist() == stream[-batch:].tolist()


def test_the_order_depends_on_the_seed_alone() -> None:
    first = BatchOrder(100, 10, 3).indices(7)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # the global state is what is tried here
    assert BatchOrder(100, 10, 3).indices(7).tolist() == first.tolist()
    assert BatchOrder(100, 10, 4).indices(7).tolist() != first.tolist()


def test_learning_rate_is_a_ramp_and_half_a_cosine() -> None:
    options = TrainingOptions(steps=50, warmup_steps=10, learning_rate=2.0, final_learning_rate=0.5)
    for step in range(51):
        if step < 10:
            expected = 0.02 + (2.0 - 0.02) * step / 10
        else:
            expected = 0.5 + 1.5 * math.cos(math.pi / 2 * min((step - 10) / 39, 1)) ** 2
        assert 2.0 * learning_rate_factor(step, options) == pytest.approx(expected, rel=1e-12)


def _plain_adamw(w: Any, b: Any, xs: Any, ys: Any, o: TrainingOptions) -> tuple[Any, Any, list[float], list[float]]:
    """Least squares by AdamW in float64, written out: gradients by hand, clipping, schedule, decoupled decay."""
    moments = [[np.zeros_like(w), np.zeros_like(w)], [np.zeros_like(b), np.zeros_like(b)]]
    losses, norms = [], []
    for t, (x, y) in enumerate(zip(xs, ys, strict=True)):
        residual = x @ w.T + b - y
        losses.append(float((residual**2).mean()))
        grads = [2 * residual.T @ x / residual.size, 2 * residual.sum(0) / residual.size]
        norm = math.sqrt(sum(float((g**2).sum()) for g in grads))
        norms.append(norm)
        if o.clip_norm is not None:
            grads = [g * min(1.0, o.clip_norm / (norm + 1e-6)) for g in grads]
        if t < o.warmup_steps:
            rate = o.learning_rate * (0.01 + 0.99 * t / o.warmup_steps)
        else:
            share = (t - o.warmup_steps) / (o.steps - 1 - o.warmup_steps)
            rate = o.learning_rate * (1 + math.cos(math.pi * share)) / 2
        w = w * (1 - rate * o.weight_decay)  # the bias is not decayed
        updates = []
        for (m, v), g in zip(moments, grads, strict=True):
            m *= o.beta1
            m += (1 - o.beta1) * g
            v *= o.beta2
            v += (1 - o.beta2) * g**2
            m_hat, v_hat = m / (1 - o.beta1 ** (t + 1)), v / (1 - o.beta2 ** (t + 1))
            updates.append(rate * m_hat / (np.sqrt(v_hat) + 1e-8))
        w, b = w - updates[0], b - updates[1]
    return w, b, losses, norms


@pytest.mark.parametrize("clip", [0.1, None])
def test_training_equals_a_plain_float64_loop(clip: float | None) -> None:
    options = TrainingOptions(
        **{**BASE, "warmup_steps": 4, "evaluate_every": 5},
        steps=15,
        batch_size=8,
        learning_rate=0.05,
        weight_decay=0.3,
        beta2=0.9,
        clip_norm=clip,
    )
    rng = np.random.default_rng(0)
    xs, ys = rng.standard_normal((15, 8, 3)), rng.standard_normal((15, 8, 2))
    model = nn.Linear(3, 2, dtype=torch.float64)
    start = [p.detach().numpy().copy() for p in (model.weight, model.bias)]
    lines: list[dict[str, Any]] = []
    outcome = train(
        model,
        options,
        seed=0,
        batch=lambda step: (torch.from_numpy(xs[step]), torch.from_numpy(ys[step])),
        loss=nn.functional.mse_loss,
        evaluate=_constant,
        emit=lines.append,
    )
    w, b, losses, norms = _plain_adamw(*start, xs, ys, options)
    np.testing.assert_allclose(model.weight.detach().numpy(), w, rtol=1e-9)
    np.testing.assert_allclose(model.bias.detach().numpy(), b, rtol=1e-9)
    assert [line["step"] for line in lines] == [0, 5, 10, 15]
    assert "train_loss" not in lines[0]
    for line, begin in zip(lines[1:], (0, 5, 10), strict=True):
        assert line["train_loss"] == pytest.approx(np.mean(losses[begin : begin + 5]), rel=1e-9)
        assert ("grad_norm" in line) == (clip is not None)
        if clip is not None:
            assert line["grad_norm"] == pytest.approx(np.mean(norms[begin : begin + 5]), rel=1e-9)
    assert (outcome.steps, outcome.diverged, outcome.processes) == (15, False, 1)
    assert outcome.metrics == {k: v for k, v in lines[-1].items() if k != "step"}


def test_dropout_does_not_see_what_was_drawn_before() -> None:
    options = TrainingOptions(**BASE, steps=3, batch_size=4, learning_rate=0.1)
    ends = []
    for drawn, seed in ((0, 0), (7, 0), (0, 1)):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5), nn.Linear(6, 1))
        torch.rand(drawn)  # an arm that draws more than another while it is initialised
        train(
            model,
            options,
            seed=seed,
            batch=lambda step: (torch.ones(4, 6) + step, torch.zeros(4, 1)),
            loss=nn.functional.mse_loss,
            evaluate=_constant,
            emit=lambda line: None,
        )
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(ends[0], ends[1])
    assert not torch.equal(ends[0], ends[2])


def test_a_loss_that_is_not_finite_ends_the_run_and_is_emitted() -> None:
    options = TrainingOptions(**{**BASE, "evaluate_every": 2}, steps=10, batch_size=4)
    lines: list[dict[str, Any]] = []
    outcome = train(
        nn.Linear(2, 1),
        options,
        seed=0,
        batch=lambda step: (torch.full((4, 2), math.inf if step == 3 else 1.0), torch.zeros(4, 1)),
        loss=nn.functional.mse_loss,
        evaluate=_constant,
        emit=lines.append,
    )
    assert outcome.diverged
    assert [line["step"] for line in lines] == [0, 2, 4]
    assert not math.isfinite(lines[-1]["train_loss"])
    assert not math.isfinite(outcome.metrics["train_loss"])


def test_evaluation_is_in_evaluation_mode_without_gradients_and_gives_the_mode_back() -> None:
    modes: list[tuple[bool, bool]] = []
    model = nn.Linear(2, 1)

    def evaluate(current: nn.Module) -> dict[str, float]:
        modes.append((current.training, torch.is_grad_enabled()))
        return {"test_loss": 0.0}

    train(
        model,
        TrainingOptions(**BASE, steps=1, batch_size=4),
        seed=0,
        batch=lambda step: (torch.ones(4, 2), torch.zeros(4, 1)),
        loss=nn.functional.mse_loss,
        evaluate=evaluate,
        emit=lambda line: None,
    )
    assert modes == [(False, False)] * 2
    assert model.training


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("steps", 0, "at least 1"),
        ("warmup_steps", 1000, "less than steps=1000"),
        ("learning_rate", 0.0, "more than 0"),
        ("final_learning_rate", 1.0, "from 0 to learning_rate"),
        ("beta2", 1.0, "less than 1"),
        ("clip_norm", 0.0, "more than 0, or None"),
        ("device", "gpu", "'auto' or 'cpu'"),
        ("mixed_precision", "fp8", "'bf16'"),
    ],
)
def test_wrong_options_are_named(option: str, value: Any, expected: str) -> None:
    with pytest.raises(SpecError, match=f"option {option} is {value!r}; expected .*{expected}"):
        TrainingOptions(**{option: value})


def test_accelerate_missing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingExtra, match=r"accelerate, which is not installed\n.*kappaone\[train\]"):
        train(
            nn.Linear(1, 1),
            TrainingOptions(**BASE, steps=1),
            seed=0,
            batch=lambda step: (torch.ones(64, 1), torch.ones(64, 1)),
            loss=nn.functional.mse_loss,
            evaluate=_constant,
            emit=lambda line: None,
        )
