"""A model's own initialization, run again after its tensors got memory: what its constructor would have done.

In the order of construction: first every module by its own `reset_parameters`, children before parents, as their
constructors do; then the tables in buffers (`init_non_persistent_buffers`, timm); then every whole model by its own
recipe: transformers' `init_weights`, timm's `init_weights`, or `model.apply(model._init_weights)`.

What a constructor does besides (`self.gamma = nn.Parameter(1e-6 * torch.ones(dim))`, a loop over its layers) is not
known here. A parameter that none of these sets is found by its entries (kappaone.apply.memory); one that
`reset_parameters` set and the constructor would then have changed cannot be found, so that the steps that ran are
reported for every tensor.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

from kappaone.apply.memory import Slot, can_be_marked, count_unset, local
from kappaone.layouts.blocks import named_modules

RESET = "reset_parameters of its own module"


@dataclass
class Steps:
    """What ran.

    Attributes:
        by: for each fresh tensor, the last step that wrote it.
        failed: steps that raised, in words.
        defaults: tensors that only torch's defaults have set, outside of every model whose library says how.
        recipes: model-level recipes that ran and that no library vouches for.
    """

    by: dict[str, str] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)
    defaults: list[str] = field(default_factory=list)
    recipes: list[str] = field(default_factory=list)


def initialise(model: nn.Module, fresh: list[Slot]) -> Steps:
    """Run every initialization that the model brings with it.

    Args:
        model: a model whose fresh tensors have memory.
        fresh: the places that were on the meta device.
    """
    steps = Steps()
    modules = dict(named_modules(model))
    touched = _with_fresh(modules, fresh)
    # transformers skips modules that it marked when they had no memory.
    for name in touched:
        vars(modules[name]).pop("_is_hf_initialized", None)
    seen = {id(place.tensor): place.tensor._version for place in fresh}
    # An empty shard shows nothing; its version does.
    unset = {id(p.tensor) for p in fresh if can_be_marked(p.tensor) and local(p.tensor).numel()}
    with torch.no_grad():
        for name in _children_first(touched):
            for method in ("reset_parameters", "_reset_parameters"):
                found = getattr(modules[name], method, None)
                if callable(found) and _takes_nothing(found):
                    _run(f"{method} of {name!r}", found, steps)
                    break
        _note(fresh, seen, unset, RESET, steps)
        for name in _children_first(touched):
            found = getattr(modules[name], "init_non_persistent_buffers", None)
            if callable(found) and _takes_nothing(found):
                _run(f"init_non_persistent_buffers of {name!r}", found, steps)
        _note(fresh, seen, unset, "init_non_persistent_buffers of its own module", steps)
        covered: set[str] = set()
        for name, call, words, whole in _recipes(modules, touched):
            _run(f"{words} of {name!r}", call, steps)
            _note(fresh, seen, unset, f"{words} of {name or 'the model'}", steps)
            if whole:
                covered.add(name)
            else:
                steps.recipes.append(f"{words} of {name or 'the model'}")
    steps.defaults = _without_recipe(modules, covered, steps)
    return steps


def _with_fresh(modules: Mapping[str, nn.Module], fresh: list[Slot]) -> list[str]:
    """Modules with a fresh tensor in them or below, in the order of the model."""
    owners = {id(place.module) for place in fresh}
    return [name for name, module in modules.items() if any(id(inner) in owners for inner in module.modules())]


def _children_first(names: list[str]) -> list[str]:
    """Names in the order of construction: a module after everything in it."""
    order: list[str] = []
    stack: list[str] = []
    for name in names:
        while stack and not _inside(name, stack[-1]):
            order.append(stack.pop())
        stack.append(name)
    return order + stack[::-1]


def _inside(name: str, other: str) -> bool:
    return other == "" or name.startswith(f"{other}.")


def _recipes(modules: Mapping[str, nn.Module], touched: list[str]) -> list[tuple[str, Callable[[], Any], str, bool]]:
    """(module, call, words, whole) of every model-level initialization, in the order of construction.

    `whole` says that a library made the method to set everything in the model.
    """
    hugging = [name for name in touched if _is_transformers(modules[name])]
    hugging = [name for name in hugging if not any(other != name and _inside(name, other) for other in hugging)]
    timm = [name for name in touched if name not in hugging and _is_timm(modules[name])]
    given = [name for name in touched if name not in hugging and callable(getattr(modules[name], "init_weights", None))]
    out: list[tuple[str, Callable[[], Any], str, bool]] = []
    for name in _children_first(touched):
        module: Any = modules[name]
        if name in hugging:
            out.append((name, partial(_transformers_init, module), "transformers' init_weights", True))
            continue
        if name not in timm and any(other != name and _inside(name, other) for other in hugging):
            continue  # transformers reaches it; timm models in it were set by their own constructor before
        outer = [other for other in given if other != name and _inside(name, other) and other not in hugging]
        if name in given and (name in timm or not outer):
            call = _without_reset(module.init_weights)
            if call is not None:
                out.append((name, call, "init_weights", name in timm))
                continue
        single = getattr(module, "_init_weights", None)
        if callable(single) and _takes_one(single):
            out.append((name, _applied(module, single), "apply(_init_weights)", False))
    return out


def _applied(module: nn.Module, single: Callable[[nn.Module], Any]) -> Callable[[], Any]:
    return lambda: module.apply(single)


def _is_transformers(module: nn.Module) -> bool:
    return all(callable(getattr(module, name, None)) for name in ("init_weights", "_init_weights", "tie_weights")) and (
        hasattr(module, "config")
    )


def _transformers_init(module: Any) -> None:
    """The recipe of transformers, for the class that the model had before it was sharded.

    `fully_shard` gives a model a class of its own, which transformers takes for somebody else's code; it then skips
    every module that holds no tensor itself, and with them GPT-2's scaling by depth.
    """
    library = sys.modules.get("torch.distributed.fsdp")
    shards = getattr(library, "FSDPModule", None)
    bases = type(module).__bases__
    if shards in bases:
        before = next(base for base in bases if base is not shards)
        vars(module)["is_custom_code"] = getattr(before, "is_custom_code", lambda: False)
    try:
        module.init_weights()
    finally:
        vars(module).pop("is_custom_code", None)


def _is_timm(module: nn.Module) -> bool:
    return hasattr(module, "pretrained_cfg") and hasattr(module, "default_cfg")


def _required(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(function).parameters.values()
    return [p.name for p in found if p.default is inspect.Parameter.empty and p.kind in kinds]


def _takes_nothing(function: Callable[..., Any]) -> bool:
    return not _required(function)


def _takes_one(function: Callable[..., Any]) -> bool:
    return len(_required(function)) == 1


def _without_reset(function: Callable[..., Any]) -> Callable[[], Any] | None:
    """The call that a constructor makes: its modules have set themselves already."""
    if not _takes_nothing(function):
        return None
    if "needs_reset" in inspect.signature(function).parameters:
        return lambda: function(needs_reset=False)
    return function


def _run(words: str, call: Callable[[], Any], steps: Steps) -> None:
    try:
        call()
    except Exception as error:
        # Not silent: what it left unset is found and named, with this reason.
        steps.failed.append(f"{words} failed: {type(error).__name__}: {error}")


def _note(fresh: list[Slot], seen: dict[int, int], unset: set[int], step: str, steps: Steps) -> None:
    """Remember which tensors a step has written: by their version, or because the marks have gone (writes to .data)."""
    written = set()
    for place in fresh:
        tensor = place.tensor
        if seen.get(id(tensor)) != tensor._version or (id(tensor) in unset and not count_unset(tensor)):
            written.add(id(tensor))
    for place in fresh:
        tensor = place.tensor
        if id(tensor) in written:
            steps.by[place.name] = step
            seen[id(tensor)] = tensor._version
            if count_unset(tensor):
                unset.add(id(tensor))
            else:
                unset.discard(id(tensor))


def _without_recipe(modules: Mapping[str, nn.Module], covered: set[str], steps: Steps) -> list[str]:
    """Tensors for which nothing but the default of their own module is known."""
    return [
        name for name, step in steps.by.items() if step == RESET and not any(_inside(name, model) for model in covered)
    ]
