"""`init_`: find the attention, plan the blocks, check everything that can be checked, then write all or nothing."""

from __future__ import annotations

import hashlib
import time
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from kappaone._version import __version__
from kappaone.apply import zero3
from kappaone.apply.check import remember, still_ours
from kappaone.apply.fill import Fill, present_norms
from kappaone.apply.fresh import refuse_loaded
from kappaone.apply.gathered import Norms, all_norms
from kappaone.apply.logits import solve_logit_scale
from kappaone.apply.notes import left_alone
from kappaone.apply.plan import ROLES, PlannedLayer, make_plan, missing, refuse_missing
from kappaone.apply.ranks import Ranks, ranks_of
from kappaone.apply.report import InitReport, LayerReport, RoleReport
from kappaone.apply.special import Special
from kappaone.apply.ties import refuse_ties
from kappaone.apply.writable import check_writable, is_partitioned
from kappaone.apply.write import NOTHING, Transaction
from kappaone.errors import SpecError, WriteError
from kappaone.layouts.blocks import named_modules, parameters_by_name
from kappaone.layouts.facts import FACTS, explain
from kappaone.layouts.find import Survey, require, survey
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.probe import verify as probe_layouts
from kappaone.layouts.shards import at_rest, refuse_flat, refuse_parallel
from kappaone.layouts.spec import AttentionSpec
from kappaone.schemes.procedure import Procedure
from kappaone.schemes.registry import InitSpec, understand
from kappaone.streams import STREAM_VERSION, check_seed


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
        model: any module; wrappers (torch.compile, DDP, ...) are looked through. Where its parameters are sharded
            (FSDP2, tensor parallel) every rank calls this with the same arguments (docs/sharded.md).
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
    at_rest(model)
    ranks = ranks_of(model)
    with ranks.agreed(NOTHING) as said:
        spec = understand(scheme)
        seed = check_seed(seed)
        if not isinstance(prefix, str):
            raise SpecError(f"prefix={prefix!r}; expected a string", "pass for instance prefix='encoder'")
        if verify and example is None:
            raise SpecError("verify=True runs the model, so it needs an input", "pass example=")
        _refuse_sharded(model, spec, verify, ranks)
        said.append(f"init_({str(spec)!r}, seed={seed}, prefix={prefix!r}, overwrite={overwrite}, undo={undo})")
    with ranks.agreed(NOTHING) as said:
        zero3.refuse_running(model, example)
        found = survey(model, example, layouts=layouts)
        require(found, on_refused, dict(named_modules(model)))
        at_rest(model)
        parameters = parameters_by_name(model)
        in_parts = zero3.needed(found, parameters, spec)
        if not in_parts:
            _writable(model, found, spec, parameters)
        said.append(_named(found.layouts))
    if in_parts:
        again = partial(init_, seed=seed, on_refused=on_refused, overwrite=overwrite, undo=undo, prefix=prefix)
        return zero3.init_by_layer(model, found, spec, again, undo=undo)
    norms = all_norms(found.layouts, parameters, ranks) if ranks.sharded else None
    plan, remarks = _checked_plan(model, found, spec, seed, prefix, example, overwrite, parameters, norms, ranks)
    with ranks.agreed(NOTHING):
        special = Special(model, [layer.layout for layer in plan if layer.jobs], parameters, spec)
    if verify:
        probe_layouts(model, found.layouts, example).require()
    report = InitReport(
        scheme=str(spec),
        seed=seed,
        prefix=prefix,
        layers=[_blank(layer, parameters, norms) for layer in plan],
        refused=[str(item) for item in found.refused],
        remarks=remarks + special.remarks + left_alone(found),
        provenance={"kappaone": __version__, "torch": torch.__version__, "stream_version": STREAM_VERSION},
        seconds=0.0,
        _sharded=ranks.sharded,
        _first=ranks.first,
        _model=weakref.ref(model),
    )
    with Transaction(undo=undo) as transaction:
        fill = Fill(plan, report, parameters, ranks, norms or {})
        with ranks.agreed(transaction.otherwise):
            fill.write(transaction)
            special.follow(report, transaction)
        if spec.scale.kind == "logit":
            picked = [layer.layout for layer in plan if layer.jobs]
            gains = solve_logit_scale(model, picked, spec.scale.value, example, transaction, ranks)
            for layer in report.layers:
                layer.gain = gains.get(layer.layout.name)
        report.seconds = time.perf_counter() - started
        fill.settle(gains=spec.scale.kind == "logit")
        # Inside: an interrupt up to here undoes the writes, so that written weights always have their report.
        remember(model, report)
    special.mark(report)
    return report


