"""The processes that hold one model together: they agree before anything is written, and they add up what each one has.

A rank that raises alone leaves the others waiting in their next collective until a timeout kills the job. So every
stage of `init_` ends in one small all-reduce: if any rank failed, or was called otherwise than the others, all ranks
raise the same error. Models of one process cost nothing here.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from kappaone.apply.write import NOTHING
from kappaone.errors import KappaoneError, LayoutError, MeasureError, SpecError, WriteError
from kappaone.layouts.blocks import parameters_by_name
from kappaone.layouts.shards import is_sharded

_TEXT = 8192  # bytes of each rank's words; sent only when something is wrong
_DIGEST = (1 << 60) - 1
_KINDS = {kind.__name__: kind for kind in (SpecError, LayoutError, WriteError, MeasureError)}
Number = TypeVar("Number", np.int64, np.float32, np.float64, np.uint8)


class Ranks:
    """Who holds a model together with this process.

    Args:
        members: global ranks over which the parameters are sharded; empty where none is.
        groups: process groups; a reduction over each in turn is one over all members.
        partners: further groups whose ranks must agree, though they hold whole copies (DDP).
        device: where the groups' tensors live.

    Attributes:
        sharded: parameters are sharded, so that norms need other ranks.
        first: this is the first of the ranks, which prints.
    """

    def __init__(
        self,
        members: Sequence[int] = (),
        groups: Sequence[Any] = (),
        partners: Sequence[Any] = (),
        device: torch.device | None = None,
    ) -> None:
        self._members = frozenset(members)
        self._groups = list(groups)
        self._partners = list(partners)
        self._device = device or torch.device("cpu")
        self.sharded = bool(members)
        self.first = True
        if self.sharded or partners:
            here = torch.distributed.get_rank()
            seen = [set(torch.distributed.get_process_group_ranks(group)) for group in partners]
            self.first = here == min(self._members.union(*seen))

    def sum(self, numbers: NDArray[Number]) -> NDArray[Number]:
        """The sum over all ranks; one all-reduce."""
        return self._reduce(numbers, "SUM", self._groups)

    def max(self, numbers: NDArray[Number]) -> NDArray[Number]:
        """The largest over all ranks; one all-reduce."""
        return self._reduce(numbers, "MAX", self._groups)

    def counts(self, tensor: Tensor) -> bool:
        """Whether this rank's part of a tensor is the one that is added up; a replicated part is added once."""
        if not self.sharded:
            return True
        lowest = min(self._members)
        if not is_sharded(tensor):
            return torch.distributed.get_rank() == lowest
        from torch.distributed.tensor import Replicate

        sharded: Any = tensor
        if lowest not in sharded.device_mesh.mesh:
            return False
        at = sharded.device_mesh.get_coordinate()
        return all(at[i] == 0 for i, p in enumerate(sharded.placements) if isinstance(p, Replicate))

    def pooled(self, values: Mapping[str, float]) -> dict[str, float]:
        """Root mean squares over all ranks of measurements, the same bits on each; one all-reduce.

        Replicas (DDP) count too: each may have measured on its own data, and all must set the same weights.
        """
        everyone = [*self._groups, *self._partners]
        if not everyone or not values:
            return dict(values)
        table = np.full((torch.distributed.get_world_size(), len(values)), -np.inf)
        table[torch.distributed.get_rank()] = list(values.values())
        rows = self._reduce(table, "MAX", everyone)
        rows = rows[rows[:, 0] > -np.inf]
        equal = (rows == rows[0]).all(axis=0)
        means = np.where(equal, rows[0], np.sqrt((rows**2).mean(axis=0)))
        return dict(zip(values, map(float, means), strict=True))

    @contextmanager
    def agreed(self, otherwise: str) -> Iterator[list[str]]:
        """A stage that all ranks pass, or none.

        Args:
            otherwise: what holds on every rank if one of them fails, for the message.

        Yields:
            A list to which the stage adds what must be the same on every rank.

        Raises:
            KappaoneError: the same on every rank, naming the rank and the cause.
        """
        said: list[str] = []
        if not self._groups and not self._partners:
            yield said
            return
        failure: BaseException | None = None
        try:
            yield said
        except torch.distributed.DistError:
            raise  # there is nobody left to talk to
        except BaseException as error:  # an interrupt too: the others must not wait for it
            failure = error
        self._settle(said, failure, otherwise)

    def _settle(self, said: list[str], failure: BaseException | None, otherwise: str) -> None:
        digest = int(hashlib.sha256("\n".join(said).encode()).hexdigest()[:15], 16)
        mine = [1, -1, -1] if failure else [0, digest, _DIGEST - digest]
        everyone = [*self._groups, *self._partners]
        failed, highest, lowest = self._reduce(np.array(mine, np.int64), "MAX", everyone).tolist()
        if not failed and highest == _DIGEST - lowest:
            return
        words = self._words(said, failure, everyone)
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        broken = {rank: word for rank, word in words.items() if word["type"]}
        if not broken:
            raise WriteError(*_different(words))
        if len(broken) == len(words) and len({word["what"] for word in broken.values()}) == 1 and failure is not None:
            raise failure
        rank, first = next(iter(broken.items()))
        more = f" ({len(broken)} of {len(words)} ranks failed)" if len(broken) > 1 else ""
        error = _KINDS.get(first["type"], WriteError)(
            f"rank {rank} of {len(words)}: {first['what']}{more}; {otherwise}",
            first["todo"] or "see the log of that rank",
        )
        raise error from failure

    def _words(
        self, said: list[str], failure: BaseException | None, groups: Sequence[Any]
    ) -> dict[int, dict[str, Any]]:
        """What each rank says, by rank."""
        what = failure.what if isinstance(failure, KappaoneError) else f"{type(failure).__name__}: {failure}"
        todo = failure.todo if isinstance(failure, KappaoneError) else ""
        word = {"type": "", "what": "", "todo": "", "said": said}
        if failure is not None:
            word = {"type": type(failure).__name__, "what": what, "todo": todo, "said": []}
        text = _fitting(word)
        rows = np.zeros((torch.distributed.get_world_size(), _TEXT), np.uint8)
        rows[torch.distributed.get_rank(), : len(text)] = np.frombuffer(text, np.uint8)
        rows = self._reduce(rows, "MAX", groups)
        return {rank: json.loads(bytes(row).rstrip(b"\0")) for rank, row in enumerate(rows) if row.any()}

    def _reduce(self, numbers: NDArray[Number], operation: str, groups: Sequence[Any]) -> NDArray[Number]:
        tensor = torch.from_numpy(np.ascontiguousarray(numbers)).to(self._device, copy=True)
        for group in groups:
            torch.distributed.all_reduce(tensor, getattr(torch.distributed.ReduceOp, operation), group=group)
        out: NDArray[Number] = tensor.cpu().numpy()
        return out


