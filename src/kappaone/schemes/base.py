"""What a scheme is: a pure function from the shapes of a layer, keyed streams and options to blocks.

A scheme returns *jobs*. A job names the blocks it gives and computes them when asked, in float64, so that blocks of
a large model are drawn in parallel and never all held at once. Blocks follow the convention of
`kappaone.layouts.layout`: (head_dim, width) for q, k, v and (width, head_dim) for o, multiplying tokens from the left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kappaone.errors import SpecError
from kappaone.laws import Law
from kappaone.streams import LayerStream

Array = NDArray[np.float64]
Block = tuple[str, int]  # (role, head); the head of k and v is a key/value head


@dataclass(frozen=True)
class RoleShape:
    """Shape of one role.

    Attributes:
        heads: number of blocks.
        size: head_dim of the role.
        width: width of the tokens it reads (for o: writes).
        stored_rows: outputs of the parameter that holds it; more than heads x size where roles are fused.
    """

    heads: int
    size: int
    width: int
    stored_rows: int

    @property
    def rows(self) -> int:
        """Rows of the role over all heads."""
        return self.heads * self.size


@dataclass(frozen=True)
class LayerShape:
    """What a scheme may know of a layer.

    Attributes:
        name: qualified name.
        roles: shapes by role; "o" only where the output projection is known.
        kv_head: for each query head, its key/value head.
        index: position of the layer among the model's attention layers.
        count: number of attention layers.
        laws: the laws by which the library draws the weights.
        current: reads the present block of (role, head) in float64.
        norm: Frobenius norm of the present block of (role, head), the same however a model is sharded.
    """

    name: str
    roles: Mapping[str, RoleShape]
    kv_head: tuple[int, ...]
    index: int
    count: int
    laws: tuple[Law, ...] = ()
    current: Callable[[str, int], Array] = field(default=lambda role, head: np.zeros((0, 0)))
    norm: Callable[[str, int], float] = field(default=lambda role, head: 0.0)

    def stacked(self, role: str) -> Array:
        """The present blocks of a role, one above the other (o: side by side)."""
        blocks = [self.current(role, head) for head in range(self.roles[role].heads)]
        return np.concatenate(blocks, axis=1 if role == "o" else 0)


@dataclass(frozen=True)
class Job:
    """Blocks that are computed together.

    Attributes:
        blocks: the (role, head) pairs that it gives.
        compute: gives them, in float64.
        keeps: the blocks are the present ones, unchanged; nothing needs to be written unless they are rescaled.
        reads: `compute` reads the present values of these blocks (`LayerShape.current`); on a model whose parameters
            are sharded they are gathered before, and what is not gathered cannot be read.
    """

    blocks: tuple[Block, ...]
    compute: Callable[[], dict[Block, Array]]
    keeps: bool = False
    reads: bool = False

    def only(self, parts: str) -> Job:
        """The same job, giving only the blocks of these roles."""
        blocks = tuple(block for block in self.blocks if block[0] in parts)
        if blocks == self.blocks:
            return self
        return Job(
            blocks,
            lambda: {block: array for block, array in self.compute().items() if block in blocks},
            self.keeps,
            self.reads,
        )


def per_head(
    layer: LayerShape, roles: str, make: Callable[[str, RoleShape, int], Array], *, reads: bool = False
) -> list[Job]:
    """One job for each head of each role; `make(role, shape, head)` gives its block (`reads`: from the present one)."""

    def compute(role: str, shape: RoleShape, head: int) -> dict[Block, Array]:
        return {(role, head): make(role, shape, head)}

    return [
        Job(((role, head),), partial(compute, role, layer.roles[role], head), reads=reads)
        for role in roles
        for head in range(layer.roles[role].heads)
    ]


def per_role(layer: LayerShape, roles: str, make: Callable[[str, RoleShape], Array]) -> list[Job]:
    """One job for each role; `make(role, shape)` gives (rows, width), for o (width, rows), which is split by head."""

    def compute(role: str, shape: RoleShape) -> dict[Block, Array]:
        whole = make(role, shape)
        at = {head: slice(head * shape.size, (head + 1) * shape.size) for head in range(shape.heads)}
        return {(role, head): whole[:, rows] if role == "o" else whole[rows] for head, rows in at.items()}

    return [
        Job(tuple((role, head) for head in range(layer.roles[role].heads)), partial(compute, role, layer.roles[role]))
        for role in roles
    ]


@dataclass(frozen=True)
class Option:
    """One option of a scheme.

    Attributes:
        default: value when it is not given.
        choices: allowed words, if words are allowed.
        number: whether a number is allowed ("int", "float" or "").
        flag: whether it is true or false; written bare, it is true.
        help: one line.
    """

    default: Any
    choices: tuple[str, ...] = ()
    number: Literal["", "int", "float"] = ""
    flag: bool = False
    help: str = ""

    def check(self, owner: str, name: str, value: Any) -> Any:
        """The value in its right type.

        Raises:
            SpecError: if it is none of what is allowed; the message lists that.
        """
        if self.flag and (isinstance(value, bool) or value in ("true", "false")):
            return value in (True, "true")
        if isinstance(value, str) and value in self.choices:
            return value
        numeric = isinstance(value, (int, float)) and not isinstance(value, bool) and np.isfinite(value)
        if self.number == "float" and numeric:
            return float(value)
        if self.number == "int" and numeric and float(value).is_integer():
            return int(value)
        raise SpecError(
            f"{owner}: {name}={value}; expected {self.allowed()}", f"write for instance {name}={self.example()}"
        )

    def allowed(self) -> str:
        """What may be written, in words."""
        kinds = [*self.choices]
        kinds += {"": [], "int": ["a whole number"], "float": ["a number"]}[self.number]
        kinds += ["true", "false"] if self.flag else []
        return " or ".join(kinds)

    def example(self) -> str:
        """A value that is allowed."""
        if self.flag:
            return "true"
        return self.choices[0] if self.choices else str(self.default)


@dataclass(frozen=True)
class Scheme:
    """An entry of the registry.

    Attributes:
        name: how it is called.
        summary: one line.
        source: paper or code that it comes from.
        parts: the roles that it sets unless `parts=` says otherwise.
        make: pure function (layer, stream, **options) -> jobs.
        options: its own options.
        told_parts: `make` also takes `parts`, since it sets roles together and must know which are wanted.
    """

    name: str
    summary: str
    source: str
    make: Callable[..., list[Job]]
    parts: str = "qkv"
    options: Mapping[str, Option] = field(default_factory=dict)
    told_parts: bool = False

    def jobs(self, layer: LayerShape, stream: LayerStream, parts: str, options: Mapping[str, Any]) -> list[Job]:
        """The jobs of one layer, for some of its roles; options that are not given take their defaults."""
        given = {name: options.get(name, option.default) for name, option in self.options.items()}
        if self.told_parts:
            given["parts"] = parts
        jobs = (job.only(parts) for job in self.make(layer, stream, **given))
        return [job for job in jobs if job.blocks]
