"""Which parameters can be written in place, and what to do about those that cannot."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from kappaone.errors import WriteError
from kappaone.layouts.shards import check_shards
from kappaone.layouts.stored import why_quantised

FLOATING = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_writable(name: str, parameter: nn.Parameter) -> None:
    """Refuse what cannot be written in place, and say what to do.

    Raises:
        WriteError: for meta, lazy, partitioned, sharded, quantised and inference-mode parameters.
    """
    if isinstance(parameter, nn.parameter.UninitializedParameter):
        raise WriteError(f"{name!r} has no shape yet (a lazy module)", "run one forward pass first, then init_")
    fake = any(isinstance(mode, FakeTensorMode) for mode in _get_current_dispatch_mode_stack())
    if fake or isinstance(parameter, FakeTensor) or isinstance(parameter.data, FakeTensor):
        raise WriteError(f"{name!r} is fake (FakeTensorMode): it has no memory to write to", "call init_ outside of it")
    if parameter.is_meta:
        raise WriteError(
            f"{name!r} is on the meta device and has no memory to write to",
            "kappaone.materialize_(model, device, scheme, seed=...) makes and initialises everything; by hand: "
            "model.to_empty(device=...), then the library's own initialization of everything, tables in buffers included "
            "(model.init_weights() or the like), then kappaone.init_",
        )
    if is_partitioned(parameter):
        raise WriteError(
            f"{name!r} is partitioned by ZeRO-3: {tuple(parameter.shape)} of {tuple(getattr(parameter, 'ds_shape', ()))} is here",
            "call kappaone.init_ with the same seed on every rank where deepspeed can be imported, which gathers one layer "
            "at a time; or before deepspeed partitions the model; or in your own `with deepspeed.zero.GatheredParameters"
            "(list(model.parameters()), modifier_rank=0):`",
        )
    if parameter.numel() == 0:
        raise WriteError(
            f"{name!r} is empty here: {tuple(parameter.shape)} (partitioned, offloaded, or freed)",
            "call kappaone.init_ before the model is partitioned",
        )
    if hasattr(parameter, "_sharded_size"):
        raise WriteError(
            f"{name!r} is a ShardedTensor",
            "call kappaone.init_ with the same seed on every rank before sharding, or shard by fully_shard (DTensor)",
        )
    check_shards(name, parameter)
    quantised = why_quantised(parameter)
    if quantised is None and parameter.dtype not in FLOATING:
        quantised = f"stored as {parameter.dtype}, which no scheme writes"
    if quantised is not None:
        raise WriteError(
            f"{name!r} is {quantised}",
            f"initialise the model before quantising it, in one of {', '.join(str(d).removeprefix('torch.') for d in FLOATING)}",
        )
    if any(step == 0 and size > 1 for step, size in zip(parameter.stride(), parameter.shape, strict=True)):
        raise WriteError(
            f"{name!r} is expanded: several of its entries are one number in memory (strides {parameter.stride()})",
            "replace it by a parameter of its own memory, nn.Parameter(weight.detach().clone())",
        )
    if parameter.is_inference():
        raise WriteError(
            f"{name!r} was made under torch.inference_mode and cannot be changed", "build the model outside of it"
        )


def is_partitioned(parameter: Any) -> bool:
    """Whether ZeRO-3 holds this parameter in parts: it is empty here and knows its whole shape.

    Inside `deepspeed.zero.GatheredParameters` it has all its entries and is a parameter like any other.
    """
    return hasattr(parameter, "ds_id") and parameter.numel() == 0
