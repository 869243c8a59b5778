"""DeepSpeed's ZeRO-3: parameters are held in parts by all ranks, and are empty between uses.

`init_` then goes layer by layer: one layer's parameters are gathered (`deepspeed.zero.GatheredParameters`), written by
the plain way on every rank, and taken apart again with rank 0's values, which are those of every rank. So the memory
needed is one layer's, and the weights are those of a plain model. Without deepspeed at hand this is refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.apply.report import InitReport
from kappaone.apply.writable import check_writable, is_partitioned
from kappaone.errors import SpecError, WriteError
from kappaone.layouts.blocks import parameters_by_name
from kappaone.layouts.find import Survey
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.schemes.procedure import Procedure
from kappaone.schemes.registry import InitSpec

_ROLES: tuple[Role, ...] = ("q", "k", "v", "o")


def needed(found: Survey, parameters: dict[str, nn.Parameter], spec: InitSpec) -> bool:
    """Whether weights of the layers that are asked for are in parts."""
    chosen = spec.chosen(len(found.layouts)) if found.layouts else frozenset()
    return any(
        is_partitioned(parameters[name])
        for index in chosen
        for name in _names(found.layouts[index])
        if name in parameters
    )


def refuse_running(model: nn.Module, example: Any) -> None:
    """Raise where an example is given for a model in parts, which only deepspeed's engine can run."""
    if example is not None and any(is_partitioned(parameter) for parameter in model.parameters()):
        raise SpecError(
            "example= runs the model, which kappaone cannot do where it is partitioned by ZeRO-3",
            "leave example= out, or call kappaone.init_ before deepspeed partitions the model",
        )


def init_by_layer(
    model: nn.Module, found: Survey, spec: InitSpec, one: Callable[..., InitReport], *, undo: bool
) -> InitReport:
    """`init_` on a partitioned model.

    Args:
        model: the model.
        found: its attention.
        spec: the scheme.
        one: `init_` itself, with everything set but the model, the scheme and `layouts=`.
        undo: keep CPU copies of all that is overwritten, on every rank, until the end.

    Returns:
        One report for all layers.

    Raises:
        WriteError: without deepspeed, with the recipe; and whatever `init_` raises, with everything put back.
        SpecError: for schemes that run the model.
    """
    started = time.perf_counter()
    parameters = parameters_by_name(model)
    gather = _gathering(found, parameters)
    if isinstance(spec.entry, Procedure):
        raise SpecError(
            f"{spec.text} measures the model, which kappaone cannot run where it is partitioned by ZeRO-3",
            "call kappaone.init_ before deepspeed partitions the model",
        )
    _refuse_shared(found.layouts, parameters)
    saved: list[tuple[nn.Parameter, Tensor]] = []
    merged: InitReport | None = None
    chosen = spec.chosen(len(found.layouts))
    try:
        for index in sorted(chosen):
            layout = found.layouts[index]
            held = [parameters[name] for name in _names(layout) if name in parameters]
            with gather(held, modifier_rank=0):
                before = [(p, p.detach().to("cpu", copy=True)) for p in held] if undo else []
                report = one(model, replace(spec, layers=index), layouts=list(found.layouts))
            saved += before
            if merged is None:
                merged = report
            else:
                merged.layers[index] = report.layers[index]
                merged.remarks += [remark for remark in report.remarks if remark not in merged.remarks]
    except BaseException:
        for parameter, old in reversed(saved):
            with gather([parameter], modifier_rank=0), torch.no_grad():
                parameter.copy_(old)
        raise
    assert merged is not None
    merged.remarks.append("partitioned by ZeRO-3: gathered and written one layer at a time")
    merged.seconds = time.perf_counter() - started
    return merged


def _names(layout: AttentionLayout) -> list[str]:
    """Every parameter that a layout names."""
    names: list[str] = []
    for role in _ROLES:
        if role != "o" or layout.o is not None:
            rows = layout.role(role)
            names += [name for name in (rows.parameter, rows.bias) if name is not None]
    return list(dict.fromkeys(names))


def _gathering(found: Survey, parameters: dict[str, nn.Parameter]) -> Callable[..., Any]:
    """The context manager of deepspeed, or the error that `check_writable` gives for the first partitioned parameter."""
    try:
        library = import_module("deepspeed")
    except ImportError:
        for layout in found.layouts:
            for name in _names(layout):
                check_writable(name, parameters[name])
        raise
    gathered: Callable[..., Any] = library.zero.GatheredParameters
    return gathered


def _refuse_shared(layouts: Sequence[AttentionLayout], parameters: dict[str, nn.Parameter]) -> None:
    seen: dict[int, str] = {}
    for layout in layouts:
        for name in {layout.role(role).parameter for role in _ROLES if role != "o" or layout.o is not None}:
            other = seen.setdefault(id(parameters[name]), layout.name)
            if other != layout.name:
                raise WriteError(
                    f"{name!r} belongs to the layers {other!r} and {layout.name!r}, and is partitioned by ZeRO-3",
                    "call kappaone.init_ before deepspeed partitions the model",
                )
