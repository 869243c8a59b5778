"""Fused copies: a module that holds its projections twice, once together and once apart.

diffusers' `fuse_projections()` adds `to_qkv` beside `to_q`, `to_k` and `to_v`, and leaves those; which of them runs is
decided by a flag. Where both hold the same numbers, both are set, so that it does not matter which runs and going back
(`unfuse_projections`) changes nothing. Where they differ and the flag says that the other one runs, the layer is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kappaone.apply.write import Transaction
from kappaone.errors import WriteError
from kappaone.layouts.blocks import as_matrix
from kappaone.layouts.layout import QKV, AttentionLayout, Role
from kappaone.layouts.shards import is_sharded


@dataclass(frozen=True)
class Copy:
    """A parameter that repeats rows of attention weights.

    Attributes:
        layer: the layer.
        parameter: name of the copy.
        roles: the roles whose rows it holds, one after the other.
    """

    layer: str
    parameter: str
    roles: tuple[Role, ...]


def find_copies(
    model_modules: Mapping[str, nn.Module], layouts: Sequence[AttentionLayout], parameters: Mapping[str, Tensor]
) -> list[Copy]:
    """Parameters beside a layer's own that hold the same numbers, fused or apart.

    Raises:
        WriteError: where a module says that its fused projections run and the layout names the others, or the other
            way round, and the two differ.
    """
    found: list[Copy] = []
    for layout in layouts:
        own = {layout.role(role).parameter for role in QKV}
        prefix = f"{layout.module}." if layout.module else ""
        others = {
            name: p
            for name, p in parameters.items()
            if name.startswith(prefix)
            and name not in own
            and p.ndim == 2
            and not p.is_meta
            and p.numel()
            and not hasattr(p, "device_mesh")
        }
        if any(is_sharded(parameters[name]) for name in own):
            _refuse_sharded(model_modules.get(layout.module), layout, parameters, prefix)
            continue
        groups = [("q", "k", "v"), ("k", "v")]
        together: tuple[Role, ...] = QKV if layout.fused() else ("k", "v") if _paired(layout) else ()
        of_layer: list[Copy] = []
        if together:
            single = {role: _equal(others, layout, (role,), parameters) for role in together}
            if all(single.values()):
                of_layer = [Copy(layout.name, name, (role,)) for role in together if (name := single[role])]
        else:
            for roles in groups:
                name = _equal(others, layout, roles, parameters)  # type: ignore[arg-type]
                if name is not None:
                    of_layer.append(Copy(layout.name, name, roles))  # type: ignore[arg-type]
                    break
        if not of_layer:
            _refuse_other(model_modules.get(layout.module), layout, others)
        found += of_layer
    return found


def _paired(layout: AttentionLayout) -> bool:
    """Whether keys and values share one weight, as cross attention does after `fuse_projections()`."""
    return layout.k.parameter == layout.v.parameter


def _rows(layout: AttentionLayout, role: Role, parameters: Mapping[str, Tensor]) -> Tensor | None:
    """All rows of a role in order, or None where they do not follow each other or lie transposed."""
    rows = layout.role(role)
    weight = parameters[rows.parameter]
    starts = range(rows.starts[0], rows.starts[0] + rows.rows, rows.size)
    if rows.step != 1 or rows.transposed or tuple(starts) != rows.starts or weight.numel() == 0:
        return None
    return as_matrix(weight.detach(), rows)[rows.starts[0] : rows.starts[0] + rows.rows]


def _equal(
    others: Mapping[str, Tensor], layout: AttentionLayout, roles: tuple[Role, ...], parameters: Mapping[str, Tensor]
) -> str | None:
    parts = [_rows(layout, role, parameters) for role in roles]
    shapes = [tuple(part.shape) for part in parts if part is not None]
    if len(shapes) < len(roles) or len({shape[1] for shape in shapes}) > 1:
        return None
    wanted = (sum(shape[0] for shape in shapes), shapes[0][1])
    for name, other in others.items():
        if tuple(other.shape) == wanted:
            at = 0
            same = True
            for part in parts:
                assert part is not None
                piece = other.detach()[at : at + part.shape[0]]
                same = same and piece.dtype == part.dtype and bool(part.any()) and torch.equal(piece, part)
                at += part.shape[0]
            if same:
                return name
    return None


def _refuse_sharded(
    module: nn.Module | None, layout: AttentionLayout, parameters: Mapping[str, Tensor], prefix: str
) -> None:
    """Whether two sharded weights hold the same numbers cannot be told without sending them around."""
    own = {layout.role(role).parameter for role in QKV} | ({layout.o.parameter} if layout.o else set())
    others = {n: tuple(p.shape) for n, p in parameters.items() if n.startswith(prefix) and n not in own and p.ndim == 2}
    both = layout.k.rows + layout.v.rows
    rows = (layout.q.rows,) if layout.fused() else (layout.q.rows + both, both)
    rivals = [name for name, shape in others.items() if shape[1] == layout.k.width and shape[0] in rows]
    if isinstance(getattr(module, "fused_projections", None), bool) and rivals:
        raise WriteError(
            f"layer {layout.name!r} may hold its projections twice ({layout.q.parameter!r} and {', '.join(map(repr, rivals))}), "
            "and they are sharded, so that they are not compared",
            "call kappaone.init_ with the same seed on every rank before sharding",
        )


def _refuse_other(module: nn.Module | None, layout: AttentionLayout, others: Mapping[str, Tensor]) -> None:
    fused = getattr(module, "fused_projections", None)
    if not isinstance(fused, bool) or fused == (layout.fused() or _paired(layout)):
        return
    width = layout.width
    rivals = [name for name, p in others.items() if p.shape[1] == width and p.shape[0] >= layout.q.rows]
    if rivals:
        raise WriteError(
            f"layer {layout.name!r} holds its projections twice and says fused_projections={fused}, but its layout names "
            f"{layout.q.parameter!r}, which differs from {', '.join(map(repr, rivals))}",
            "call fuse_projections() or unfuse_projections() anew so that both hold the same, or describe the live one "
            "with layouts=",
        )


def set_copies(
    found: Sequence[Copy],
    layouts: Sequence[AttentionLayout],
    parameters: Mapping[str, Tensor],
    transaction: Transaction,
) -> None:
    """Write into every copy what its layer holds now."""
    by_name = {layout.name: layout for layout in layouts}
    for copy in found:
        at, target = 0, parameters[copy.parameter].detach()
        for role in copy.roles:
            rows = _rows(by_name[copy.layer], role, parameters)
            assert rows is not None
            transaction.write(f"{copy.parameter}:{role}", target[at : at + rows.shape[0]], rows)
            at += rows.shape[0]


def remarks(found: Sequence[Copy]) -> list[str]:
    """What the report says of them."""
    layers = sorted({copy.layer for copy in found})
    if not found:
        return []
    names = ", ".join(copy.parameter for copy in found[:3]) + (", ..." if len(found) > 3 else "")
    return [f"{len(layers)} layers hold their projections twice, fused and apart; both are set ({names})"]
