"""A site: one module of a model, as an adapter sees it. Attributes and shapes, never class names.

Class names change (FSDP2 renames classes, users subclass, releases rename), so an adapter asks a site for the
projections it has and for its other children, and decides by those.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from kappaone.errors import LayoutError
from kappaone.layouts.layout import Inner, RoleRows
from kappaone.layouts.stored import holds_weight, read_weight, shape_of

# Children by which a module holds the linear map that it wraps: PEFT and LoRA layers, clipped linear maps, linear maps
# and 1x1 convolutions with a norm behind them.
_WRAPPED = ("base_layer", "linear", "ln", "conv", "c", "original_layer")


@dataclass(frozen=True)
class Outside:
    """What an adapter answers for a module that mixes tokens without softmax(Q K^T) V: it is none of our business.

    Attributes:
        why: what it does instead, such as "linear attention".
    """

    why: str


@dataclass(frozen=True)
class Refusal:
    """What an adapter answers for attention that it knows and that no layout can state.

    Attributes:
        why: the reason, such as "each head's projection is a module of its own".
    """

    why: str


@dataclass(frozen=True)
class Projection:
    """One linear map of a site: its weight, how it is stored, and its bias.

    Attributes:
        weight: qualified name of the weight.
        bias: qualified name of the bias, or None.
        outputs: number of outputs (rows of W in y = W x).
        inputs: number of inputs.
        transposed: stored (in, out).
        axes: leading axes of the stored weight that are its outputs.
    """

    weight: str
    bias: str | None
    outputs: int
    inputs: int
    transposed: bool
    axes: int = 1

    def rows(self, starts: Sequence[int], size: int, *, step: int = 1, inner: Inner | None = None) -> RoleRows:
        """These rows of the projection as a role."""
        at = tuple(starts)
        bias_at = at if self.bias is not None else ()
        return RoleRows(self.weight, at, size, self.inputs, self.transposed, self.bias, bias_at, step, self.axes, inner)

    def columns(self, heads: int, *, start: int = 0, size: int | None = None, interleaved: bool = False) -> RoleRows:
        """The projection as an output projection: its input columns, split evenly by head.

        Args:
            heads: heads of what it reads.
            start: its first column that reads attention, where it reads something else too.
            size: columns of each head; all that there are, divided evenly, if None.
            interleaved: the columns run over heads first (head_dim is the outer axis).
        """
        size = (self.inputs - start) // heads if size is None else size
        starts = range(start, start + heads) if interleaved else range(start, start + size * heads, size)
        step = heads if interleaved else 1
        return RoleRows(self.weight, tuple(starts), size, self.outputs, self.transposed, self.bias, (), step, self.axes)


@dataclass(frozen=True)
class Site:
    """One module of a model, with what is around it.

    Attributes:
        name: qualified name without wrapper prefixes.
        module: the module.
        modules: all modules of the model by name.
    """

    name: str
    module: nn.Module
    modules: Mapping[str, nn.Module]

    def attribute(self, name: str, default: Any = None) -> Any:
        """A plain attribute of the module."""
        return getattr(self.module, name, default)

    def qualified(self, child: str) -> str:
        """The full name of something in the module."""
        return f"{self.name}.{child}" if self.name else child

    def parent(self) -> tuple[str, nn.Module] | None:
        """Name and module of the parent, or None for the root."""
        if not self.name:
            return None
        name = self.name.rpartition(".")[0]
        return (name, self.modules[name]) if name in self.modules else None

    def ancestors(self) -> Iterator[nn.Module]:
        """The modules around the site, the nearest first."""
        name = self.name
        while name:
            name = name.rpartition(".")[0]
            if name in self.modules:
                yield self.modules[name]

    def sibling(self, path: str) -> Projection | None:
        """A projection under the parent, such as "output.dense"."""
        above = self.parent()
        return None if above is None else Site(above[0], above[1], self.modules).projection(path)

    def children(self) -> set[str]:
        """Names of the children, Dropout and Identity aside (they hold no parameter and no child)."""
        inert = (nn.Dropout, nn.Identity)
        found = {name for name, child in self.module.named_children() if not isinstance(child, inert)}
        return found - {"parametrizations"}  # where torch keeps what own_parameters names

    def own_parameters(self) -> set[str]:
        """Names of the parameters that the module holds itself, parametrized ones included."""
        own = {name for name, p in self.module._parameters.items() if p is not None}
        parametrized = self.module._modules.get("parametrizations")
        return own if parametrized is None else own | set(parametrized._modules)

    def projection(self, child: str, *, transposed: bool | None = None, axes: int = 1) -> Projection | None:
        """A linear map by the name of a child module, or of a parameter of the module or of a child.

        A child that only wraps a linear map (an adapter's `base_layer`, a clipped or a normalized linear map) is looked
        through: its weight then lies one level down.

        Args:
            child: such as "qkv", "attention.query", "to_out.0" or "in_proj_weight".
            transposed: how the weight is stored; by the child's attributes (`nf` means Conv1D) if None.
            axes: leading axes of the weight that are its outputs, for a parameter of more than two axes.

        Returns:
            The projection, or None if there is no two-dimensional weight (or 1x1 convolution) of that name.
        """
        owner: Any = self.module
        *path, last = child.split(".")
        for step in path:
            owner = getattr(owner, step, None)
        target = getattr(owner, last, None)
        while isinstance(target, nn.Module) and not holds_weight(target):
            inner = next((name for name in _WRAPPED if isinstance(getattr(target, name, None), nn.Module)), None)
            if inner is None:
                return None
            child, target = f"{child}.{inner}", getattr(target, inner)
        if isinstance(target, nn.Module):
            weight, bias = read_weight(target), getattr(target, "bias", None)
            weight_name, bias_name = f"{child}.weight", f"{child}.bias"
            if transposed is None:
                transposed = hasattr(target, "nf") and not hasattr(target, "in_features")
        else:
            weight, weight_name = read_weight(owner, last) if isinstance(owner, nn.Module) else target, child
            stem = child.removesuffix("weight")
            bias_name = f"{stem}bias" if stem != child else ""
            bias = getattr(owner, bias_name.rpartition(".")[2], None) if bias_name else None
        if isinstance(weight, UninitializedParameter):
            raise LayoutError(
                f"{self.qualified(weight_name)!r} has no shape yet (a lazy module)", "run one forward pass first"
            )
        shape = shape_of(weight) if isinstance(weight, Tensor) else ()
        if len(shape) < 2 or (axes == 1 and (len(shape) not in (2, 4) or prod(shape[2:]) != 1)):
            return None
        outputs, inputs = prod(shape[:axes]), prod(shape[axes:])
        if transposed:
            outputs, inputs = inputs, outputs
        has_bias = isinstance(bias, Tensor)
        return Projection(
            self.qualified(weight_name),
            self.qualified(bias_name) if has_bias else None,
            int(outputs),
            int(inputs),
            bool(transposed),
            axes,
        )

    def first_projection(self, *children: str) -> Projection | None:
        """The first of several names under which there is a projection."""
        return next((part for child in children if (part := self.projection(child)) is not None), None)

    def shapes(self) -> str:
        """The parameters of the module with their shapes, for error messages."""
        found = [
            f"{name} (lazy: run one forward pass first)"
            if isinstance(p, UninitializedParameter)
            else f"{name} {tuple(p.shape)}"
            for name, p in self.module.named_parameters()
        ]
        return ", ".join(found) if found else "no parameters"
