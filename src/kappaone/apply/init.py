"""`init_`: find the attention, plan the blocks, check everything that can be checked, then write all or nothing."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kappaone._version import __version__
from kappaone.apply.check import remember, still_ours
from kappaone.apply.fresh import refuse_loaded
from kappaone.apply.logits import solve_logit_scale
from kappaone.apply.plan import ROLES, PlannedLayer, make_plan, missing
from kappaone.apply.report import InitReport, LayerReport, RoleReport
from kappaone.apply.ties import Memory, memory, refuse_ties
from kappaone.apply.writable import check_writable
from kappaone.apply.write import Transaction, fingerprint, norm, rounded
from kappaone.errors import LayoutError, SpecError, WriteError
from kappaone.layouts.blocks import block_view, named_modules, parameters_by_name
from kappaone.layouts.facts import FACTS, explain
from kappaone.layouts.find import Survey, require, survey
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.probe import verify as probe_layouts
from kappaone.layouts.spec import AttentionSpec
from kappaone.linalg.workers import ordered
from kappaone.schemes.base import Block, Job
from kappaone.schemes.registry import InitSpec, understand
from kappaone.streams import STREAM_VERSION, check_seed


@dataclass(frozen=True)
class _Drawn:
    """One block, ready to be written: rounded values and a CPU copy of what is there, with norms and checksum."""

    values: Tensor
    old: Tensor
    before: float
    after: float
    checksum: str


def init_(
    model: nn.Module,
    scheme: str | InitSpec = "conditioned",
    *,
    seed: int,
    layouts: Sequence[AttentionLayout | AttentionSpec] | None = None,
    example: Any = None,
    verify: bool = False,
    on_refused: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    undo: bool = True,
    prefix: str = "",
) -> InitReport:
    """Set the attention weights of a model by a scheme, in place, all or nothing.

    Args:
        model: any module; wrappers (torch.compile, DDP, ...) are looked through.
        scheme: such as "conditioned" or "conditioned(value=per_head, scale=matched)"; see `kappaone schemes`.
        seed: with the parameter names, the only source of randomness; no global random state is read or moved.
        layouts: the user's own layouts or specs, for attention that kappaone does not know.
        example: an input (tensor, tuple of positional or dict of keyword inputs); needed by `verify`,
            `scale=logit(...)` and some procedures; also finds attention by its calls.
        verify: check every layout against the model's behaviour first.
        on_refused: "raise" where attention is noticed that nobody can describe; "skip" to set the rest.
        overwrite: replace weights that seem loaded or trained.
        undo: keep a CPU copy of what is overwritten until the end, so that a failure restores it.
        prefix: put before parameter names in the keys of the random streams; `init_(model.encoder,
            prefix="encoder")` draws what `init_(model)` draws there.

    Returns:
        What was found, set, left and refused, with norms and condition numbers.

    Raises:
        LayoutError: no attention, refused attention, or a layout that the probe contradicts.
        SpecError: a wrong scheme or option.
        WriteError: weights that cannot or must not be written.

    Source: "Conditioned Initialization for Attention", arXiv 2609.07086.

    Examples:
        >>> model = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> report = init_(model, "conditioned", seed=0)
        >>> report.blocks_set
        12
        >>> W_Q = model.self_attn.in_proj_weight[:4]
        >>> bool(torch.allclose(W_Q @ W_Q.T, torch.eye(4), atol=1e-6))
        True
    """
    started = time.perf_counter()
    spec = understand(scheme)
    seed = check_seed(seed)
    if not isinstance(prefix, str):
        raise SpecError(f"prefix={prefix!r}; expected a string", "pass for instance prefix='encoder'")
    found = survey(model, example, layouts=layouts)
    require(found, on_refused, dict(named_modules(model)))
    plan, parameters, remarks = _checked_plan(model, found, spec, seed, prefix, example, overwrite)
    if verify:
        if example is None:
            raise SpecError("verify=True runs the model, so it needs an input", "pass example=")
        probe_layouts(model, found.layouts, example).require()
    report = InitReport(
        scheme=str(spec),
        seed=seed,
        prefix=prefix,
        layers=[_blank(layer, parameters) for layer in plan],
        refused=[str(item) for item in found.refused],
        remarks=remarks,
        provenance={"kappaone": __version__, "torch": torch.__version__, "stream_version": STREAM_VERSION},
        seconds=0.0,
        _model=weakref.ref(model),
    )
    with Transaction(undo=undo) as transaction:
        _write(plan, report, parameters, transaction)
        if spec.scale.kind == "logit":
            picked = [layer.layout for layer in plan if layer.jobs]
            gains = solve_logit_scale(model, picked, spec.scale.value, example, transaction)
            for layer in report.layers:
                layer.gain = gains.get(layer.layout.name)
                _refresh(layer, parameters)
        # Inside: an interrupt up to here undoes the writes, so that written weights always have their report.
        report.seconds = time.perf_counter() - started
        remember(model, report)
    return report


def _checked_plan(
    model: nn.Module, found: Survey, spec: InitSpec, seed: int, prefix: str, example: Any, overwrite: bool
) -> tuple[list[PlannedLayer], dict[str, nn.Parameter], list[str]]:
    """Everything that can be known before the first write."""
    parameters = parameters_by_name(model)
    chosen = spec.chosen(len(found.layouts))
    roles = [role for role in ROLES if role in spec.parts]
    touched = [layout for index, layout in enumerate(found.layouts) if index in chosen]
    for layout in touched:
        for role in roles:
            if role == "o" and layout.o is None:
                continue
            for name in (layout.role(role).parameter, layout.role(role).bias):
                if name is None:
                    continue
                if name not in parameters:
                    raise WriteError(*missing(model, layout, name))
                check_writable(name, parameters[name])
    plan = make_plan(model, found.layouts, spec, seed=seed, prefix=prefix, example=example)
    written = [layer.layout for layer in plan if layer.jobs]
    remarks: list[str] = []
    if written:
        refuse_ties(found.layouts, written, parameters, roles)
        if not overwrite:
            ours = still_ours(model, written, parameters)
            if spec.scale.kind == "matched" and ours:
                raise WriteError(
                    f"{spec.text}: layer {sorted(ours)[0][0]!r} holds what kappaone wrote before, so that scale=matched "
                    "would match that and not the model's own init",
                    "build the model anew, or pass overwrite=True if that is what you want",
                )
            remarks += refuse_loaded(written, parameters, roles, ours)
    if example is None:
        remarks.append("attention was looked for by structure; with example= it is also found by its softmax calls")
    return plan, parameters, remarks + _advice(written, spec)


def _advice(written: Sequence[AttentionLayout], spec: InitSpec) -> list[str]:
    """What a careful user should know of these layouts under this scheme."""
    out = []
    free = [layout for layout in written if layout.scale_free]
    if free and set(spec.parts) & set("qk"):
        why = "; ".join(sorted({explain(name) for layout in free for name in layout.facts if FACTS[name].scale_free}))
        out.append(f"the scale of W_Q and W_K, so scale= too, has no effect in {len(free)} layers: {why}")
    if spec.entry.name == "conditioned" and "v" in spec.parts:
        grouped = [layout for layout in written if layout.v.rows < layout.v.width]
        if spec.options["value"] == "fused" and grouped:
            first = grouped[0]
            out.append(
                f"value identity under grouped or narrow heads: {first.name!r} reads the first {first.v.rows} of {first.v.width} coordinates"
            )
        if spec.options["value"] == "fused" and any(layout.v.rows > layout.v.width for layout in written):
            out.append("more value rows than width: the identity's slices start again at coordinate 0")
    return out


def _blank(layer: PlannedLayer, parameters: dict[str, nn.Parameter]) -> LayerReport:
    roles: dict[str, RoleReport] = {}
    touched = {role for job in layer.jobs for role, _ in job.blocks}
    for role in ROLES:
        if role == "o" and role not in touched:
            continue
        rows = layer.layout.role(role)
        weight = parameters[rows.parameter]
        roles[role] = RoleReport(
            rows.parameter,
            "left",
            str(weight.dtype).removeprefix("torch."),
            [float("nan")] * rows.heads if role in touched else _norms(layer.layout, role, parameters),
        )
    return LayerReport(layer.layout, roles, layer.why_left)


def _write(
    plan: Sequence[PlannedLayer], report: InitReport, parameters: dict[str, nn.Parameter], transaction: Transaction
) -> None:
    """Draw blocks on all cores and write them in order."""
    claimed: dict[tuple[Memory, str, int], str] = {}
    work: list[tuple[int, Job]] = []
    for index, layer in enumerate(plan):
        for job in layer.jobs:
            keys = {
                (memory(parameters[layer.layout.role(_role(r)).parameter]), r, layer.layout.role(_role(r)).starts[h])
                for r, h in job.blocks
            }
            if keys & set(claimed):
                # Two layers share this weight: the first of them has drawn it.
                for role, _ in job.blocks:
                    tied = report.layers[index].roles[role]
                    tied.status, tied.norms_before = "tied", _norms(layer.layout, _role(role), parameters)
                continue
            claimed |= dict.fromkeys(keys, layer.layout.name)
            work.append((index, job))
    tasks: list[Callable[[], dict[Block, _Drawn]]] = [
        partial(_draw, plan[index].layout, job, parameters) for index, job in work
    ]
    for (index, _job), drawn in zip(work, ordered(tasks), strict=True):
        layout, done = plan[index].layout, report.layers[index]
        for (role, head), block in sorted(drawn.items()):
            rows, entry = layout.role(_role(role)), done.roles[role]
            view = block_view(parameters[rows.parameter], rows, _role(role), head)
            transaction.write(f"{layout.name}:{role}{head}", view, block.values, block.old)
            if entry.status != "set":
                entry.status = "set"
                entry.norms_after, entry.fingerprints = [float("nan")] * rows.heads, [""] * rows.heads
                entry.bias = _zero_bias(layout, _role(role), parameters, transaction)
            entry.norms_before[head], entry.norms_after[head] = block.before, block.after
            entry.fingerprints[head] = block.checksum


def _norms(layout: AttentionLayout, role: Role, parameters: dict[str, nn.Parameter]) -> list[float]:
    rows = layout.role(role)
    return [norm(block_view(parameters[rows.parameter], rows, role, head)) for head in range(rows.heads)]


def _draw(layout: AttentionLayout, job: Job, parameters: dict[str, nn.Parameter]) -> dict[Block, _Drawn]:
    """Compute the blocks of a job, and all that needs their numbers: it runs beside others, on one thread."""
    out: dict[Block, _Drawn] = {}
    for (role, head), array in job.compute().items():
        rows = layout.role(_role(role))
        weight = parameters[rows.parameter]
        view = block_view(weight, rows, _role(role), head)
        values = rounded(torch.from_numpy(array), weight.dtype, f"{rows.parameter}, role {role}, head {head}")
        if values.shape != view.shape:
            raise LayoutError(
                f"the scheme gives a {tuple(values.shape)} block for {layout.name!r}, role {role}, head {head}; expected {tuple(view.shape)}",
                "report this scheme",
            )
        # Both copies in the order of the storage: copying across it is several times slower.
        across = view.stride(0) < view.stride(1)
        old = view.T.to("cpu", copy=True).T if across else view.to("cpu", copy=True)
        ready = values.T.contiguous().T if across else values
        out[role, head] = _Drawn(ready, old, norm(old.T if across else old), norm(values), fingerprint(values))
    return out


def _zero_bias(
    layout: AttentionLayout, role: Role, parameters: dict[str, nn.Parameter], transaction: Transaction
) -> str:
    """Zero the biases of a role that was set, where the library's own default is zero."""
    rows = layout.role(role)
    if rows.bias is None or role == "o":
        return "none"
    bias = parameters[rows.bias].detach()
    parts = [bias[rows.bias_span(head)] for head in range(len(rows.bias_starts))]
    if not any(bool(part.any()) for part in parts):
        return "zero"
    if not layout.zero_bias:
        return "left"
    for head, part in enumerate(parts):
        transaction.write(f"{layout.name}:{role}{head} bias", part, torch.zeros_like(part))
    return "zeroed"


def _refresh(layer: LayerReport, parameters: dict[str, nn.Parameter]) -> None:
    """Norms and checksums after a gain was put on q and k."""
    for role, entry in layer.roles.items():
        if entry.status == "set":
            rows = layer.layout.role(_role(role))
            views = [block_view(parameters[rows.parameter], rows, _role(role), head) for head in range(rows.heads)]
            entry.norms_after = _norms(layer.layout, _role(role), parameters)
            entry.fingerprints = [fingerprint(view) for view in views]


def _role(role: str) -> Role:
    return next(r for r in ROLES if r == role)