def ranks_of(model: object) -> Ranks:
    """The ranks that hold a model: those of its sharded parameters, and of the DDP or FSDP1 around it.

    Raises:
        WriteError: where parameters live on meshes none of which holds all the others.
    """
    initialised = torch.distributed.is_available() and torch.distributed.is_initialized()
    if not initialised or not isinstance(model, nn.Module):
        return Ranks()
    partners: list[Any] = []
    for module in model.modules():
        group = getattr(module, "process_group", None)
        if isinstance(group, torch.distributed.ProcessGroup) and group not in partners:
            partners.append(group)
    meshes: dict[tuple[int, ...], Any] = {}
    everything: list[Any] = list(parameters_by_name(model).values())
    for parameter in everything:
        if is_sharded(parameter):
            mesh: Any = parameter.device_mesh
            meshes.setdefault(tuple(mesh.mesh.flatten().tolist()), mesh)
    if not meshes:
        device = next((p.device for p in model.parameters() if p.device.type != "meta"), None)
        return Ranks(partners=partners, device=device if partners else None)
    members = max(meshes, key=len)
    outside = next((other for other in meshes if not set(other) <= set(members)), None)
    if outside is not None:
        raise WriteError(
            f"the parameters are sharded over ranks {sorted(members)} and over ranks {sorted(outside)}, and neither holds the other",
            "call kappaone.init_ with the same seed on every rank before sharding",
        )
    mesh = meshes[members]
    groups: list[Any]
    if len(members) == torch.distributed.get_world_size():
        groups = [torch.distributed.group.WORLD]
    else:
        groups = [mesh.get_group(axis) for axis in range(mesh.ndim)]
    device = torch.device(mesh.device_type)
    if device.type != "cpu":
        device = torch.device(device.type, torch.get_device_module(device.type).current_device())
    return Ranks(members, groups, partners, device)


def _different(words: dict[int, dict[str, Any]]) -> tuple[str, str]:
    """What to say where the ranks were called differently: the first thing in which they differ."""
    lists = {rank: word["said"] for rank, word in words.items()}
    length = max(map(len, lists.values()))
    padded = {rank: [*said, *["(nothing)"] * (length - len(said))] for rank, said in lists.items()}
    at = next((i for i in range(length) if len({said[i] for said in padded.values()}) > 1), 0)
    by_text: dict[str, list[int]] = {}
    for rank, said in padded.items():
        by_text.setdefault(said[at], []).append(rank)
    shown = "; ".join(
        f"rank {', '.join(map(str, ranks[:4]))}{', ...' if len(ranks) > 4 else ''}: {text}"
        for text, ranks in by_text.items()
    )
    return (
        f"the ranks do not do the same: {shown}; {NOTHING}",
        "call kappaone.init_ on every rank with the same model and the same arguments",
    )


def _fitting(word: dict[str, Any]) -> bytes:
    """A rank's words as JSON in at most _TEXT bytes: what is too long is cut."""
    room = _TEXT
    while True:
        cut = {
            key: value[:room] if isinstance(value, str) else [s[:room] for s in value[:8]]
            for key, value in word.items()
        }
        text = json.dumps(cut, ensure_ascii=False).encode("utf-8", "replace")
        if len(text) <= _TEXT:
            return text
        room //= 2
