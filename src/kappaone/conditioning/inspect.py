"""`inspect`: every number about the conditioning of a model's attention, measured in float64 and changing nothing."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from kappaone.conditioning.activity import attention_activity
from kappaone.conditioning.bound import bound_from_parts, kappa_plus, kappa_plus_lambda
from kappaone.conditioning.extremes import JacobianCondition, condition_number
from kappaone.conditioning.jacobian import AttentionJacobian, float64
from kappaone.conditioning.report import ConditioningReport, HeadCondition, LayerCondition
from kappaone.conditioning.weights import WeightSpectra, weight_spectra
from kappaone.errors import MeasureError
from kappaone.layouts import AttentionLayout, AttentionSpec, survey
from kappaone.layouts.blocks import bias_blocks, named_modules, stacked_blocks
from kappaone.layouts.capture import Recorded, record
from kappaone.layouts.facts import FACTS, explain
from kappaone.layouts.find import require
from kappaone.layouts.layout import QKV
from kappaone.linalg.spectra import spectrum
from kappaone.linalg.workers import ordered

Tell = Callable[[int, int, "float | None"], None]


def inspect(
    model: nn.Module,
    example: Any = None,
    *,
    layouts: Sequence[AttentionLayout | AttentionSpec] | None = None,
    jacobian: bool = True,
    max_jacobian_rows: int = 4096,
    sample: int = 0,
    bound: bool = True,
    progress: Tell | None = None,
) -> ConditioningReport:
    """Measure the conditioning of every attention layer of a model.

    Weights always: by head, by role and fused. With an example also, for one sample of the batch: logit spread,
    attention entropy, kappa(X), kappa(P), kappa(J) of each query head before the output projection, and the parts of
    Theorem 3.1's bound. Source: paper, section 3.

    Everything is computed in float64 from the model's own weights; q, k and v are recomputed from the tokens and
    compared with what enters the softmax, and a layer whose rows do not explain it has status "not_supported". The
    forward pass runs in evaluation mode (dropout off) without gradients. Mode, gradients, weights and random states
    are left as they were.

    Args:
        model: any module with attention that `find_attention` knows or that `layouts` describes.
        example: an input as the model takes it: tensor, tuple of positional or dict of keyword inputs; or None.
        layouts: layouts or specs. If all are layouts, only these layers are measured.
        jacobian: whether to compute kappa(J): up to a few seconds a head at 3,200 rows.
        max_jacobian_rows: above so many rows (tokens times value_dim) kappa(J) has status "too_large".
        sample: index into the batch.
        bound: whether to compute the parts of Theorem 3.1's bound.
        progress: called with (parts done, parts in all, seconds left or None) at the start and after each part: the
            weights of a layer, or a head on the example. An exception in it ends the measurement.

    Returns:
        The report; prints as a table, has `to_dict` and `to_json`.

    Raises:
        LayoutError: if no attention is found.
        MeasureError: if the model fails on the example, no layer can be recorded, or `sample` is out of range.

    Examples:
        >>> report = inspect(nn.MultiheadAttention(8, 2, bias=False))
        >>> len(report.layers), len(report.layers[0].weights.roles["q"].heads)
        (1, 2)
    """
    found = survey(model, layouts=layouts)
    require(found, "skip", dict(named_modules(model)))
    chosen = list(found.layouts)
    notes = [f"not measured, nobody described its layout: {refused}" for refused in found.refused]
    notes += [f"left alone, not softmax(Q K^T) V: {item}" for item in found.outside]
    if layouts and all(isinstance(item, AttentionLayout) for item in layouts):
        names = {item.name for item in layouts if isinstance(item, AttentionLayout)}
        chosen, notes = [item for item in chosen if item.name in names], []
    recorded: dict[str, Recorded] = {}
    failed: dict[str, str] = {}
    if example is not None:
        with _random_states_kept():
            recorded, failed = _record(model, chosen, example)
        notes.append("dropout was off while measuring; kappa(J) is of single query heads, before the output projection")
        if bound:
            notes.append("B is infinite because every block of Lambda(P) is singular; B+ is a heuristic, not a bound")
    data: dict[str, _Seen] = {}
    layer_notes: dict[str, list[str]] = {}
    for layout in chosen:
        name = layout.name
        if name in recorded:
            data[name], layer_notes[name] = _seen(model, layout, recorded[name], sample)
        elif example is not None:
            layer_notes[name] = [failed.get(name, "the example does not reach this layer")]
    layers = _layers(model, chosen, data, layer_notes, partial(_head, jacobian, bound, max_jacobian_rows), progress)
    described = None if example is None else f"sample {sample} of the example"
    inner = next(module for _, module in named_modules(model))
    return ConditioningReport(layers, type(inner).__name__, described, tuple(notes))


def _layers(
    model: nn.Module,
    layouts: Sequence[AttentionLayout],
    data: dict[str, _Seen],
    notes: dict[str, list[str]],
    measure: Callable[[AttentionLayout, _Seen, int], _Measured],
    progress: Tell | None,
) -> tuple[LayerCondition, ...]:
    """Weights and heads of all layers, each on one thread, several at a time.

    That is quicker than several threads for each, and the bits are the same for any number of threads.
    """
    tasks: list[Callable[[], WeightSpectra | _Measured]] = []
    for layout in layouts:
        tasks.append(partial(weight_spectra, model, layout))
        if layout.name in data:
            tasks += [partial(measure, layout, data[layout.name], head) for head in range(layout.heads)]
    begun, done = time.monotonic(), 0
    if progress is not None:
        progress(0, len(tasks), None)
    layers = []
    # A generator, though declared as an iterator: closed here, its workers have ended when an interrupt passes on.
    with closing(cast("Generator[WeightSpectra | _Measured, None, None]", ordered(tasks))) as results:

        def take() -> WeightSpectra | _Measured:
            nonlocal done
            result = next(results)
            done += 1
            if progress is not None:
                progress(done, len(tasks), (time.monotonic() - begun) / done * (len(tasks) - done))
            return result

        for layout in layouts:
            weights = take()
            assert isinstance(weights, WeightSpectra)
            heads = []
            for _ in range(layout.heads if layout.name in data else 0):
                measured = take()
                assert isinstance(measured, _Measured)
                heads.append(_with_bound(measured, data[layout.name], weights))
            found = (*_stated(layout), *notes.get(layout.name, []))
            layers.append(LayerCondition(layout.name, layout.kind, weights, tuple(heads), found, dict(layout.facts)))
    return tuple(layers)


def _stated(layout: AttentionLayout) -> list[str]:
    """The facts of a layout in words, those about the form of its inputs aside."""
    return [
        f"{name if value is True else f'{name} ({value})'}: {explain(name)}"
        for name, value in layout.facts.items()
        if value and name not in ("batch_first", "kv_map")
    ]


def _record(
    model: nn.Module, layouts: Sequence[AttentionLayout], example: Any
) -> tuple[dict[str, Recorded], dict[str, str]]:
    """All layers in one forward pass; one by one where a layer cannot be recorded, so that the others still are."""
    try:
        return record(model, layouts, example), {}
    except MeasureError as error:
        first = error
    recorded: dict[str, Recorded] = {}
    failed: dict[str, str] = {}
    for layout in layouts:
        try:
            recorded.update(record(model, [layout], example))
        except MeasureError as error:
            failed[layout.name] = f"not recorded: {error.what}; {error.todo}"
    if not recorded:
        raise first
    return recorded, failed


@dataclass(frozen=True)
class _Seen:
    """What the heads of one layer have in common: the sample's tokens, q, k, v and mask, padding left out.

    Attributes:
        X_q: tokens that the queries read.
        X_kv: tokens that keys and values read; X_q itself in self-attention.
        q: (heads, N, d).
        k: (kv_heads, M, d).
        v: (kv_heads, M, d_v).
        mask: (heads, N, M), additive, or None.
        scale: the factor on q.k.
        data_eps: relative precision of the tokens.
        rank_q: kappa and rank of X_q.
        rank_kv: kappa and rank of X_kv.
        reason: why J and the bound have no closed form here; empty if they have.
    """

    X_q: Tensor
    X_kv: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None
    scale: float
    data_eps: float
    rank_q: tuple[float, int]
    rank_kv: tuple[float, int]
    reason: str


def _seen(model: nn.Module, layout: AttentionLayout, rec: Recorded, sample: int) -> tuple[_Seen, list[str]]:
    """The sample's data in float64, and what a reader must know about this layer."""
    batch = len(rec.q)
    if not -batch <= sample < batch:
        raise MeasureError(
            f"sample {sample} asked for; layer {layout.name!r} saw a batch of {batch}", f"pass sample=0 to {batch - 1}"
        )
    notes = [f"called {rec.calls} times in one forward; the first call is measured"] if rec.calls > 1 else []
    reason = next((explain(name) for name, value in layout.facts.items() if value and not FACTS[name].exact), "")
    same = _same(rec.tokens, rec.kv_tokens)
    X_q = rec.tokens[sample]
    X_kv = X_q if same else rec.kv_tokens[sample]
    q, k, v = rec.q[sample], rec.k[sample], rec.v[sample]
    if not reason:
        exact, reason = _recomputed(model, layout, X_q, X_kv, (q, k, v))
        q, k, v = exact if exact is not None else (q, k, v)
    mask = None
    shape = (batch, layout.heads, q.shape[-2], k.shape[-2])
    if rec.mask is not None:
        mask = rec.mask.broadcast_to(shape)[sample]
        seen = (mask > -torch.inf).any(dim=1).any(dim=0)
        if not bool(seen.all()):
            # Padding: no query may look at these tokens. In self-attention they are no queries of interest either.
            notes.append(f"{int((~seen).sum())} of {len(seen)} tokens are masked for every query (padding): left out")
            k, v, mask, X_kv = k[:, seen], v[:, seen], mask[:, :, seen], X_kv[seen]
            if same:
                X_q, q, mask = X_kv, q[:, seen], mask[:, seen]
        empty = (mask == -torch.inf).all(dim=-1).any(dim=0)
        if bool(empty.any()):
            # Their softmax, and their part of A, is not defined.
            notes.append(f"{int(empty.sum())} of {len(empty)} queries have every key masked and are left out")
            X_q, q, mask = X_q[~empty], q[:, ~empty], mask[:, ~empty]
            same = False
    eps = torch.finfo(rec.tokens.dtype).eps
    data_eps = eps if eps <= torch.finfo(torch.float32).eps else torch.finfo(torch.float64).eps
    if reason:
        notes.append(f"kappa(J) and the bound are not supported here: {reason}")
    rank_q = kappa_plus(X_q, data_eps)
    rank_kv = rank_q if same else kappa_plus(X_kv, data_eps)
    X_kv = X_q if same else X_kv
    return _Seen(X_q, X_kv, q, k, v, mask, rec.scale, data_eps, rank_q, rank_kv, reason), notes


