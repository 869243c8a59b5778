"""Every architecture of transformers: its names, its default instance on the meta device, and a small one that runs.

An architecture is a model type that `AutoModel` builds (`MODEL_MAPPING`). Nothing is downloaded: an instance comes from
the type's default configuration. The small instance comes from the same configuration with smaller sizes
(`transformers_shrink`), so its attention classes and switches are the same, and an input follows from what its
`forward` takes (`transformers_inputs`).
"""

from __future__ import annotations

import logging
import random
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from kappaone.coverage import transformers_inputs, transformers_shrink
from kappaone.coverage.small import Small
from kappaone.coverage.transformers_table import CLASS, DEFAULT, NOT_SMALL, NOTES
from kappaone.errors import KappaoneError, MissingExtra, SpecError

_SEED = 0


def names() -> list[str]:
    """Every model type that `AutoModel` builds, sorted.

    Raises:
        MissingExtra: without transformers.
    """
    return sorted(_auto().MODEL_MAPPING_NAMES)


def on_meta(name: str) -> nn.Module:
    """The architecture with its default configuration, on the meta device.

    Args:
        name: a model type, such as "llama".

    Raises:
        SpecError: if there is no such type, or the library cannot build it (what it said is in the message).
        MissingExtra: without transformers.
    """
    with _quiet():
        config = _default(name)
        with _meta():
            model: nn.Module = _built(name, config)
            return model.eval().to("meta")  # legacy constructors ignore the device


def small(name: str) -> Small | None:
    """A small instance of the architecture with an input that runs it.

    Attention classes and switches are those of the default configuration: grouped or multi-query heads, rotary
    embeddings, norms of queries and keys, biases, gates, and at least one layer of every kind. Sizes are not.

    Args:
        name: a model type, such as "llama".

    Returns:
        The instance, or None where none can be made; `why_not_small(name)` then says why.

    Raises:
        SpecError: if there is no such type, or the library cannot build it.
        MissingExtra: without transformers.
    """
    _known(name)
    if name in NOT_SMALL:
        return None
    with _quiet(), _randomness_kept():
        torch.manual_seed(_SEED)
        np.random.seed(_SEED)  # noqa: NPY002 - the state that the library's models draw from
        random.seed(_SEED)
        model = _built(name, small_config(name)).float().eval()
        example = transformers_inputs.example(name, model)
        _wake(model)
    return Small(model, example, NOTES.get(name, ""))


def _wake(model: nn.Module) -> None:
    """Draw what starts at zero (learned queries, position tables): behind zeros a layer's weights play no role."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim >= 2 and parameter.is_floating_point() and not bool(parameter.any()):
                parameter.normal_(std=0.2)


def small_config(name: str) -> Any:
    """The configuration of `small(name)`.

    Raises:
        SpecError: if there is no such type.
    """
    with _quiet():
        return transformers_shrink.shrink(name, _default(name))


def why_not_small(name: str) -> str:
    """Why `small(name)` is None; empty where it is not."""
    return NOT_SMALL.get(name, "")


def _auto() -> Any:
    try:
        from transformers.models.auto import modeling_auto
    except ImportError:
        raise MissingExtra("the coverage of transformers", "transformers", "models") from None
    return modeling_auto


def _known(name: str) -> None:
    if name not in _auto().MODEL_MAPPING_NAMES:
        raise SpecError(
            f"transformers has no model type {name!r} that AutoModel builds", "see transformers_zoo.names()"
        )


def _default(name: str) -> Any:
    _known(name)
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[name]()
    return transformers_shrink.amended(config, DEFAULT[name]) if name in DEFAULT else config


def _built(name: str, config: Any) -> Any:
    import transformers

    written = _auto().MODEL_MAPPING_NAMES[name]
    try:
        if name in CLASS:
            return getattr(transformers, CLASS[name])(config)
        if isinstance(written, str) and type(config) in _auto().MODEL_MAPPING:
            return transformers.AutoModel.from_config(config)
        # Several classes for one type: AutoModel chooses by a checkpoint's "architectures"; the first is the whole model.
        return getattr(transformers, written if isinstance(written, str) else written[0])(config)
    except KappaoneError:
        raise
    except Exception as error:  # another library's: which errors it knows is its own affair
        first = str(error).strip().partition("\n")[0]
        raise SpecError(
            f"transformers cannot build {name!r} from its configuration: {type(error).__name__}: {first}",
            "this architecture cannot be surveyed with this release of transformers",
        ) from error


@contextmanager
def _meta() -> Iterator[None]:
    """Parameters and buffers without memory and without drawing numbers."""
    from transformers import initialization

    with ExitStack() as stack:
        # Some constructors compute a list of numbers from a tensor; these two are what from_pretrained itself uses.
        for context in ("no_init_weights", "meta_device_safe_creation_ops"):
            if hasattr(initialization, context):
                stack.enter_context(getattr(initialization, context)())
        stack.enter_context(torch.device("meta"))
        stack.enter_context(_randomness_kept())
        yield


@contextmanager
def _randomness_kept() -> Iterator[None]:
    """Global random states of torch, NumPy and Python as they were; building a model draws from all three."""
    states = (random.getstate(), np.random.get_state())  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the library says about its own defaults off the terminal; errors are raised all the same."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
