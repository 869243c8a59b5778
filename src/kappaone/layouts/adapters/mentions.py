"""What a module's forward mentions: its own attributes, children and parameters, and the functions around it.

Attentions that store the same projections differ in what they do with them (a norm, a gate, a clamp), and every such
step needs something of the module or a function by its name. An adapter that knows all that a forward mentions can
describe it; one mention that it does not know makes it another attention. Names of classes and files play no part, so
that subclasses and wrapped modules are read as what they run.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from kappaone.layouts.site import Site


@dataclass(frozen=True)
class Mentions:
    """The names in a forward and in the module's own methods that it calls.

    Attributes:
        own: attributes, children, parameters and buffers of the module.
        functions: functions, classes and modules of the file around it.
        words: every other name and every constant word (methods of tensors, names of arguments and variables).
    """

    own: frozenset[str]
    functions: frozenset[str]
    words: frozenset[str]

    def calls(self, *parts: str) -> bool:
        """Whether a function whose name has one of these parts is mentioned."""
        return any(part in name for name in self.functions for part in parts)


def mentions(site: Site) -> Mentions | None:
    """What a module's forward mentions, or None where its code cannot be seen (a compiled module)."""
    module = site.module
    held = _held(module)
    own: set[str] = set()
    functions: set[str] = set()
    words: set[str] = set()
    waiting, seen = ["forward"], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        function = _function(module, name)
        if function is None:
            if name == "forward":
                return None
            continue
        said = words_in(function.__code__)
        around = said & set(function.__globals__)
        functions |= {word for word in around if word not in held}
        own |= said & held
        words |= said - held - around
        waiting += [word for word in said - held if word not in seen and _is_method(module, word)]
    return Mentions(frozenset(own), frozenset(functions), frozenset(words))


def _held(module: nn.Module) -> set[str]:
    """Names of what an instance holds, private ones aside."""
    names = [*vars(module), *module._parameters, *module._modules, *module._buffers]
    return {name for name in names if not name.startswith("_") and name != "training"}


def _function(module: nn.Module, name: str) -> FunctionType | None:
    """The Python function behind a method, under its decorators and hooks."""
    found: Any = getattr(module, name, None)
    found = inspect.unwrap(found) if callable(found) else None
    while isinstance(found, functools.partial):
        found = inspect.unwrap(found.func)
    found = getattr(found, "__func__", found)
    return found if isinstance(found, FunctionType) else None


def _is_method(module: nn.Module, name: str) -> bool:
    """Whether a name is a method that a class below `nn.Module` defines."""
    owner = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
    if owner is None or owner in (nn.Module, object):
        return False
    value: Callable[..., Any] | staticmethod[..., Any] = vars(owner)[name]
    return isinstance(value, (FunctionType, staticmethod))


def words_in(code: CodeType) -> set[str]:
    """Names (global ones, attributes, arguments, variables) and constant words in compiled code, inner functions included."""
    return set(_walk(code))


def _walk(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    yield from code.co_varnames
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _walk(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, tuple):
            yield from (word for word in constant if isinstance(word, str))