def _refuse_sharded(model: object, spec: InitSpec, verify: bool, ranks: Ranks) -> None:
    """What cannot be done on a model that is spread over ranks."""
    refuse_flat(model)
    if not ranks.sharded:
        return
    if verify:
        raise SpecError(
            "verify=True changes whole rows of weights and watches the model; this model's weights are sharded",
            "verify before sharding: the layouts of a sharded model are those of the whole one",
        )
    if isinstance(spec.entry, Procedure) and not spec.entry.sharded:
        raise SpecError(
            f"{spec.text} measures the model and does not know of shards, so that ranks could come to different weights",
            "call kappaone.init_ with the same seed on every rank before sharding",
        )


def _writable(model: nn.Module, found: Survey, spec: InitSpec, parameters: dict[str, nn.Parameter]) -> None:
    """See that the parameters that may be written can be."""
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
    refuse_missing(model, found.layouts, parameters)
    if spec.scale.kind == "logit" or isinstance(spec.entry, Procedure):
        refuse_parallel(model, touched, spec.text)


def _named(layouts: Sequence[AttentionLayout]) -> str:
    """The layers in a few words that differ where the layouts do."""
    text = repr([layout.to_dict() for layout in layouts])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{len(layouts)} attention layers from {layouts[0].name!r} to {layouts[-1].name!r} (layouts {digest})"


def _checked_plan(
    model: nn.Module,
    found: Survey,
    spec: InitSpec,
    seed: int,
    prefix: str,
    example: Any,
    overwrite: bool,
    parameters: dict[str, nn.Parameter],
    norms: Norms | None,
    ranks: Ranks,
) -> tuple[list[PlannedLayer], list[str]]:
    """Everything that can be known before the first write."""
    roles = [role for role in ROLES if role in spec.parts]
    with ranks.agreed(NOTHING):
        plan = make_plan(
            model, found.layouts, spec, seed=seed, prefix=prefix, example=example, norms=norms, pooled=ranks.pooled
        )
        at_rest(model)
        written = [layer.layout for layer in plan if layer.jobs]
        refuse_ties(found.layouts, written, parameters, roles)
    remarks: list[str] = []
    if written and not overwrite:
        ours = still_ours(model, written, parameters)
        with ranks.agreed(NOTHING):
            if spec.scale.kind == "matched" and ours:
                raise WriteError(
                    f"{spec.text}: layer {sorted(ours)[0][0]!r} holds what kappaone wrote before, so that scale=matched "
                    "would match that and not the model's own init",
                    "build the model anew, or pass overwrite=True if that is what you want",
                )
            remarks += refuse_loaded(written, parameters, roles, ours, ranks)
    if example is None:
        remarks.append("attention was looked for by structure; with example= it is also found by its softmax calls")
    return plan, remarks + _advice(written, spec)


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


def _blank(layer: PlannedLayer, parameters: dict[str, nn.Parameter], norms: Norms | None) -> LayerReport:
    roles: dict[str, RoleReport] = {}
    touched = {role for job in layer.jobs for role, _ in job.blocks}
    for role in ROLES:
        if role == "o" and role not in touched:
            continue
        rows = layer.layout.role(role)
        before = [float("nan")] * rows.heads
        if norms is not None:
            before = list(norms[layer.layout.name, role])
        elif role not in touched and not is_partitioned(parameters[rows.parameter]):
            before = present_norms(layer.layout, role, parameters)
        dtype = str(parameters[rows.parameter].dtype).removeprefix("torch.")
        roles[role] = RoleReport(rows.parameter, "left", dtype, before)
    return LayerReport(layer.layout, roles, layer.why_left)
