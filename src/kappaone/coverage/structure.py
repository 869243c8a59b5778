"""What an attention module is made of, sizes aside: two instances of one architecture must agree on it."""

from __future__ import annotations

from torch import nn

from kappaone.layouts.blocks import named_modules
from kappaone.layouts.find import Survey, survey

# Switches of the moment, which say nothing about where the weights live.
_PASSING = {"training", "fused_attn", "grad_checkpointing"}


def structure(module: nn.Module) -> str:
    """A module's class, children, own parameters and switches (booleans, words, Nones), as one line.

    Examples:
        >>> a, b = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(16, 4)
        >>> structure(a) == structure(b)
        True
        >>> structure(a) == structure(nn.MultiheadAttention(8, 2, bias=False))
        False
    """
    children = [f"{name}:{_kind(child)}" for name, child in module.named_children()]
    parameters = [f"{name}{'' if p is not None else '=None'}" for name, p in module._parameters.items()]
    switches = [
        f"{name}={value}"
        for name, value in sorted(vars(module).items())
        if isinstance(value, (bool, str)) and not name.startswith("_") and name not in _PASSING
    ]
    return f"{type(module).__name__}({', '.join([*children, *parameters, *switches])})"


def _kind(module: nn.Module) -> str:
    bias = getattr(module, "bias", None)
    return type(module).__name__ + ("+bias" if isinstance(bias, nn.Parameter) else "")


def attention_structures(model: nn.Module, found: Survey | None = None) -> dict[str, list[str]]:
    """The distinct structures of a model's attention, each with the names of the modules that have it.

    Args:
        model: the model, on any device; meta will do.
        found: its survey, if it was made already.
    """
    found = survey(model) if found is None else found
    modules = dict(named_modules(model))
    items = [layout.module for layout in found.layouts]
    items += [item.name for item in (*found.refused, *found.outside)]
    out: dict[str, list[str]] = {}
    for name in dict.fromkeys(items):
        out.setdefault(structure(modules[name]), []).append(name)
    return out
