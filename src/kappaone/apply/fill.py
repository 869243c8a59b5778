"""Compute the blocks of a plan and write them: beside each other on all cores, written in order.

Where parameters are sharded, a rank computes the blocks of which it holds a part, whole, and writes that part. What a
report says of whole blocks is then put together from all ranks at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kappaone.apply.gathered import Norms, Present, Whole, agree_on_checksums, all_norms
from kappaone.apply.plan import ROLES, PlannedLayer
from kappaone.apply.ranks import Ranks
from kappaone.apply.report import InitReport, LayerReport, role_fingerprints
from kappaone.apply.ties import Memory, memory
from kappaone.apply.write import Transaction, fingerprint, norm, rounded
from kappaone.errors import LayoutError
from kappaone.layouts.blocks import block_view
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.shards import Piece, bias_pieces, pieces
from kappaone.linalg.workers import ordered
from kappaone.schemes.base import Block, Job

Work = list[tuple[int, Job]]
# What a rank can say of its part of a bias; the largest over all ranks is true of the whole.
_BIAS = ("none", "zero", "nonzero")


@dataclass(frozen=True)
class _Drawn:
    """One block, ready to be written: for each part that lies here, where, what, and a CPU copy of what is there."""

    parts: list[tuple[Piece, Tensor, Tensor]]
    before: float
    after: float
    checksum: str


class Fill:
    """The writes of one `init_`.

    Args:
        plan: the layers with their jobs.
        report: to be filled in.
        parameters: the model's parameters by name.
        ranks: who holds them.
        before: norms of all blocks before, where they are known already (sharded models).
    """

    def __init__(
        self,
        plan: Sequence[PlannedLayer],
        report: InitReport,
        parameters: Mapping[str, Tensor],
        ranks: Ranks,
        before: Norms,
    ) -> None:
        self._plan, self._report, self._parameters, self._ranks, self._before = plan, report, parameters, ranks, before
        self._computed: dict[tuple[str, Role, int], str] = {}
        self._biases: dict[tuple[str, Role], int] = {}
        self.work = self._claim()

    def _claim(self) -> Work:
        """The jobs to run: of two layers that share a weight, the first one draws it."""
        claimed: dict[tuple[Memory, str, int], str] = {}
        work: Work = []
        for index, layer in enumerate(self._plan):
            for job in layer.jobs:
                keys = {
                    (
                        memory(self._parameters[layer.layout.role(_role(r)).parameter]),
                        r,
                        layer.layout.role(_role(r)).starts[h],
                    )
                    for r, h in job.blocks
                }
                if keys & set(claimed):
                    for role, _ in job.blocks:
                        tied = self._report.layers[index].roles[role]
                        tied.status, tied.norms_before = "tied", self._norms(layer.layout, _role(role))
                    continue
                claimed |= dict.fromkeys(keys, layer.layout.name)
                work.append((index, job))
        return work

    def write(self, transaction: Transaction) -> None:
        """Draw blocks on all cores and write them in order."""
        tasks = self._tasks()
        try:
            for (index, job), drawn in zip(self.work, ordered(tasks), strict=True):
                layout, done = self._plan[index].layout, self._report.layers[index]
                for role, head in sorted(job.blocks):
                    entry = done.roles[role]
                    if entry.status != "set":
                        entry.status = "set"
                        heads = layout.role(_role(role)).heads
                        entry.norms_after, entry.fingerprints = [float("nan")] * heads, [""] * heads
                        entry.bias = self._zero_bias(layout, _role(role), transaction)
                    if (role, head) in drawn:
                        block = drawn[role, head]
                        for piece, values, old in block.parts:
                            transaction.write(f"{layout.name}:{role}{head}", piece.view, values, old)
                        self._computed[layout.name, _role(role), head] = block.checksum
                        entry.norms_before[head], entry.norms_after[head] = block.before, block.after
                        entry.fingerprints[head] = block.checksum
                self._present(index).forget(job.blocks)
        except BaseException:
            deque(tasks, maxlen=0)  # other ranks may wait for this one in what the rest of the jobs gather
            raise

    def _tasks(self) -> Iterator[Callable[[], dict[Block, _Drawn]]]:
        for index, job in self.work:
            layout = self._plan[index].layout
            if self._ranks.sharded and job.reads:
                self._present(index).fetch(job.blocks)
            held = not self._ranks.sharded or any(self._here(layout, _role(r), h) for r, h in job.blocks)
            yield partial(self._draw, layout, job) if held else dict

    def _draw(self, layout: AttentionLayout, job: Job) -> dict[Block, _Drawn]:
        """Compute the blocks of a job, and all that needs their numbers: it runs beside others, on one thread."""
        out: dict[Block, _Drawn] = {}
        for (role, head), array in job.compute().items():
            rows = layout.role(_role(role))
            weight = self._parameters[rows.parameter]
            here = self._here(layout, _role(role), head)
            if not here:
                continue
            values = rounded(torch.from_numpy(array), weight.dtype, f"{rows.parameter}, role {role}, head {head}")
            expected = (rows.width, rows.size) if role == "o" else (rows.size, rows.width)
            if values.shape != expected:
                raise LayoutError(
                    f"the scheme gives a {tuple(values.shape)} block for {layout.name!r}, role {role}, head {head}; expected {expected}",
                    "report this scheme",
                )
            parts, before = [], float("nan")
            for piece in here:
                # Both copies in the order of the storage: copying across it is several times slower.
                across = piece.view.stride(0) < piece.view.stride(1)
                old = piece.view.T.to("cpu", copy=True).T if across else piece.view.to("cpu", copy=True)
                new = values[piece.at]
                parts.append((piece, new.T.contiguous().T if across else new, old))
                if not self._ranks.sharded:
                    before = norm(old.T if across else old)
            after = float("nan") if self._ranks.sharded else norm(values)
            out[role, head] = _Drawn(parts, before, after, fingerprint(values))
        return out

    def settle(self, gains: bool) -> None:
        """Complete the report: after gains on q and k, and by what other ranks wrote.

        Args:
            gains: q and k were rescaled after they were written, so that norms and checksums are read again.
        """
        if not self._ranks.sharded:
            for layer in self._report.layers if gains else ():
                _read_again(layer, self._parameters)
            return
        layers = self._report.layers
        after = all_norms([layer.layout for layer in layers], self._parameters, self._ranks)
        blocks = [
            (layer.layout, _role(role), head)
            for layer in layers
            for role, entry in layer.roles.items()
            if entry.status == "set"
            for head in range(len(entry.fingerprints))
        ]
        codes = [self._biases.get((layer.layout.name, _role(role)), 0) for layer in layers for role in layer.roles]
        codes.append(int(self._report.seconds * 1000))
        checksums, codes, different = agree_on_checksums(blocks, self._computed, codes, self._ranks)
        texts = {(layout.name, role, head): text for (layout, role, head), text in zip(blocks, checksums, strict=True)}
        weights = Whole(self._parameters)
        self._report.seconds = codes.pop() / 1000
        for layer in layers:
            for role, entry in layer.roles.items():
                bias = _BIAS[codes.pop(0)]
                if entry.status != "set":
                    continue
                name, heads = layer.layout.name, range(len(entry.fingerprints))
                entry.norms_before, entry.norms_after = self._norms(layer.layout, _role(role)), after[name, _role(role)]
                entry.bias = ("zeroed" if layer.layout.zero_bias else "left") if bias == "nonzero" else bias
                if (gains and role in "qk") or different:
                    entry.fingerprints = list(role_fingerprints(layer.layout, _role(role), weights))
                else:
                    entry.fingerprints = [texts[name, _role(role), head] for head in heads]
        if different:
            self._report.remarks.append(
                f"the ranks computed different last bits of {len(different)} blocks (machines of several types?): {different[0]}"
            )

    def _zero_bias(self, layout: AttentionLayout, role: Role, transaction: Transaction) -> str:
        """Zero the biases of a role that was set, where the library's own default is zero."""
        rows = layout.role(role)
        if rows.bias is None or role == "o":
            return "none"
        bias = self._parameters[rows.bias]
        parts = [(head, piece) for head in range(len(rows.bias_starts)) for piece in bias_pieces(bias, rows, head)]
        if not any(bool(piece.view.any()) for _, piece in parts):
            self._biases[layout.name, role] = 1
            return "zero"
        self._biases[layout.name, role] = 2
        if not layout.zero_bias:
            return "left"
        for head, piece in parts:
            transaction.write(f"{layout.name}:{role}{head} bias", piece.view, torch.zeros_like(piece.view))
        return "zeroed"

    def _here(self, layout: AttentionLayout, role: Role, head: int) -> list[Piece]:
        rows = layout.role(role)
        return pieces(self._parameters[rows.parameter], rows, role, head)

    def _norms(self, layout: AttentionLayout, role: Role) -> list[float]:
        return list(self._before[layout.name, role]) if self._before else present_norms(layout, role, self._parameters)

    def _present(self, index: int) -> Present:
        present = self._plan[index].shape.current
        assert isinstance(present, Present)
        return present


def present_norms(layout: AttentionLayout, role: Role, parameters: Mapping[str, Tensor]) -> list[float]:
    """Norms of the blocks of one role of a model that is not sharded."""
    rows = layout.role(role)
    return [norm(block_view(parameters[rows.parameter], rows, role, head)) for head in range(rows.heads)]


def _read_again(layer: LayerReport, parameters: Mapping[str, Tensor]) -> None:
    for role, entry in layer.roles.items():
        if entry.status == "set":
            entry.norms_after = present_norms(layer.layout, _role(role), parameters)
            entry.fingerprints = list(role_fingerprints(layer.layout, _role(role), parameters))


def _role(role: str) -> Role:
    return next(r for r in ROLES if r == role)
