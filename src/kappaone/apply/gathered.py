"""What needs the other ranks where parameters are sharded: whole weights, norms, samples, checksums.

Drawing needs nothing of this. Everything here is a collective: every rank that holds the model asks for it, in the same
order. Sums are exact (whole numbers, or one nonzero summand), so that every rank and every way to cut a weight gives
the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kappaone.apply.ranks import Ranks
from kappaone.errors import WriteError
from kappaone.layouts.blocks import block_view
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import is_sharded, pieces, whole
from kappaone.linalg.exact import LIMBS, Limbs, norm_of, squares
from kappaone.linalg.workers import ordered
from kappaone.schemes.base import Array, Block

Norms = dict[tuple[str, Role], list[float]]
_AT_ONCE = 1 << 23  # entries of samples in one all-reduce


class Whole(Mapping[str, Tensor]):
    """Parameters by name, sharded ones gathered when they are asked for; the last one is kept, since roles share it."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        found = self._parameters[name]
        if not is_sharded(found):
            return found
        if self._last is None or self._last[0] != name:
            self._last = None  # never two at a time
            self._last = (name, whole(found))
        return self._last[1]

    def sharded(self, name: str) -> bool:
        """Whether asking for this one is a collective."""
        return is_sharded(self._parameters[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __len__(self) -> int:
        return len(self._parameters)


class Present:
    """Reads the present blocks of one layer in float64: what `LayerShape.current` is.

    While the plan is made, sharded weights are gathered when they are read. Later, blocks are computed beside each
    other in threads, which must not talk to other ranks: then only what `fetch` has brought can be read.
    """

    def __init__(self, layout: AttentionLayout, whole_weights: Whole) -> None:
        self._layout = layout
        self._weights = whole_weights
        self._brought: dict[Block, Array] = {}
        self.planning = True

    def __call__(self, role: str, head: int) -> Array:
        """One present block, whole."""
        if (role, head) in self._brought:
            return self._brought[role, head]
        rows = self._layout.role(_role(role))
        if not self.planning and self._weights.sharded(rows.parameter):
            raise WriteError(
                f"{rows.parameter!r} is sharded, and the scheme reads its present values while it computes role {role}, head {head}",
                "the scheme's jobs must say so: Job(..., reads=True)",
            )
        block = block_view(self._weights[rows.parameter], rows, _role(role), head)
        return np.ascontiguousarray(block.to("cpu", torch.float64, copy=True).numpy())

    def fetch(self, blocks: Sequence[Block]) -> None:
        """Gather these blocks; a collective."""
        self.planning = True
        self._brought |= {block: self(*block) for block in blocks}
        self.planning = False

    def forget(self, blocks: Sequence[Block]) -> None:
        """Let them go."""
        for block in blocks:
            self._brought.pop(block, None)


def all_norms(layouts: Sequence[AttentionLayout], parameters: Mapping[str, Tensor], ranks: Ranks) -> Norms:
    """Frobenius norms of all blocks by (layer, role), from the parts that each rank holds; one all-reduce."""
    asked = [(layout, role) for layout in layouts for role in _roles(layout)]
    tasks = (partial(_squares, layout, role, parameters, ranks) for layout, role in asked)
    sums = list(ordered(tasks))
    total = ranks.sum(np.concatenate(sums)) if sums else np.zeros((0, LIMBS), np.int64)
    out, at = {}, 0
    for layout, role in asked:
        heads = layout.role(role).heads
        out[layout.name, role] = [norm_of(row) for row in total[at : at + heads]]
        at += heads
    return out


def samples(
    wanted: Sequence[tuple[AttentionLayout, Role, int]], parameters: Mapping[str, Tensor], ranks: Ranks, limit: int
) -> dict[tuple[str, Role], NDArray[np.float64]]:
    """Entries of the blocks of some roles, the same ones as of a model that is not sharded.

    Args:
        wanted: layer, role, and every how many rows of a block one is taken.
        parameters: by name.
        ranks: who holds them.
        limit: entries of each role at most.
    """
    out: dict[tuple[str, Role], NDArray[np.float64]] = {}
    batch: list[tuple[tuple[str, Role], NDArray[np.float32]]] = []

    def send() -> None:
        if batch:
            total = ranks.sum(np.concatenate([values for _, values in batch]))
            at = 0
            for key, values in batch:
                out[key] = total[at : at + values.size].astype(np.float64)
                at += values.size
            batch.clear()

    for layout, role, step in wanted:
        rows = layout.role(role)
        taken = [_part(layout, role, head, parameters, ranks)[::step].reshape(-1) for head in range(rows.heads)]
        batch.append(((layout.name, role), np.concatenate(taken)[:limit]))
        if sum(values.size for _, values in batch) > _AT_ONCE:
            send()
    send()
    return out


def agree_on_checksums(
    blocks: Sequence[tuple[AttentionLayout, Role, int]],
    computed: Mapping[tuple[str, Role, int], str],
    codes: Sequence[int],
    ranks: Ranks,
) -> tuple[list[str], list[int], list[str]]:
    """Checksums of blocks, each computed by the ranks that hold a part of it; one all-reduce.

    Args:
        blocks: layer, role, head.
        computed: checksums of the blocks that this rank computed.
        codes: further whole numbers of which the largest over all ranks is wanted.
        ranks: who holds them.

    Returns:
        The checksums, the largest codes, and the blocks whose ranks computed different bits.
    """
    table = np.full((len(blocks), 4), -1, np.int64)
    mask = (1 << 32) - 1
    for row, (layout, role, head) in zip(table, blocks, strict=True):
        text = computed.get((layout.name, role, head))
        if text is not None:
            high, low = int(text[:8], 16), int(text[8:], 16)
            row[:] = high, low, mask - high, mask - low
    flat = ranks.max(np.concatenate([table.reshape(-1), np.array(codes, np.int64)]))
    table, found = flat[: table.size].reshape(-1, 4), flat[table.size :]
    texts = [f"{int(high):08x}{int(low):08x}" for high, low, _, _ in table]
    different = [
        f"{layout.role(role).parameter}, role {role}, head {head}"
        for (layout, role, head), (high, low, not_high, not_low) in zip(blocks, table, strict=True)
        if (high, low) != (mask - not_high, mask - not_low)
    ]
    return texts, [int(code) for code in found], different


def _squares(layout: AttentionLayout, role: Role, parameters: Mapping[str, Tensor], ranks: Ranks) -> Limbs:
    rows = layout.role(role)
    weight = parameters[rows.parameter]
    out = np.zeros((rows.heads, LIMBS), np.int64)
    if ranks.counts(weight):
        for head in range(rows.heads):
            for piece in pieces(weight, rows, role, head):
                out[head] += squares(piece.view.to("cpu", torch.float64, copy=True).numpy())
    return out


def _part(
    layout: AttentionLayout, role: Role, head: int, parameters: Mapping[str, Tensor], ranks: Ranks
) -> NDArray[np.float32]:
    """One block with the entries that this rank has, zero elsewhere."""
    rows = layout.role(role)
    weight = parameters[rows.parameter]
    shape = (rows.width, rows.size) if role == "o" else (rows.size, rows.width)
    out = np.zeros(shape, np.float32)
    if ranks.counts(weight):
        for piece in pieces(weight, rows, role, head):
            out[piece.at] = piece.view.to("cpu", torch.float32, copy=True).numpy()
    return out


def _roles(layout: AttentionLayout) -> list[Role]:
    every: tuple[Role, ...] = ("q", "k", "v", "o")
    return [role for role in every if role != "o" or layout.o is not None]


def _role(role: str) -> Role:
    return "q" if role == "q" else "k" if role == "k" else "v" if role == "v" else "o"
