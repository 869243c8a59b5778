"""From layouts and a scheme to jobs: which blocks are set, by which numbers. Nothing is written here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from kappaone.apply.gathered import Norms, Present, Whole
from kappaone.apply.scale import scaled
from kappaone.errors import SpecError, WriteError
from kappaone.layouts.blocks import parameters_by_name
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.layouts.stored import why_no_weight
from kappaone.linalg.exact import exact_norm
from kappaone.schemes.base import Job, LayerShape, RoleShape
from kappaone.schemes.procedure import Procedure
from kappaone.schemes.registry import InitSpec
from kappaone.streams import LayerStream

ROLES: tuple[Role, ...] = ("q", "k", "v", "o")


@dataclass(frozen=True)
class PlannedLayer:
    """One attention layer with the jobs that set it.

    Attributes:
        layout: where its blocks live.
        shape: what the scheme was told.
        jobs: what to compute; empty where the layer is left as it is.
        why_left: why there are none.
    """

    layout: AttentionLayout
    shape: LayerShape
    jobs: tuple[Job, ...] = ()
    why_left: str = ""


@dataclass(frozen=True)
class Context:
    """What a procedure gets.

    Attributes:
        model: the model, not to be written to.
        layouts: the layers to set.
        shapes: their shapes by name.
        streams: their random streams by name.
        example: the example input.
        pooled: measurements by name, root mean squares over all ranks: every rank must draw the same conclusions.
    """

    model: nn.Module
    layouts: Sequence[AttentionLayout]
    shapes: dict[str, LayerShape] = field(default_factory=dict)
    streams: dict[str, LayerStream] = field(default_factory=dict)
    example: Any = None
    pooled: Callable[[Mapping[str, float]], dict[str, float]] = dict


def make_plan(
    model: nn.Module,
    layouts: Sequence[AttentionLayout],
    spec: InitSpec,
    *,
    seed: int,
    prefix: str,
    example: Any,
    norms: Norms | None = None,
    pooled: Callable[[Mapping[str, float]], dict[str, float]] = dict,
) -> list[PlannedLayer]:
    """The jobs of every layer, with parts=, layers= and scale= applied.

    Args:
        model: the model.
        layouts: its attention layers.
        spec: what was asked for.
        seed: the seed.
        prefix: before parameter names in the keys of the streams.
        example: an input.
        norms: norms of the present blocks, where parameters are sharded and these had to be gathered.
        pooled: see `Context`.

    Raises:
        SpecError: if the options do not fit the model.
    """
    parameters = parameters_by_name(model)
    refuse_missing(model, layouts, parameters)
    whole = Whole(parameters)
    shapes = {layout.name: _shape(layout, whole, index, len(layouts), norms) for index, layout in enumerate(layouts)}
    banks = _banks(layouts)
    streams = {layout.name: _stream(layout, seed, prefix, banks) for layout in layouts}
    chosen = spec.chosen(len(layouts))
    picked = [layout for index, layout in enumerate(layouts) if index in chosen]
    from_procedure: dict[str, list[Job]] = {}
    if isinstance(spec.entry, Procedure):
        if spec.entry.needs_example and example is None:
            raise SpecError(f"{spec.text} needs an example input", "pass example=")
        from_procedure = spec.entry.make(Context(model, picked, shapes, streams, example, pooled), **spec.options)
    if spec.scale.kind == "logit" and example is None:
        raise SpecError(f"{spec.text}: scale=logit is measured on an input", "pass example=")
    plan = []
    for index, layout in enumerate(layouts):
        shape, stream = shapes[layout.name], streams[layout.name]
        if index not in chosen:
            plan.append(PlannedLayer(layout, shape, (), f"not among layers={spec.layers}"))
            continue
        if isinstance(spec.entry, Procedure):
            jobs = [job.only(spec.parts) for job in from_procedure.get(layout.name, [])]
        else:
            jobs = _scheme_jobs(spec, shape, stream)
        kept = tuple(job for job in jobs if job.blocks and not job.keeps)
        _refuse_products(layout, kept, spec)
        plan.append(PlannedLayer(layout, shape, kept, "" if kept else "the scheme keeps the present weights"))
    for shape in shapes.values():
        assert isinstance(shape.current, Present)
        shape.current.planning = False
    return plan


def _scheme_jobs(spec: InitSpec, shape: LayerShape, stream: LayerStream) -> list[Job]:
    assert not isinstance(spec.entry, Procedure)
    # A role that is not asked for is not computed either: a layer whose o is unknown can still take mimetic(parts=qk).
    missing_roles = set(spec.parts) - set(shape.roles)
    if missing_roles:
        raise SpecError(
            f"{spec.text}: layer {shape.name!r} has no role {', '.join(sorted(missing_roles))} in its layout",
            f"name it in the layout, or use parts={''.join(r for r in spec.parts if r in shape.roles)}",
        )
    jobs = spec.entry.jobs(shape, stream, spec.parts, spec.options)
    other: list[Job] = []
    if spec.scale.scheme is not None:
        other_spec = spec.scale.scheme
        other = [job.only(spec.parts) for job in _scheme_jobs(other_spec, shape, stream)]
        unset = {block for job in jobs for block in job.blocks} - {block for job in other for block in job.blocks}
        if unset:
            raise SpecError(
                f"{spec.text}: {other_spec.text} does not set role {sorted({role for role, _ in unset})}, so it gives no scale for it",
                "use parts= so that both set the same roles",
            )
    return scaled(jobs, spec.scale, shape, other)


def _refuse_products(layout: AttentionLayout, jobs: Sequence[Job], spec: InitSpec) -> None:
    """No scheme sets a product of two weights exactly: its norm in between depends on the token."""
    set_here = {role for job in jobs for role, _ in job.blocks}
    factored = [role for role in layout.factored() if role in set_here]
    if factored:
        rows = layout.role(factored[0])
        assert rows.inner is not None
        raise SpecError(
            f"{spec.text}: in layer {layout.name!r} role {factored[0]} is the product of {rows.parameter!r} and "
            f"{rows.inner.parameter!r} with a norm between them (multi-head latent attention), which no scheme can set exactly",
            "leave these layers out with layers=, or these roles with parts=; kappaone.inspect measures the product",
        )


def _roles(layout: AttentionLayout) -> list[Role]:
    return [role for role in ROLES if role != "o" or layout.o is not None]


def _shape(layout: AttentionLayout, whole: Whole, index: int, count: int, norms: Norms | None) -> LayerShape:
    def stored(name: str) -> int:
        return sum(
            {
                (r, s): layout.role(r).size
                for r in _roles(layout)[:3]
                if layout.role(r).parameter == name
                for s in layout.role(r).starts
            }.values()
        )

    roles: dict[str, RoleShape] = {}
    for role in _roles(layout):
        rows = layout.role(role)
        roles[role] = RoleShape(rows.heads, rows.size, rows.width, rows.rows if role == "o" else stored(rows.parameter))

    current = Present(layout, whole)

    def norm(role: str, head: int) -> float:
        if norms is None:
            return exact_norm(current(role, head))
        return norms[layout.name, next(r for r in ROLES if r == role)][head]

    kv_head = tuple(layout.kv_head(head) for head in range(layout.heads))
    return LayerShape(layout.name, roles, kv_head, index, count, layout.laws, current, norm)


def _banks(layouts: Sequence[AttentionLayout]) -> frozenset[tuple[str, Role]]:
    """Parameters that hold one role of several layers, each in rows of its own."""
    starts: dict[tuple[str, Role], set[tuple[int, ...]]] = {}
    for layout in layouts:
        for role in _roles(layout):
            starts.setdefault((layout.role(role).parameter, role), set()).add(layout.role(role).starts)
    return frozenset(key for key, found in starts.items() if len(found) > 1)


def _stream(layout: AttentionLayout, seed: int, prefix: str, banks: frozenset[tuple[str, Role]]) -> LayerStream:
    """Streams keyed by the parameter's name, and by the first row too where it serves several layers."""
    dotted = f"{prefix.rstrip('.')}." if prefix else ""
    names: dict[str, str] = {}
    for role in _roles(layout):
        rows = layout.role(role)
        at = f"[{rows.starts[0]}]" if (rows.parameter, role) in banks else ""
        # A model under adapters (PEFT) draws what it would draw without them.
        plain = rows.parameter.removeprefix("base_model.model.").replace(".base_layer.", ".")
        names[role] = f"{dotted}{plain}{at}"
    return LayerStream(seed, names)


def refuse_missing(
    model: nn.Module, layouts: Sequence[AttentionLayout], parameters: Mapping[str, nn.Parameter]
) -> None:
    """Raise where a layout names a weight that is no parameter.

    Layouts come from outside too: a wrong name must not surface as a KeyError later.

    Raises:
        WriteError: naming it.
    """
    for layout in layouts:
        for role in _roles(layout):
            if layout.role(role).parameter not in parameters:
                raise WriteError(*missing(model, layout, layout.role(role).parameter))


def missing(model: nn.Module, layout: AttentionLayout, name: str) -> tuple[str, str]:
    """What to say of a weight that is not a plain parameter of the model."""
    owner_name, _, last = name.rpartition(".")
    try:
        owner = model.get_submodule(owner_name)
    except AttributeError:
        owner = None
    why = why_no_weight(owner, last)
    if why is not None:
        return (
            f"{name!r} of layer {layout.name!r} is {why}; a write would go past it",
            "initialise first and let the weights be replaced afterwards, or undo it before (torch.nn.utils.remove_weight_norm, "
            "prune.remove, ...)",
        )
    return (
        f"{name!r} of layer {layout.name!r} is not a parameter of the model",
        "initialise before weight norm, quantisation or sharding replaces the weights",
    )