@dataclass(frozen=True)
class _Measured:
    """A head but for the bound, which needs the weights' spectra, with the bound's costly part (None: no bound)."""

    head: HeadCondition
    kappa_plus_Lambda: float | None


def _head(jacobian: bool, bound: bool, max_rows: int, layout: AttentionLayout, seen: _Seen, head: int) -> _Measured:
    kv = layout.kv_head(head)
    q, k, v = seen.q[head], seen.k[kv], seen.v[layout.kv_head(head, "v")]
    mask = None if seen.mask is None else seen.mask[head]
    J = AttentionJacobian.from_heads(seen.X_q, seen.X_kv, q, k, v, scale=seen.scale, mask=mask, data_eps=seen.data_eps)
    condition = None
    if jacobian and seen.reason:
        condition = JacobianCondition("not_supported", J.rows, J.columns, note=seen.reason)
    elif jacobian:
        condition = condition_number(J, max_rows=max_rows)
    activity = attention_activity(q, k, scale=seen.scale, mask=mask)
    found = HeadCondition(head, kv, activity, *seen.rank_q, spectrum(J.P), None, condition)
    bounded = bound and not seen.reason and J.is_finite()
    return _Measured(found, kappa_plus_lambda(J.P) if bounded else None)


def _with_bound(measured: _Measured, seen: _Seen, weights: WeightSpectra) -> HeadCondition:
    head, L = measured.head, measured.kappa_plus_Lambda
    if L is None:
        return head
    q, k, v = (weights.roles[role].heads[head.head if role == "q" else head.kv_head] for role in QKV)
    tokens, ranks = (seen.X_q, seen.X_kv), (seen.rank_q, seen.rank_kv)
    return replace(head, bound=bound_from_parts(tokens, ranks, (q, k, v), head.probabilities, L))


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers in memory (views of one tensor count)."""
    return a is b or (a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride())


def _recomputed(
    model: nn.Module,
    layout: AttentionLayout,
    X_q: Tensor,
    X_kv: Tensor,
    heard: tuple[Tensor, Tensor, Tensor],
) -> tuple[tuple[Tensor, Tensor, Tensor] | None, str]:
    """q, k and v in float64 from tokens, weights and biases, or the reason why they do not explain what was heard.

    Without this check a normalization, gate or factor that no fact mentions would give a wrong Jacobian silently.
    """
    made = []
    for role, tokens, found in zip(QKV, (X_q, X_kv, X_kv), heard, strict=True):
        weight = float64(stacked_blocks(model, layout, role))
        if tokens.shape[-1] != weight.shape[-1]:
            return None, f"role {role} reads tokens of width {weight.shape[-1]}; recorded were {tokens.shape[-1]}"
        out = torch.einsum("nw,hsw->hns", float64(tokens), weight)
        bias = bias_blocks(model, layout, role)
        if bias is not None:
            out = out + float64(bias)[:, None, :]
        target = float64(found)
        if out.shape != target.shape:
            return None, f"role {role} gives {tuple(out.shape)}; {tuple(target.shape)} entered the softmax"
        difference = float(torch.linalg.vector_norm(out - target))
        size = float(torch.linalg.vector_norm(target))
        # Room for the arithmetic of the forward pass (TF32 has 10 bits), not for another formula.
        if difference > max(2e-3, 8 * torch.finfo(found.dtype).eps) * size:
            return None, (
                f"{role} as it enters the softmax differs from W_{role.upper()} times the tokens by "
                f"{difference / size if size else float('inf'):.2g} relatively: something comes between"
            )
        made.append(out)
    return (made[0], made[1], made[2]), ""


@contextmanager
def _random_states_kept() -> Iterator[None]:
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002  # the caller's global state is meant
    try:
        with torch.random.fork_rng():
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
