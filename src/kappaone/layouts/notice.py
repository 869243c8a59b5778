"""Notice attention that nobody described: by its structure, and by the softmax or SDPA calls that it makes.

Noticing is deliberately wide and describing deliberately narrow: a layer that is noticed and not described is
refused by name, never skipped in silence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.utils._python_dispatch import TorchDispatchMode

from kappaone.layouts.running import evaluating, hooked, run
from kappaone.layouts.stored import shape_of, why_no_weight

_FUSED = re.compile(
    r"^(to_)?(qkvs?|wqkv|in_proj_qkvz?|in_proj_weight|query_key_value|c_attn|qkv_proj|mixed_qkv|qk|kv)(_proj|_linear)?$",
    re.I,
)
_QUERY = re.compile(
    r"^(to_|w_?|c_|linear_|project(ion)?_)?(q|query|queries|q_lin|q_a|q_b)(_?proj(ection)?(_weight)?)?$", re.I
)
_KEY = re.compile(
    r"^(to_|w_?|c_|linear_|project(ion)?_)?(k|key|keys|k_lin|kv|kv_a|kv_b)(_?proj(ection)?(_weight|_with_mqa)?)?$", re.I
)
# An MLP of an attention block may carry its name.
_ATTENTION = re.compile(r"(attention|attn)(?!.*mlp)", re.I)


def by_structure(modules: Mapping[str, nn.Module], described: set[str]) -> dict[str, str]:
    """Modules that hold projections which look like a query and a key, by name, with what was seen.

    Args:
        modules: all modules by name.
        described: names of layers that have a layout; they and what is in them are not looked at.
    """
    noticed: dict[str, str] = {}
    for name, module in modules.items():
        if any(_inside(name, other) for other in (*described, *noticed)) or any(
            _inside(other, name) and _wraps(name, other) for other in described
        ):
            continue
        parts = [n for n, child in module.named_children() if _has_weight(child)]
        parts += [n for n, p in module._parameters.items() if p is not None and len(shape_of(p)) >= 2]
        fused = [n for n in parts if _FUSED.match(n)]
        queries, keys = [n for n in parts if _QUERY.match(n)], [n for n in parts if _KEY.match(n)]
        if fused:
            noticed[name] = f"has {_described(module, fused[0])}"
        elif queries and keys:
            noticed[name] = f"has {_described(module, queries[0])} and {_described(module, keys[0])}"
        elif parts and _runs_heads(module) and not _holds(modules, name, described):
            noticed[name] = "counts attention heads and has projections"
        elif _ATTENTION.search(type(module).__name__) and len(parts) >= 2 and not _holds(modules, name, described):
            noticed[name] = "is called attention and has several projections"
    return noticed


def by_calls(model: nn.Module, modules: Mapping[str, nn.Module], example: Any) -> dict[str, str]:
    """Modules in whose own forward a softmax over 3 or more dimensions, or a fused attention, is called.

    The innermost running module that holds parameters (itself or below) is named.
    """
    stack: list[str] = []
    noticed: dict[str, str] = {}

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(
            self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
        ) -> Any:
            label = str(func)
            fused = "scaled_dot_product" in label or "_efficient_attention" in label or "_flash_attention" in label
            soft = "softmax" in label and "log_softmax" not in label and getattr(args[0], "ndim", 0) >= 3
            if stack and (fused or soft):
                noticed.setdefault(stack[-1], "calls scaled_dot_product_attention" if fused else "calls softmax")
            return func(*args, **(kwargs or {}))

    names = {name: module for name, module in modules.items() if next(module.parameters(), None) is not None}

    def enter(name: str) -> Callable[..., None]:
        return lambda *_: stack.append(name)

    def leave(*_: Any) -> None:
        stack.pop()

    with evaluating(model), hooked(names, enter, lambda _: leave), Watch():  # type: ignore[no-untyped-call]
        run(model, example)
    return noticed


def _runs_heads(module: nn.Module) -> bool:
    """Whether a module says how many heads it has and how it attends, as blocks that fuse attention and MLP do."""
    return isinstance(getattr(module, "num_heads", None), int) and any(
        hasattr(module, name) for name in ("fused_attn", "attn_drop", "attn_dropout")
    )


def _has_weight(module: nn.Module) -> bool:
    """Whether there are weights in a module, whole, in parts, or packed."""
    return any(isinstance(p, UninitializedParameter) or len(shape_of(p)) >= 2 for p in module.parameters()) or any(
        why_no_weight(inner) for inner in module.modules()
    )


def _described(module: nn.Module, part: str) -> str:
    """A projection's name, with the reason why its weight cannot be read where there is one."""
    child = module._modules.get(part)
    why = (
        why_no_weight(module, part) if child is None else next(filter(None, map(why_no_weight, child.modules())), None)
    )
    return part if why is None else f"{part}, which is {why},"


def _inside(name: str, other: str) -> bool:
    return name == other or other == "" or name.startswith(f"{other}.")


def _wraps(name: str, described: str) -> bool:
    """Whether a module is the thin shell around a described layer, as BertAttention around BertSelfAttention."""
    return described.removeprefix(name).count(".") <= 1


def _holds(modules: Mapping[str, nn.Module], name: str, described: set[str]) -> bool:
    inner = [other for other in modules if other != name and _inside(other, name)]
    return any(other in described for other in inner) or any(
        _ATTENTION.search(type(modules[other]).__name__) for other in inner
    )
