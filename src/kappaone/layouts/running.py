"""Run a model on an example for the sake of looking: no grad, dropout off, nothing left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from kappaone.errors import MeasureError
from kappaone.layouts.blocks import named_modules


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients and without torch's fused encoder path; every flag is put back as it was.

    The fused path of nn.TransformerEncoder runs attention without calling its module, so it is switched off. What
    modules remember in evaluation mode (LeViT's table of position biases) is forgotten again: it would be stale.
    """
    flags = [(module, module.training) for module in model.modules()]
    memories = [
        (held, dict(held))
        for module, _ in flags
        for name, held in vars(module).items()
        if type(held) is dict and not name.startswith("_")
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    try:
        for module, _ in flags:
            module.training = False
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.no_grad():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for module, training in flags:
            module.training = training
        for held, before in memories:
            held.clear()
            held.update(before)


@contextmanager
def hooked(
    modules: Mapping[str, nn.Module],
    before: Callable[[str], Callable[..., Any]],
    after: Callable[[str], Callable[..., Any]],
) -> Iterator[None]:
    """Forward hooks on modules: `before(name)` gets (module, args, kwargs), `after(name)` (module, args, kwargs, out)."""
    with ExitStack() as stack:
        for name, module in modules.items():
            stack.callback(module.register_forward_pre_hook(before(name), with_kwargs=True).remove)
            stack.callback(module.register_forward_hook(after(name), with_kwargs=True, always_call=True).remove)
        yield


def run(model: nn.Module, example: Any) -> Any:
    """Call the innermost model on an example: a tensor, a tuple of positional, or a mapping of keyword inputs.

    Raises:
        MeasureError: if the model does not accept the example.
    """
    inner = next(module for _, module in named_modules(model))
    try:
        if isinstance(example, Mapping):
            return inner(**example)
        return inner(*example) if isinstance(example, (tuple, list)) else inner(example)
    except MeasureError:
        raise
    except Exception as error:
        raise MeasureError(
            f"the model {type(inner).__name__} failed on the example ({_describe(example)}): "
            f"{type(error).__name__}: {error}",
            "pass an input as the model takes it: a tensor, a tuple of positional or a dict of keyword inputs",
        ) from error


def _describe(example: Any) -> str:
    if isinstance(example, torch.Tensor):
        return f"{tuple(example.shape)} {example.dtype}"
    if isinstance(example, Mapping):
        return "{" + ", ".join(f"{k}: {_describe(v)}" for k, v in example.items()) + "}"
    if isinstance(example, (tuple, list)):
        return "(" + ", ".join(map(_describe, example)) + ")"
    return type(example).__name__
