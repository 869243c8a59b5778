"""Which parameters can be written in place, and what to do about those that cannot."""

from __future__ import annotations

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from kappaone.errors import WriteError

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
            "model.to_empty(device=...), then let the library initialise the rest (model.init_weights() or the like), then kappaone.init_",
        )
    if hasattr(parameter, "ds_id") or parameter.numel() == 0:
        raise WriteError(
            f"{name!r} is empty here: {tuple(parameter.shape)} (partitioned by ZeRO-3 or the like)",
            "call kappaone.init_ before the model is partitioned",
        )
    if hasattr(parameter, "device_mesh") or hasattr(parameter, "_sharded_size"):
        raise WriteError(
            f"{name!r} is sharded over several ranks",
            "call kappaone.init_ with the same seed on every rank before sharding",
        )
    if parameter.dtype not in FLOATING or hasattr(parameter, "quant_state"):
        raise WriteError(
            f"{name!r} is stored as {parameter.dtype}, which is quantised",
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
