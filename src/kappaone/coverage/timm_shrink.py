"""Smaller arguments for a timm class, by the names that timm gives them. Nothing here imports timm.

Each level keeps more of the architecture than the one before: "narrow" makes depths, widths and head counts smaller,
"shallow" depths only, "whole" nothing but the number of classes. Which level is right is not decided here: the zoo
takes the first one that still has every attention structure and runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

LEVELS = ("narrow", "shallow", "whole")

_DEPTHS = frozenset(
    {
        "depth", "depths", "serial_depths", "parallel_depth", "depth_list", "depth_token_only", "transformer_depths",
        "num_layers", "num_blocks", "global_block_counts", "d",
    }
)  # fmt: skip
# Where the depth is a list of stages; a number of this name counts something else.
_STAGES = frozenset({"layers", "stages"})
_WIDTHS = ("embed_dim", "embed_dims", "dims", "base_dims")
_HEADS = ("num_heads", "heads")
_HEAD_DIM = 16


def shrunk(arguments: Mapping[str, Any], level: str) -> dict[str, Any]:
    """Arguments (or fields of a configuration) made smaller.

    Args:
        arguments: of the class, defaults included.
        level: one of `LEVELS`.

    Examples:
        >>> shrunk({"depth": 12, "embed_dim": 768, "num_heads": 12, "mlp_ratio": 4.0, "num_classes": 1000}, "narrow")
        {'depth': 2, 'embed_dim': 64, 'num_heads': 4, 'mlp_ratio': 4.0, 'num_classes': 10}
        >>> shrunk({"depths": (2, 2, 18, 2), "num_heads": (3, 6, 12, 24), "embed_dim": 96}, "narrow")
        {'depths': (2, 2, 2, 2), 'num_heads': (2, 4, 8, 16), 'embed_dim': 32}
    """
    out = dict(arguments)
    if out.get("num_classes"):
        out["num_classes"] = min(int(out["num_classes"]), 10)
    if level == "whole":
        return out
    for name, value in out.items():
        if name in _DEPTHS or (name in _STAGES and isinstance(value, (tuple, list))):
            out[name] = _each(value, lambda depth: min(depth, 2))
        elif name == "local_up_to_layer" and value:
            out[name] = 1  # of two: one layer of each kind is left
        elif name == "global_attn_indexes" and value:
            out[name] = type(value)([1])  # the first of two has windows, the second has none
        elif name == "block_args":
            out[name] = [_distinct(stage) for stage in value]
        elif name == "blocks" and isinstance(value, tuple):
            out[name] = tuple(_config(block, level) for block in value)
        elif name == "cfg":
            out[name] = _config(value, level)
    if level == "narrow":
        _narrow(out)
    return out


def _narrow(out: dict[str, Any]) -> None:
    """Fewer heads of 16 columns each, in proportion where a stage doubles what the one before has."""
    width = next((name for name in _WIDTHS if out.get(name) is not None), None)
    heads = next((name for name in _HEADS if out.get(name) is not None), None)
    if width is None or heads is None:
        return
    before, dims = out[heads], out[width]
    if isinstance(before, (tuple, list)):
        least = min(before)
        after = type(before)(2 * h // least if isinstance(dims, int) else min(h, 4) for h in before)
        out[heads] = after
        out[width] = _HEAD_DIM * after[0] if isinstance(dims, int) else type(dims)(_HEAD_DIM * h for h in after)
    else:
        out[heads] = min(before, 4)
        out[width] = _each(dims, lambda _: _HEAD_DIM * out[heads])
    kv = out.get("num_kv_heads")
    if isinstance(kv, int) and kv and isinstance(before, int):  # all, groups and one stay what they are
        out["num_kv_heads"] = out[heads] if kv == before else 1 if kv == 1 else 2
    if isinstance(kv, (tuple, list)) and isinstance(before, int):  # one number for each block
        kinds = list(dict.fromkeys(out[heads] if n == before else 1 if n == 1 else 2 for n in kv))
        out["num_kv_heads"] = type(kv)(kinds[block % len(kinds)] for block in range(int(out.get("depth", len(kv)))))
    if out.get("head_dim") and isinstance(out["head_dim"], int):
        out["head_dim"] = _HEAD_DIM


def _config(value: Any, level: str) -> Any:
    """A configuration (a dataclass, or a tuple of them) made smaller field by field."""
    if isinstance(value, tuple):
        return tuple(_config(item, level) for item in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return dataclasses.replace(value, **shrunk(fields, level))


def _distinct(stage: list[Any]) -> list[Any]:
    """The different blocks of one stage of an EfficientNet-like network, once each, in their order."""
    return list({repr(block): block for block in stage}.values())


def _each(value: Any, change: Callable[[int], int]) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(_each(item, change) for item in value)
    return change(value) if isinstance(value, int) and not isinstance(value, bool) else value
