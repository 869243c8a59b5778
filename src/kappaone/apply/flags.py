"""transformers' marks: what is set already, and must not be set again.

transformers puts `_is_hf_initialized` on modules after their construction and on parameters that a checkpoint brought,
and its init functions leave such tensors alone. What kappaone writes gets the same mark, so that `post_init`,
`init_weights`, `model.apply(model._init_weights)` and loading keep it. A mark of our own beside it says that no
checkpoint brought these weights.

`keep_initialized` gives the same protection to an `_init_weights` that writes in place (transformers#46620: such a
method silently overwrites loaded weights).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from kappaone.layouts.blocks import named_modules

MARK = "_is_hf_initialized"
OURS = "_kappaone_set"
_F = TypeVar("_F", bound=Callable[..., Any])


def mark_written(model: nn.Module, parameters: Mapping[str, Tensor], names: Iterable[str]) -> list[str]:
    """Mark parameters as initialised where the model's library looks at such marks.

    Args:
        model: the model.
        parameters: its parameters by name.
        names: those that were written.

    Returns:
        The names that were marked: those inside a model that initialises its modules one by one by such marks.
    """
    roots = [
        name
        for name, module in named_modules(model)
        if all(callable(getattr(module, method, None)) for method in ("_init_weights", "_initialize_weights"))
    ]
    marked = [name for name in names if any(root == "" or name.startswith(f"{root}.") for root in roots)]
    for name in marked:
        setattr(parameters[name], MARK, True)
        setattr(parameters[name], OURS, True)
    return marked


def from_checkpoint(parameter: Tensor) -> bool:
    """Whether transformers marks a parameter as loaded, and the mark is not ours."""
    return bool(getattr(parameter, MARK, False)) and not getattr(parameter, OURS, False)


def keep_initialized(init_weights: _F) -> _F:
    """Decorate an `_init_weights(self, module)` so that it leaves tensors alone that are initialised already.

    While the method runs, tensors of the module (and below) that carry transformers' mark are stood in for by empty
    ones on the meta device, so that in-place writes, `module.weight.data.normal_()` too, cost nothing and change
    nothing; then they are put back. Random numbers for them are not drawn.

    Examples:
        >>> class Model(nn.Module):
        ...     @keep_initialized
        ...     def _init_weights(self, module):
        ...         module.weight.data.fill_(0.0)
        >>> layer = nn.Linear(2, 2)
        >>> layer.weight._is_hf_initialized = True
        >>> Model()._init_weights(layer)
        >>> bool(layer.weight.any())
        True
    """

    @functools.wraps(init_weights)
    def wrapped(self: Any, module: nn.Module, *args: Any, **options: Any) -> Any:
        aside: list[tuple[dict[str, Any], str, Tensor]] = []
        try:
            for inner in module.modules():
                tables: list[dict[str, Any]] = [inner._parameters, inner._buffers]
                for held in tables:
                    for key, tensor in held.items():
                        if tensor is not None and getattr(tensor, MARK, False):
                            aside.append((held, key, tensor))
            for held, key, tensor in aside:
                held[key] = _standing_in(tensor)
            return init_weights(self, module, *args, **options)
        finally:
            for held, key, tensor in aside:
                held[key] = tensor

    return wrapped  # type: ignore[return-value]


def _standing_in(tensor: Tensor) -> Tensor:
    empty = torch.empty_like(tensor, device="meta")
    other = nn.Parameter(empty, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else empty
    setattr(other, MARK, True)
    return other
