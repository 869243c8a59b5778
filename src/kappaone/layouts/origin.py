"""Whose code a module runs: the library's own, or a forward that somebody wrote under the library's attribute names.

A subclass, a patched instance or a copy in a user's file keeps attributes and shapes and may cut its weights in another
order. So an adapter that reads attributes only is believed where the forward that runs, and the methods that it calls,
are those of its library. The class itself plays no part: wrappers that make classes anew (FSDP2, parametrizations) and
subclasses without a forward of their own run the library's code.
"""

from __future__ import annotations

import functools
import inspect
from types import FunctionType
from typing import Any

from torch import nn

from kappaone.layouts.adapters.mentions import words_in

# All that a method may name and still only hand over to the method that it overrides.
_HANDS_OVER = {"super", "forward"}


def foreign_code(module: nn.Module, library: str) -> str | None:
    """Where a module runs code that is not its library's, in words; None where all of it is.

    Args:
        module: the module.
        library: top-level package.

    Examples:
        >>> foreign_code(nn.MultiheadAttention(4, 2), "torch") is None
        True
        >>> class Mine(nn.MultiheadAttention):
        ...     def forward(self, query, key, value):
        ...         return self.out_proj(value), None
        >>> foreign_code(Mine(4, 2), "torch").startswith("forward")
        True
    """
    waiting, seen = ["forward"], {"forward"}
    while waiting:
        name = waiting.pop()
        function = unwrapped(getattr(module, name, None))
        later = iter(type(module).__mro__)
        while function is not None and not _is_of(function, library) and set(function.__code__.co_names) <= _HANDS_OVER:
            function = _overridden(function, later, name)
        if function is None:
            return f"{name}, whose code cannot be read"
        if not _is_of(function, library):
            return f"{name} of {function.__module__}, line {function.__code__.co_firstlineno}"
        found = {word for word in words_in(function.__code__) if word not in seen and _is_method(module, word)}
        seen |= found
        waiting += sorted(found)
    return None


def unwrapped(found: Any) -> FunctionType | None:
    """The Python function behind a callable, under decorators, hooks, partial applications and bound methods."""
    while True:
        if isinstance(found, functools.partial) and not hasattr(found, "__wrapped__"):
            found = found.func
        elif callable(found) and hasattr(found, "__wrapped__"):
            found = inspect.unwrap(found)
        elif hasattr(found, "__func__"):
            found = found.__func__
        else:
            return found if isinstance(found, FunctionType) else None


def is_of(function: Any, library: str) -> bool:
    """Whether a function's code was written in a package."""
    found = unwrapped(function)
    return found is not None and _is_of(found, library)


def _is_of(function: FunctionType, library: str) -> bool:
    # Decorators without functools.wraps are defined in the library too.
    return str(function.__globals__.get("__name__", "")).partition(".")[0] == library


def _overridden(function: FunctionType, later: Any, name: str) -> FunctionType | None:
    """The next method of this name behind the one that hands over to it."""
    kinds = list(later)
    at = next((i for i, kind in enumerate(kinds) if unwrapped(vars(kind).get(name)) is function), None)
    if at is None:
        return None
    return next((unwrapped(vars(kind)[name]) for kind in kinds[at + 1 :] if name in vars(kind)), None)


def _is_method(module: nn.Module, name: str) -> bool:
    """Whether a name is a method that a class below `nn.Module` defines, whatever stands on the instance in its place.

    Functions that an instance holds under other names (an activation, a factory) are no methods.
    """
    owner = next((kind for kind in type(module).__mro__ if name in vars(kind)), None)
    if owner is None or owner in (nn.Module, object):
        return False
    return isinstance(vars(owner)[name], (FunctionType, staticmethod, classmethod))
