"""How many layers share one attention module (ALBERT, looped models): counted in one forward pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.running import evaluating, hooked, run


def with_shared(
    model: nn.Module, modules: Mapping[str, nn.Module], layouts: Sequence[AttentionLayout], example: Any
) -> list[AttentionLayout]:
    """The layouts, with the fact `shared` set to the number of calls where a module is called more than once.

    Args:
        model: the model.
        modules: its modules by name.
        layouts: its attention layers.
        example: an input.
    """
    counts: Counter[str] = Counter()

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: counts.update([name])

    def leave(_: str) -> Callable[..., None]:
        return lambda *_: None

    with evaluating(model), hooked({item.module: modules[item.module] for item in layouts}, enter, leave):
        run(model, example)
    return [
        replace(item, facts={**item.facts, "shared": counts[item.module]}) if counts[item.module] > 1 else item
        for item in layouts
    ]
