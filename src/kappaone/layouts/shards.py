"""Which part of a head's block lies in this process, where parameters are sharded (DTensor: FSDP2, tensor parallel).

The layout of a sharded model is that of the whole one: `DTensor.shape` is the global shape. Of each block a process
holds a part: none, all, or rows and columns of it. `pieces` gives these parts as views of the process's own memory,
each with its place in the block, so that a block that was computed whole can be written in part, and nothing needs to
be sent. A plain tensor is one piece, the whole block.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from kappaone.errors import SpecError, WriteError
from kappaone.layouts.blocks import as_matrix, block_view, named_modules, parameters_by_name
from kappaone.layouts.layout import AttentionLayout, Role, RoleRows

Place = tuple[slice, ...]


@dataclass(frozen=True)
class Piece:
    """A part of one block that lies in this process.

    Attributes:
        view: view of the process's memory: (rows, columns) of the block, or entries of a bias; written in place.
        at: where in the block it belongs.
    """

    view: Tensor
    at: Place


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, of which this process may hold a part only.

    Examples:
        >>> is_sharded(torch.zeros(2))
        False
    """
    # An instance can only exist where its module is loaded; loading it takes long.
    library = sys.modules.get("torch.distributed.tensor")
    return library is not None and isinstance(tensor, library.DTensor)


def local(tensor: Tensor) -> Tensor:
    """The part of a tensor that lies in this process, as a view; a plain tensor itself."""
    if not is_sharded(tensor):
        return tensor.detach()
    with torch.no_grad():
        part: Tensor = tensor.detach().to_local()  # type: ignore[attr-defined]
    return part.detach()


def pieces(weight: Tensor, rows: RoleRows, role: Role, head: int) -> list[Piece]:
    """The parts of one head's block that lie in this process: none, one, or several where they are not adjacent.

    Args:
        weight: the stored parameter, sharded or not.
        rows: where the role lives in the whole weight.
        role: q, k, v or o.
        head: index into `rows.starts`.

    Raises:
        LayoutError: where a local part cannot be seen as a matrix.
    """
    if not is_sharded(weight):
        return [Piece(block_view(weight, rows, role, head), (slice(None), slice(None)))]
    here = local(weight)
    if here.numel() == 0:
        return []
    matrix = as_matrix(here, rows)
    held = _held(weight)
    outputs = _flat(held[: rows.axes], weight.shape[: rows.axes])
    inputs = _flat(held[rows.axes :], weight.shape[rows.axes :])
    first, second = (inputs, outputs) if rows.transposed else (outputs, inputs)
    along, across = (second, first) if role == "o" else (first, second)
    heads, widths = _cut(along, rows.span(head)), _cut(across, slice(0, rows.width, 1))
    if role == "o":
        return [Piece(matrix[here_w, here_h], (at_w, at_h)) for here_w, at_w in widths for here_h, at_h in heads]
    return [Piece(matrix[here_h, here_w], (at_h, at_w)) for here_h, at_h in heads for here_w, at_w in widths]


def bias_pieces(bias: Tensor, rows: RoleRows, head: int) -> list[Piece]:
    """The same for one head's part of the bias of q, k or v."""
    if not is_sharded(bias):
        return [Piece(bias.detach()[rows.bias_span(head)], (slice(None),))]
    here = local(bias)
    return [Piece(here[there], (at,)) for there, at in _cut(_held(bias)[0], rows.bias_span(head))]


def whole(tensor: Tensor) -> Tensor:
    """The whole tensor, detached; a sharded one is gathered, which every process that holds it must ask for together."""
    if not is_sharded(tensor):
        return tensor.detach()
    from torch.distributed.tensor import DTensor

    sharded: Any = tensor.detach()
    here, mesh = local(tensor), sharded.device_mesh
    if here.device.type != mesh.device_type:  # offloaded to the CPU: only the mesh's devices can talk to each other
        sharded = DTensor.from_local(
            here.to(mesh.device_type),
            mesh,
            sharded.placements,
            run_check=False,
            shape=tensor.shape,
            stride=tensor.stride(),
        )
    full: Tensor = sharded.full_tensor()
    return full.detach()


def check_shards(name: str, weight: Tensor) -> None:
    """Refuse a sharded parameter of which it cannot be told which part is here.

    Raises:
        WriteError: naming the placement.
    """
    reason = _why_unknown(weight)
    if reason is not None:
        raise WriteError(
            f"{name!r} is sharded in a way that kappaone does not know: {reason}",
            "call kappaone.init_ with the same seed on every rank before sharding",
        )


def refuse_flat(model: object) -> None:
    """Refuse FSDP1, whose parameters are flattened and cut without regard to rows, unless they are summoned.

    Raises:
        WriteError: with the recipe.
    """
    library = sys.modules.get("torch.distributed.fsdp")
    if library is None or not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        if not isinstance(module, library.FullyShardedDataParallel):
            continue
        handle: Any = getattr(module, "_handle", None)
        if handle is None or "SUMMON_FULL_PARAMS" in str(getattr(handle, "_training_state", "")):
            continue
        if getattr(handle, "_use_orig_params", False) and not getattr(handle, "uses_sharded_strategy", True):
            continue  # NO_SHARD: the parameters are whole
        raise WriteError(
            f"{name or 'the model'} is wrapped by FSDP1 (FullyShardedDataParallel), which holds its weights in one flat, "
            "sharded parameter",
            "initialise before wrapping; or on every rank `with FSDP.summon_full_params(model): kappaone.init_(model, ...)`; "
            "or use FSDP2 (fully_shard), whose shards kappaone writes directly",
        )


