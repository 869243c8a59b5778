"""Read a layout's blocks out of a model: names without wrapper prefixes, parameters, views.

Views are views: writing into one writes into the parameter. Only `kappaone.apply` does that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from kappaone.errors import LayoutError
from kappaone.layouts.layout import AttentionLayout, Role, RoleRows
from kappaone.layouts.stored import parametrizations_of, read_weight

# Segments that wrappers put into qualified names: DDP, torch.compile, FSDP1, activation checkpointing.
_WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
_WRAPPER_TYPES = ("DataParallel", "OptimizedModule", "FullyShardedDataParallel", "CheckpointWrapper", "OffloadWrapper")


def _is_wrapper(module: nn.Module) -> bool:
    return any(c.__name__.endswith(_WRAPPER_TYPES) for c in type(module).__mro__)


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every module once, under its name without wrapper prefixes; wrappers themselves are left out.

    A submodule that a user called "module" keeps its name: a segment is dropped only below a wrapper.

    Examples:
        >>> [name for name, _ in named_modules(nn.Sequential(nn.Linear(2, 2)))]
        ['', '0']
    """
    seen: set[int] = set()

    def walk(module: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
        if id(module) in seen:
            return
        seen.add(id(module))
        wrapper = _is_wrapper(module)
        if not wrapper:
            yield name, module
        for child_name, child in module.named_children():
            inner = name if wrapper and child_name in _WRAPPERS else f"{name}.{child_name}" if name else child_name
            yield from walk(child, inner)

    yield from walk(model, "")


def parameters_by_name(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter under its name without wrapper prefixes; a tied one under its first name and its others.

    A parametrized weight is there too, as a copy of what the forward pass uses: a write into it reaches nothing
    (`kappaone.apply.parametrized` writes those).

    Examples:
        >>> sorted(parameters_by_name(nn.Linear(2, 2)))
        ['bias', 'weight']
    """
    found = {
        f"{name}.{key}" if name else key: parameter
        for name, module in named_modules(model)
        for key, parameter in module._parameters.items()
        if parameter is not None
    }
    for name, module in named_modules(model):
        chains = module._modules.get("parametrizations")
        for key in chains._modules if chains is not None else ():
            if parametrizations_of(module, key):
                value = read_weight(module, key).detach().clone()
                found[f"{name}.{key}" if name else key] = nn.Parameter(value, requires_grad=False)
    return found


def parameter(model: nn.Module, name: str) -> nn.Parameter:
    """One parameter by its name without wrapper prefixes.

    Raises:
        LayoutError: if there is none of that name.
    """
    found = parameters_by_name(model).get(name)
    if found is None:
        raise LayoutError(f"no parameter is called {name!r}", "list them with kappaone.find_attention(model)")
    return found


def block_view(weight: Tensor, rows: RoleRows, role: Role, head: int) -> Tensor:
    """View of one head's block with rows as outputs: (size, width) for q, k, v and (width, size) for o.

    Args:
        weight: the stored parameter (or a tensor of its shape); 1x1 convolutions are read as matrices.
        rows: where the role lives.
        role: q, k, v or o.
        head: index into `rows.starts`.
    """
    matrix = as_matrix(weight.detach(), rows)
    return matrix[:, rows.span(head)] if role == "o" else matrix[rows.span(head)]


def as_matrix(weight: Tensor, rows: RoleRows) -> Tensor:
    """View of a stored weight with rows as outputs.

    Raises:
        LayoutError: where the weight's strides allow no such view.

    Examples:
        >>> as_matrix(torch.zeros(4, 8, 32), RoleRows("w", (0,), 8, 32, axes=2)).shape
        torch.Size([32, 32])
    """
    if weight.ndim > 2:
        outputs = math.prod(weight.shape[: rows.axes])
        try:
            weight = weight.view(outputs, math.prod(weight.shape[rows.axes :]))
        except RuntimeError:
            raise LayoutError(
                f"{rows.parameter!r} of shape {tuple(weight.shape)} and strides {weight.stride()} cannot be seen as a matrix",
                "make it contiguous before it becomes a parameter",
            ) from None
    return weight.T if rows.transposed else weight


def stacked_blocks(
    model: nn.Module, layout: AttentionLayout, role: Role, *, dtype: torch.dtype | None = None
) -> Tensor:
    """A copy of all blocks of one role: (heads, size, width), for o (heads, width, size).

    Args:
        model: the model in which the layout was found.
        layout: the layer.
        role: q, k, v or o.
        dtype: dtype of the copy; the parameter's own if None.
    """
    rows = layout.role(role)
    weight = _whole(parameter(model, rows.parameter))
    blocks = torch.stack([block_view(weight, rows, role, head) for head in range(rows.heads)])
    return blocks if dtype is None else blocks.to(dtype)


def effective_blocks(
    model: nn.Module, layout: AttentionLayout, role: Role, *, dtype: torch.dtype | None = None
) -> Tensor:
    """As `stacked_blocks`, with the first factor of a low-rank projection multiplied in: (heads, size, D)."""
    blocks = stacked_blocks(model, layout, role, dtype=dtype)
    inner = layout.role(role).inner
    if inner is None:
        return blocks
    parameters = parameters_by_name(model)
    first = _whole(parameters[inner.parameter])[inner.start : inner.start + inner.size].to(blocks.dtype)
    if inner.norm is not None:
        first = _whole(parameters[inner.norm]).to(blocks.dtype)[:, None] * first
    return blocks @ first


def bias_blocks(
    model: nn.Module, layout: AttentionLayout, role: Role, *, dtype: torch.dtype | None = None
) -> Tensor | None:
    """A copy of the bias of q, k or v by head, (heads, size), or None where the role has no bias."""
    rows = layout.role(role)
    if rows.bias is None:
        return None
    bias = _whole(parameter(model, rows.bias))
    stacked = torch.stack([bias[rows.bias_span(head)] for head in range(len(rows.bias_starts))])
    return stacked if dtype is None else stacked.to(dtype)


def _whole(tensor: Tensor) -> Tensor:
    from kappaone.layouts.shards import whole  # which reads blocks itself

    return whole(tensor)
