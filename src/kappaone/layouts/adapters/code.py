"""What a forward's own code says about the order of heads, for styles of code that are copied from file to file.

Attributes and shapes cannot tell "(h d)" from "(d h)", nor `q, k, v = ...` from `k, q, v = ...`. Where a module comes
from a library its version says it; a copy in a user's file may have been changed, so that its code is read: einops
patterns are constants of the compiled function, and local names stand in the order in which they were first set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from types import CodeType

from torch import nn


def codes(module: nn.Module) -> Iterator[CodeType]:
    """The compiled code of the class's forward, and of the functions inside it."""
    code = getattr(getattr(type(module), "forward", None), "__code__", None)
    todo = [code] if isinstance(code, CodeType) else []
    while todo:
        item = todo.pop()
        yield item
        todo += [constant for constant in item.co_consts if isinstance(constant, CodeType)]


def heads_first(module: nn.Module) -> bool:
    """Whether the einops patterns in the code put heads in front of head_dim wherever they split or merge them.

    Examples:
        >>> class Mixed(nn.Module):
        ...     def forward(self, x):
        ...         return rearrange(x, "b n (d h) -> b h n d", h=2)
        >>> heads_first(Mixed())
        False
    """
    patterns = [text for code in codes(module) for text in code.co_consts if isinstance(text, str) and "->" in text]
    patterns += [str(getattr(child, "pattern", "")) for child in module.children()]
    grouped = [group for text in patterns for group in re.findall(r"\(([^()]*)\)", text)]
    # Where the batch takes the heads in, "(b h)", no order of rows is at stake.
    joined = [words for words in map(str.split, grouped) if {"h", "d"} <= set(words)]
    return bool(joined) and all(words.index("h") < words.index("d") for words in joined)


def names_in_order(module: nn.Module, *names: str) -> bool:
    """Whether the forward sets these local names, in this order.

    Examples:
        >>> class Swapped(nn.Module):
        ...     def forward(self, x):
        ...         k, q, v = x.chunk(3, dim=-1)
        >>> names_in_order(Swapped(), "q", "k", "v")
        False
    """
    found = [name for code in codes(module) for name in code.co_varnames if name in names]
    return found[: len(names)] == list(names)


def patterns_of(module: nn.Module) -> list[str]:
    """The string constants of the forward."""
    return [text for code in codes(module) for text in code.co_consts if isinstance(text, str)]


def called_names(function: Callable[..., object], *, depth: int = 3) -> set[str]:
    """The names that a function's code uses, and those of the functions of its file that it calls.

    Examples:
        >>> def inner(x): return x.softmax(-1)
        >>> def outer(x): return inner(x)
        >>> "softmax" in called_names(outer)
        True
    """
    found: set[str] = set()
    todo: list[tuple[object, int]] = [(function, depth)]
    while todo:
        item, left = todo.pop()
        item = getattr(item, "__func__", item)
        top = getattr(item, "__code__", None)
        if not isinstance(top, CodeType):
            continue
        waiting = [top]
        while waiting:
            inside = waiting.pop()
            found |= {*inside.co_names, *inside.co_varnames}
            waiting += [constant for constant in inside.co_consts if isinstance(constant, CodeType)]
            around = getattr(item, "__globals__", {})
            near = [around[name] for name in inside.co_names if name in around] if left else []
            here = getattr(item, "__module__", None)
            todo += [(other, left - 1) for other in near if getattr(other, "__module__", None) == here]
    return found
