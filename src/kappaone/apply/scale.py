"""`scale=`: the same blocks at another norm.

`matched` gives each head's block (or each role) the Frobenius norm of the weights that are there, `scale=SCHEME` the
norm that the other scheme would give, a number multiplies. Equal Frobenius norm is not equal logits where W_Q and
W_K are correlated (mimetic): the report prints norms and expected logits for every arm. `logit` is solved after the
blocks are written, layer by layer (kappaone.apply.logits).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from kappaone.errors import SpecError, WriteError
from kappaone.schemes.base import Array, Block, Job, LayerShape
from kappaone.schemes.registry import Scale

Reference = Callable[[Sequence[Block]], dict[Block, float]]


def scaled(jobs: Sequence[Job], scale: Scale, shape: LayerShape, other: Sequence[Job]) -> list[Job]:
    """The jobs with `scale=` applied.

    Args:
        jobs: what the scheme gives.
        scale: what was asked for.
        shape: the layer.
        other: the jobs of the scheme named in `scale=`, where it is one.
    """
    if scale.kind in ("unit", "logit"):
        return list(jobs)
    if scale.kind == "factor":
        return [Job(job.blocks, partial(_times, job, scale.value), reads=job.reads) for job in jobs]
    reference = _present(shape) if scale.kind == "matched" else _given(other)
    by_role = scale.group == "role"
    groups = _by_role(jobs) if by_role else [[job] for job in jobs]
    return [
        Job(
            tuple(block for job in group for block in job.blocks),
            partial(_match, group, reference, by_role, shape.name),
            reads=any(job.reads for job in (*group, *other)),
        )
        for group in groups
    ]


def _times(job: Job, factor: float) -> dict[Block, Array]:
    return {block: factor * array for block, array in job.compute().items()}


def _by_role(jobs: Sequence[Job]) -> list[list[Job]]:
    """Jobs that must be known together, since they give parts of the same role."""
    groups: list[tuple[set[str], list[Job]]] = []
    for job in jobs:
        roles = {role for role, _ in job.blocks}
        touching = [group for group in groups if group[0] & roles]
        merged = (roles.union(*(g[0] for g in touching)), [j for g in touching for j in g[1]] + [job])
        groups = [group for group in groups if group not in touching] + [merged]
    return [members for _, members in groups]


def _match(jobs: Sequence[Job], reference: Reference, by_role: bool, layer: str) -> dict[Block, Array]:
    blocks = {block: array for job in jobs for block, array in job.compute().items()}
    target = reference(list(blocks))
    norms = {block: float(np.linalg.norm(array)) for block, array in blocks.items()}
    groups = {block: block[0] if by_role else block for block in blocks}

    def total(values: dict[Block, float], group: object) -> float:
        return float(np.sqrt(sum(values[b] ** 2 for b in blocks if groups[b] == group)))

    out = {}
    for block, array in blocks.items():
        have, want = total(norms, groups[block]), total(target, groups[block])
        if not (np.isfinite(want) and want > 0 and have > 0):
            raise WriteError(
                f"layer {layer!r}, role {block[0]}, head {block[1]}: cannot be scaled from norm {have:.4g} to norm {want:.4g}",
                "scale=matched needs finite, nonzero weights to match; use scale=unit or a number",
            )
        out[block] = array * (want / have)
    return out


def _present(shape: LayerShape) -> Reference:
    # The exact norm: it must not differ in its last bit between a whole model and a sharded one.
    return lambda blocks: {block: shape.norm(*block) for block in blocks}


def _given(other: Sequence[Job]) -> Reference:
    def norms(blocks: Sequence[Block]) -> dict[Block, float]:
        found: dict[Block, float] = {}
        for job in other:
            if set(job.blocks) & set(blocks):
                found |= {block: float(np.linalg.norm(array)) for block, array in job.compute().items()}
        if set(blocks) - set(found):
            raise SpecError(f"no scale is given for {sorted(set(blocks) - set(found))}", "use parts=")
        return found

    return norms
