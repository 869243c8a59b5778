"""Calls that must end in a clear error, with nothing changed, or must work all the same."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import kappaone
from kappaone.apply.write import rounded
from kappaone.errors import SpecError, WriteError


def _model(layers: int = 2) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 16, batch_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)


@pytest.mark.parametrize("model", [None, "timm:vit", 3, [nn.Linear(2, 2)], _model])
def test_what_is_no_module_is_refused(model: Any) -> None:
    with pytest.raises(SpecError, match=r"expected a torch\.nn\.Module"):
        kappaone.init_(model, seed=0)


@pytest.mark.parametrize("prefix", [None, 3])
def test_a_prefix_is_a_string(prefix: Any) -> None:
    with pytest.raises(SpecError, match="prefix"):
        kappaone.init_(_model(), seed=0, prefix=prefix)


@pytest.mark.parametrize(
    "scheme",
    [
        "default(std=0)",
        "default(std=-1)",
        "default(std=faithful, paper_width=0)",
        "default(std=faithful, paper_width=-5)",
        "conditioned(scale=1e999)",
        "conditioned(scale=logit(1e999))",
        "default(scale=conditioned(layers=0))",
        "conditioned(scale=" * 3000,
    ],
)
def test_schemes_without_a_meaning_are_refused(scheme: str) -> None:
    with pytest.raises(SpecError):
        kappaone.init_(_model(), scheme, seed=0)


def test_values_that_would_vanish_or_overflow_name_their_block() -> None:
    for scheme, word in (("conditioned(scale=1e-300)", "round to zero"), ("conditioned(scale=1e39)", "not finite")):
        with pytest.raises(WriteError, match=rf"in_proj_weight.*{word}"):
            kappaone.init_(_model(), scheme, seed=0)
    assert not rounded(torch.zeros(2), torch.float16).any()  # zeros that were meant stay allowed


def test_nan_weights_cannot_be_rescaled() -> None:
    model = _model()
    with torch.no_grad():
        model.layers[0].self_attn.in_proj_weight[:] = float("nan")
    with pytest.raises(SpecError, match="NaN"):
        kappaone.init_(model, "default(std=faithful)", seed=0, overwrite=True)


def test_expanded_memory_is_refused() -> None:
    model = _model()
    model.layers[0].self_attn.in_proj_weight = nn.Parameter(torch.randn(96, 1).expand(96, 32))
    with pytest.raises(WriteError, match="expanded"):
        kappaone.init_(model, seed=0, overwrite=True)


def test_fake_tensors_are_refused() -> None:
    real = _model()
    with FakeTensorMode(allow_non_fake_inputs=True):
        with pytest.raises(WriteError, match="fake"):
            kappaone.init_(real, seed=0)
        fake = _model()
    with pytest.raises(WriteError, match="fake"):
        kappaone.init_(fake, seed=0)


def test_modes_of_the_caller_change_nothing() -> None:
    example = torch.randn(2, 5, 32)
    expected = _model()
    kappaone.init_(expected, seed=0)
    double = torch.get_default_dtype()
    for mode in (torch.no_grad(), torch.inference_mode(), torch.device("meta"), warnings.catch_warnings()):
        model = _model()
        with mode:
            warnings.simplefilter("error")
            str(kappaone.init_(model, seed=0, example=example, verify=True))
            assert kappaone.check(model)
        for ours, theirs in zip(model.parameters(), expected.parameters(), strict=True):
            assert torch.equal(ours, theirs)
        warnings.resetwarnings()
    assert torch.get_default_dtype() == double


@pytest.mark.parametrize("scheme", ["conditioned(scale=logit(1.0))", "unit_logits"])
def test_measured_gains_do_not_depend_on_the_thread_count(scheme: str) -> None:
    example = torch.randn(2, 65, 32, generator=torch.Generator().manual_seed(0))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            model = _model()
            kappaone.init_(model, scheme, seed=0, example=example)
            found.append(model.layers[1].self_attn.in_proj_weight.detach().clone())
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)


def test_two_threads_at_once() -> None:
    expected = _model(4)
    kappaone.init_(expected, seed=0)
    threads = torch.get_num_threads()
    models = [_model(4) for _ in range(4)]
    workers = [threading.Thread(target=kappaone.init_, args=(model,), kwargs={"seed": 0}) for model in models]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert torch.get_num_threads() == threads
    for model in models:
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))


@pytest.mark.skipif(os.name == "nt", reason="signals to oneself")
def test_a_signal_at_any_moment_leaves_all_or_nothing() -> None:
    expected = _model(6)
    kappaone.init_(expected, seed=0)
    threads, hits = torch.get_num_threads(), 0
    for step in range(12):
        model = _model(6)
        before = [p.detach().clone() for p in model.parameters()]
        timer = threading.Timer(0.002 * step, os.kill, (os.getpid(), signal.SIGINT))
        try:
            timer.start()
            kappaone.init_(model, seed=0)
            timer.join()
            after = [p.detach() for p in expected.parameters()]
        except KeyboardInterrupt:
            after, hits = before, hits + 1
        ours = list(model.parameters())
        whole = all(torch.equal(a, b) for a, b in zip(ours, after, strict=True))
        # The interrupt may also come just after everything was written.
        done = all(torch.equal(a, b) for a, b in zip(ours, expected.parameters(), strict=True))
        assert whole or done
        assert torch.get_num_threads() == threads
    assert hits
