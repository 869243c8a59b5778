"""Run a module in float64: its inputs, what it makes itself, and without the clamps and casts that stand in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


@contextmanager
def double_precision() -> Iterator[None]:
    """Meanwhile what a module makes itself is in float64, and what it casts to float32 stays so.

    Else float64 and float32 meet in one product (Gemma 4's audio), and masks of the dtype's smallest number overflow
    (CANINE, XGLM).
    """
    usual = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Uncast():
            yield
    finally:
        torch.set_default_dtype(usual)


class _Uncast(TorchFunctionMode):
    """Casts to float32 become casts to float64."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is Tensor.float:
            func = Tensor.double
        wide = {key: _widened(value) for key, value in (kwargs or {}).items()}
        return func(*map(_widened, args), **wide)


def _widened(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


class Unclamped(TorchFunctionMode):
    """Leaves out clamps, behind which a value row that is changed much is no longer linear."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func in (torch.clamp, Tensor.clamp, torch.clip, Tensor.clip) and args:
            return args[0]
        return func(*args, **(kwargs or {}))


def doubled(value: Any) -> Any:
    """Floating tensors in float64, wherever they are in the inputs; key/value caches, which remember calls, left out."""
    if hasattr(value, "get_seq_length"):
        return None
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple):
        return tuple(map(doubled, value))
    if isinstance(value, list):
        return list(map(doubled, value))
    if isinstance(value, dict):
        return {key: doubled(item) for key, item in value.items()}
    return value