def refuse_parallel(model: nn.Module, layouts: Sequence[AttentionLayout], why: str) -> None:
    """Refuse to measure layers that compute some of their heads only on each rank (tensor parallel).

    FSDP2 gathers its parameters before it computes; what is cut beyond that stays cut in the forward pass.

    Args:
        model: the model.
        layouts: its layers.
        why: what would have been measured.

    Raises:
        SpecError: naming the first such weight.
    """
    library = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(library, "FSDPModule", ())
    gathering = [name for name, module in named_modules(model) if isinstance(module, kind)]
    parameters = parameters_by_name(model)
    for layout in layouts:
        for role in ("q", "k", "v"):
            name = {"q": layout.q, "k": layout.k, "v": layout.v}[role].parameter
            weight: Any = parameters[name]
            if not is_sharded(weight):
                continue
            cuts = sum(_cuts(placement) is not None for placement in weight.placements)
            gathered = any(not module or name.startswith(f"{module}.") for module in gathering)
            if cuts > int(gathered):
                raise SpecError(
                    f"{why} runs the model and looks at whole layers, but {name!r} is cut by tensor parallelism "
                    f"({weight.placements}), so that each rank computes some heads only",
                    "call kappaone.init_ with the same seed on every rank before the model is parallelized",
                )


def at_rest(model: object) -> None:
    """Put the parameters of FSDP2 back into their shards.

    After a forward pass a root's parameters stay gathered, as copies: what is written into those is lost.
    """
    library = sys.modules.get("torch.distributed.fsdp")
    kind = getattr(library, "FSDPModule", None)
    if kind is not None and isinstance(model, nn.Module):
        for module in model.modules():
            if isinstance(module, kind):
                module.reshard()


def _why_unknown(weight: Any) -> str | None:
    if not is_sharded(weight):
        return None
    if weight.device_mesh.get_coordinate() is None:
        return f"this rank is not in its mesh {weight.device_mesh}"
    unknown = [placement for placement in weight.placements if not _known(placement)]
    if unknown:
        return f"placement {unknown[0]}"
    expected = tuple(sum(map(len, runs)) for runs in _held(weight))
    found = tuple(local(weight).shape)
    if expected != found and not (0 in expected and 0 in found):  # an empty part may have any other lengths
        return f"the part here has shape {found}; by {weight.placements} it has {expected}"
    return None


def _known(placement: Any) -> bool:
    from torch.distributed.tensor import Replicate

    return isinstance(placement, Replicate) or _cuts(placement) is not None


def _cuts(placement: Any) -> tuple[int, int] | None:
    """(dimension, split factor) of a placement that cuts a dimension, or None."""
    from torch.distributed.tensor import Shard, placement_types

    strided = getattr(placement_types, "_StridedShard", ())
    if isinstance(placement, strided):
        return int(placement.dim), int(placement.split_factor)
    return (int(placement.dim), 1) if isinstance(placement, Shard) else None


def _held(weight: Any) -> list[list[range]]:
    """For each dimension of a sharded weight: the global indices that lie here, in their local order.

    `Shard` cuts as `torch.chunk` does. `_StridedShard` says that the dimension was first cut into `split_factor` parts
    by a mesh dimension to the right (tensor parallel) and each of those then here (FSDP).
    """
    held = [np.arange(size) for size in weight.shape]
    mesh, coordinate = weight.device_mesh, weight.device_mesh.get_coordinate()
    for axis, placement in enumerate(weight.placements):
        cut = _cuts(placement)
        if cut is None:
            continue
        dim, factor = cut
        parts = [_chunk(part, mesh.size(axis), coordinate[axis]) for part in _chunks(held[dim], factor)]
        held[dim] = np.concatenate(parts)
    return [_runs(indices) for indices in held]


def _chunks(indices: Any, count: int) -> list[Any]:
    return [_chunk(indices, count, i) for i in range(count)]


def _chunk(indices: Any, count: int, which: int) -> Any:
    size = -(-len(indices) // count)
    return indices[which * size : (which + 1) * size]


def _runs(indices: Any) -> list[range]:
    """Stretches of consecutive numbers."""
    if not len(indices):
        return []
    breaks = np.flatnonzero(np.diff(indices) != 1) + 1
    return [range(int(part[0]), int(part[-1]) + 1) for part in np.split(indices, breaks)]


def _flat(held: Sequence[list[range]], shape: Sequence[int]) -> list[range]:
    """Indices of several dimensions read as one, the last running fastest."""
    flat = [range(1)]
    for runs, size in zip(held, shape, strict=True):
        if runs == [range(size)]:
            flat = [range(outer.start * size, outer.stop * size) for outer in flat]
        else:
            flat = [range(i * size + run.start, i * size + run.stop) for outer in flat for i in outer for run in runs]
    return flat


def _cut(runs: Sequence[range], span: slice) -> list[tuple[slice, slice]]:
    """What a span of global indices has in common with the indices that lie here: (local slice, slice of the span)."""
    count = len(range(span.start, span.stop, span.step))
    out, offset = [], 0
    for run in runs:
        first = max(0, -(-(run.start - span.start) // span.step))
        last = min(count, -(-(run.stop - span.start) // span.step))
        if first < last:
            begin = offset + span.start + first * span.step - run.start
            out.append((slice(begin, begin + (last - first - 1) * span.step + 1, span.step), slice(first, last)))
        offset += len(run)
    return out
