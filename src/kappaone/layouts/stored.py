"""What stands where a weight should be: parametrizations, weight norm, pruning, packed and quantised weights.

Such a projection still computes `y = W x`, but W is no parameter that could be written in place. These are named, so
that attention is never overlooked or refused without the reason.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

# How packed weights are called by quantisation libraries: GPTQ and AWQ, compressed-tensors, HQQ and EETQ, VPTQ.
_PACKED = ("qweight", "weight_packed", "W_q", "weight_q", "packed_weight", "indices_packed")


def why_no_weight(module: Any, name: str = "weight") -> str | None:
    """Why a module's weight is no plain parameter, or None where it is one (or where there is none).

    Args:
        module: a projection, such as a Linear.
        name: its weight.

    Examples:
        >>> layer = nn.utils.parametrizations.orthogonal(nn.Linear(4, 4))
        >>> why_no_weight(layer)
        'parametrized by _Orthogonal'
        >>> why_no_weight(nn.Linear(4, 4)) is None
        True
    """
    if not isinstance(module, nn.Module):
        return None
    names = parametrizations_of(module, name)
    if names:
        return f"parametrized by {', '.join(names)}"
    if isinstance(module._parameters.get(name), Tensor):
        return why_quantised(module._parameters[name])
    held = {**dict(module._parameters), **dict(module._buffers)}
    if f"{name}_orig" in held and f"{name}_mask" in held:
        return f"pruned ({name} is {name}_orig * {name}_mask, made anew in every forward pass)"
    if f"{name}_orig" in held:
        return f"under spectral norm of the old style ({name} is made anew from {name}_orig in every forward pass)"
    if f"{name}_g" in held and f"{name}_v" in held:
        return (
            f"under weight norm of the old style ({name} is made anew from {name}_g and {name}_v in every forward pass)"
        )
    packed = next((key for key in _PACKED if isinstance(held.get(key), Tensor)), None)
    if packed is not None:
        return f"quantised (packed in {packed})"
    if callable(getattr(module, name, None)) and hasattr(module, "_packed_params"):
        # Only the words go by the class; a dynamically quantised Linear is a kind of statically quantised one.
        kind = "dynamically" if "dynamic" in type(module).__module__ else "statically"
        return f"{kind} quantised (packed in _packed_params)"
    return None


def holds_weight(module: nn.Module, name: str = "weight") -> bool:
    """Whether a module has a weight of its own: a parameter, or a tensor that is computed from its parameters.

    A property that hands out the weight of a module inside (adapters do that) is none.
    """
    if isinstance(module._parameters.get(name), Tensor) or parametrizations_of(module, name):
        return True
    # Pruning and weight norm of the old style set a plain attribute, made anew in every forward pass.
    return isinstance(vars(module).get(name), Tensor) or isinstance(module._buffers.get(name), Tensor)


def read_weight(module: nn.Module, name: str = "weight") -> Any:
    """A weight as the forward pass uses it, or whatever is there; a parametrization's state does not move.

    (Spectral norm makes a step of its power iteration at every access in training mode.)
    """
    if not parametrizations_of(module, name):
        return getattr(module, name, None)
    flags = [(inner, inner.training) for inner in module._modules["parametrizations"].modules()]  # type: ignore[union-attr]
    try:
        for inner, _ in flags:
            inner.training = False
        with torch.no_grad():
            return getattr(module, name)
    finally:
        for inner, training in flags:
            inner.training = training


def shape_of(weight: Tensor) -> tuple[int, ...]:
    """The shape of a whole weight, also where ZeRO-3 holds it in parts (it is empty here, and knows its shape).

    Examples:
        >>> shape_of(torch.zeros(2, 3))
        (2, 3)
    """
    if isinstance(weight, UninitializedParameter):
        return ()
    if hasattr(weight, "ds_id") and weight.numel() == 0:
        return tuple(int(size) for size in getattr(weight, "ds_shape", ()))
    return tuple(weight.shape)


def parametrizations_of(module: nn.Module, name: str) -> list[str]:
    """Class names of the parametrizations of one tensor of a module, as torch.nn.utils.parametrize holds them."""
    held = module._modules.get("parametrizations")
    if held is None or name not in held._modules:
        return []
    chain = held._modules[name]
    return [type(item).__name__ for item in chain.children()] if chain is not None else []


def why_quantised(weight: Any) -> str | None:
    """How a tensor is quantised, or None.

    Examples:
        >>> why_quantised(torch.zeros(2, 2, dtype=torch.int8))
        'stored as torch.int8, which is quantised'
        >>> why_quantised(torch.zeros(2, 2)) is None
        True
    """
    if not isinstance(weight, Tensor):
        return None
    if hasattr(weight, "quant_state"):  # bitsandbytes, 4 bits; None until it is on its device
        return f"stored as {weight.dtype} with a quant_state, which is quantised to 4 bits"
    if weight.is_quantized:
        return f"stored as {weight.dtype}, which is quantised"
    if weight.dtype.is_floating_point and weight.dtype.itemsize == 1:
        return f"stored as {weight.dtype} (fp8), which is quantised"
    if not weight.dtype.is_floating_point:
        return f"stored as {weight.dtype}, which is quantised"
    if is_wrapper(weight):
        return (
            f"a {type(weight).__module__.partition('.')[0]} {type(weight).__name__}, a tensor that computes its values "
            "from others (quantised, or wrapped otherwise)"
        )
    return None


def is_wrapper(weight: Tensor) -> bool:
    """Whether a tensor's values come from other tensors that it holds; DTensor, which is a sharded plain one, is not meant."""
    own = type(weight).__torch_dispatch__
    return own is not torch._C._disabled_torch_dispatch_impl and not hasattr(weight, "device_mesh")
