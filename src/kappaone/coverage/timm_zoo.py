"""timm's architectures: their names, each on the meta device, and each as a small instance that runs on the CPU.

A small instance is made by calling the model's own class again with the arguments that the registered function
passed, smaller where they have names that say so (depth, embed_dim, num_heads ...). The smallest candidate is taken
that builds, runs, and has every attention structure of the default architecture.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import nn

from kappaone.coverage.building import quiet
from kappaone.coverage.keys import fewest_keys
from kappaone.coverage.small import Small
from kappaone.coverage.structure import attention_structures
from kappaone.coverage.timm_shrink import LEVELS, shrunk
from kappaone.errors import MissingExtra, SpecError

# Fewer keys than this leave a query nothing to choose from, so that its rows look dead.
_ENOUGH_KEYS = 4
_SEED = 20260909


def names() -> list[str]:
    """Every registered architecture, without tags for weights, sorted.

    Raises:
        MissingExtra: if timm is not installed.
    """
    return sorted(_timm().list_models())


def on_meta(name: str) -> nn.Module:
    """An architecture as registered, on the meta device: no memory, no download.

    Raises:
        SpecError: if timm has no architecture of this name, or cannot build it there.
    """
    timm = _timm()
    if not timm.is_model(name):
        raise SpecError(f"timm has no architecture {name!r}", "see timm.list_models()")
    with quiet("timm"), torch.device("meta"):
        try:
            model = timm.create_model(name, pretrained=False)
        except Exception as error:
            raise SpecError(f"timm:{name} cannot be built on the meta device: {_words(error)}", "report it") from error
    return cast(nn.Module, model)


def small(name: str) -> Small | None:
    """A small instance of an architecture, or None where none can be made; `why_not_small` then says why."""
    return attempt(name)[0]


def why_not_small(name: str) -> str:
    """Why `small` gives None, or "" where it gives an instance."""
    return attempt(name)[1]


def attempt(name: str) -> tuple[Small | None, str]:
    """A small instance of an architecture, or None and the reason.

    Raises:
        SpecError: if timm has no architecture of this name, or cannot build it on the meta device.
    """
    default = on_meta(name)
    arguments = _arguments(name, default)
    wanted = set(attention_structures(default))
    spare: Small | None = None
    failures: list[str] = []
    for level in LEVELS:
        for size in _sizes(default, level):
            made = _build(type(default), arguments, level, size)
            if isinstance(made, str):
                failures.append(f"{level} at {size}: {made}")
                continue
            lost = wanted - set(attention_structures(made.model))
            if lost:
                failures.append(f"{level} at {size}: without {sorted(lost)[0]}")
                break  # the image size does not change what the model is made of
            with quiet("timm"):
                keys = fewest_keys(made.model, made.example)
            if isinstance(keys, str):
                failures.append(f"{level} at {size}: {keys}")
                continue
            if keys is None or keys >= _ENOUGH_KEYS:
                return made, ""
            spare = spare or made
        if spare is not None:
            return spare, ""
    return None, "; ".join(dict.fromkeys(failures))


def _build(cls: type[nn.Module], arguments: dict[str, Any], level: str, size: int) -> Small | str:
    """One candidate, or why it cannot be built."""
    with quiet("timm"):
        torch.manual_seed(_SEED)
        try:
            options = shrunk(copy.deepcopy(arguments), level)
            if "img_size" in arguments:
                options["img_size"] = (size, size) if isinstance(arguments["img_size"], tuple) else size
            model = cls(**options).eval()
        except Exception as error:  # the library's own: every candidate may break its rules
            return _words(error)
        _roughen(model)
        example = torch.randn(2, int(getattr(model, "in_chans", 3) or 3), size, size)
    return Small(model, example, f"{level}, image {size}x{size}")


def _roughen(model: nn.Module) -> None:
    """Noise on parameters that start constant (zero biases, tables, layer scales), so that a probe can feel them."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.numel() > 1 and bool((parameter == parameter.flatten()[0]).all()):
                parameter.add_(0.02 * torch.randn(parameter.shape))


def _sizes(model: nn.Module, level: str) -> list[int]:
    """Image sizes to try, the cheap ones first; the architecture's own is the last."""
    config = getattr(model, "pretrained_cfg", None) or {}
    own = int((config.get("input_size") or (3, 224, 224))[-1])
    patch = getattr(getattr(model, "patch_embed", None), "patch_size", None)
    patch = int(patch[0] if isinstance(patch, (tuple, list)) else patch) if patch else 0
    sizes = [4 * patch] if patch >= 12 else []
    sizes += [64, 96, 128] if level != "whole" else [96, 128]
    sizes += [own // 2, 224, 256]
    return [size for size in dict.fromkeys(sizes) if size < own] + [own]


def _arguments(name: str, default: nn.Module) -> dict[str, Any]:
    """What the architecture's function passes to the class, over the class's own defaults."""
    cls = type(default)
    out: dict[str, Any] = {}
    for base in reversed(cls.__mro__):  # a subclass that takes **kwargs hands them to its base
        if issubclass(base, nn.Module) and base is not nn.Module and "__init__" in vars(base):
            parameters = inspect.signature(base.__init__).parameters.values()
            named = [p for p in parameters if p.default is not p.empty]
            out.update({p.name: p.default for p in named})
    with _calls(cls) as calls:
        on_meta(name)
    positional, given = calls[0]
    takes = [p.name for p in inspect.signature(cls.__init__).parameters.values()][1:]
    out.update(zip(takes, positional, strict=False))
    out.update(given)
    return {key: value for key, value in out.items() if key not in ("device", "dtype")}


@contextmanager
def _calls(cls: type[nn.Module]) -> Iterator[list[tuple[tuple[Any, ...], dict[str, Any]]]]:
    """Note the arguments of every instance that is made of a class meanwhile."""
    own = vars(cls).get("__init__")
    original: Callable[..., None] = cls.__init__
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = []

    @functools.wraps(original)
    def noting(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        calls.append(copy.deepcopy((args, kwargs)))  # some classes take their arguments apart
        original(self, *args, **kwargs)

    cls.__init__ = noting  # type: ignore[method-assign]
    try:
        yield calls
    finally:
        if own is None:
            del cls.__init__
        else:
            cls.__init__ = own  # type: ignore[method-assign]


def _timm() -> Any:
    try:
        import timm
    except ImportError:
        raise MissingExtra("the survey of timm", "timm", "models") from None
    return timm


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
