"""`materialize_`: a model on the meta device gets memory, its library's own initialization, and its attention a scheme."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from kappaone.apply.drawing import drawing_on_cpu
from kappaone.apply.init import init_
from kappaone.apply.library_init import Steps, initialise
from kappaone.apply.memory import Slot, allocate, can_be_marked, check_ties, count_unset, local, slots
from kappaone.apply.report import InitReport
from kappaone.errors import SpecError, WriteError
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.find import require, survey
from kappaone.layouts.layout import AttentionLayout
from kappaone.layouts.spec import AttentionSpec
from kappaone.schemes.registry import InitSpec, understand
from kappaone.streams import check_seed

_SHOWN = 10


@dataclass
class MaterializeReport:
    """What `materialize_` did, tensor by tensor. Print it, or take `to_dict` and `to_json`.

    Attributes:
        device: where the tensors are now.
        seed: the seed.
        set_by: for each tensor that was on the meta device and is set, the last step that wrote it.
        kept: tensors that had memory already and hold what they held.
        unset: tensors (and plain attributes) that nothing set, with the reason; those with memory hold NaN, or the
            smallest integer.
        ties: groups of names that are one tensor, as they were before.
        remarks: what a careful user should know.
        attention: the report of the attention's own initialization.
        seconds: time that it took.
    """

    device: str
    seed: int
    set_by: dict[str, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    unset: dict[str, str] = field(default_factory=dict)
    ties: list[list[str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    attention: InitReport | None = None
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        attention = None if self.attention is None else json.loads(self.attention.to_json())
        return {"schema": 1, "kind": "materialize_report", **vars(self), "attention": attention}

    def to_json(self) -> str:
        """The same as JSON text."""
        return json.dumps(self.to_dict(), indent=1)

    def __str__(self) -> str:
        counts: dict[str, int] = {}
        for step in self.set_by.values():
            counts[step] = counts.get(step, 0) + 1
        lines = [f"{len(self.set_by)} tensors set on {self.device}, {len(self.kept)} kept, {len(self.unset)} not set"]
        lines += [f"  {count:6d} by {step}" for step, count in sorted(counts.items(), key=lambda item: -item[1])]
        lines += [f"  not set: {name} ({why})" for name, why in list(self.unset.items())[:_SHOWN]]
        if len(self.unset) > _SHOWN:
            lines.append(f"  and {len(self.unset) - _SHOWN} more")
        lines += [f"  tied: {' = '.join(group)}" for group in self.ties[:_SHOWN]]
        lines += [f"  note: {remark}" for remark in self.remarks]
        return "\n".join(lines + ([] if self.attention is None else [str(self.attention)]))


def materialize_(
    model: nn.Module,
    device: str | torch.device,
    scheme: str | InitSpec = "conditioned",
    seed: int | None = None,
    *,
    initialize: Callable[[nn.Module], Any] | None = None,
    on_unset: Literal["raise", "report"] = "raise",
    layouts: Sequence[AttentionLayout | AttentionSpec] | None = None,
    example: Any = None,
    on_refused: Literal["raise", "skip"] = "raise",
    overwrite: bool = False,
    prefix: str = "",
) -> MaterializeReport:
    """Give a model on the meta device memory, its own initialization, and its attention a scheme; in place.

    Tensors that have memory already are moved to the device and keep their values. Ties are kept. The others are set
    by everything that the model brings with it (see `kappaone.apply.library_init`): `reset_parameters` of its modules,
    tables in buffers included, then transformers' or timm's recipe for the whole model, or its own `init_weights` or
    `_init_weights`. Then `init_` sets the attention. All random numbers come from the seed, drawn on the CPU, so that
    they do not depend on the device or on shards (the library's draws go by the order of the model's modules).

    Args:
        model: a model of which all or some tensors are on the meta device; after `fully_shard` too.
        device: where the tensors go.
        scheme: as for `init_`; "default" leaves the attention as the library sets it.
        seed: the only source of randomness; no global random state is moved. It must be given.
        initialize: your own function of the model for what only its constructor knows (`lambda model:
            nn.init.zeros_(model.cls_token)`); it runs after the library's initialization, before the attention's.
        on_unset: "raise" if any tensor is left that nothing set, or "report" it and leave NaN there.
        layouts: as for `init_`.
        example: as for `init_`.
        on_refused: as for `init_`.
        overwrite: as for `init_`: attention that had memory already may be overwritten.
        prefix: as for `init_`.

    Returns:
        Which step set which tensor, and what none could set.

    Raises:
        WriteError: for tensors that nothing sets, each named (the model then holds everything else, and the error has
            the report as its attribute `report`); or if nothing is on the meta device.
        LayoutError: as for `init_`, before anything is changed.

    Examples:
        >>> with torch.device("meta"):
        ...     model = nn.TransformerEncoderLayer(16, 4)
        >>> report = materialize_(model, "cpu", "conditioned", seed=0)
        >>> len(report.set_by), report.unset, bool(torch.isfinite(model.linear1.weight).all())
        (12, {}, True)
    """
    started = time.perf_counter()
    if seed is None:
        raise SpecError("materialize_ needs a seed; nothing else makes its numbers", "pass for instance seed=0")
    seed, where = check_seed(seed), torch.device(device)
    spec = understand(scheme)
    if on_unset not in ("raise", "report"):
        raise SpecError(f"on_unset={on_unset!r}; expected 'raise' or 'report'", "choose one of the two")
    if where.type == "meta":
        raise SpecError("device='meta' gives no memory", "pass the device to train on, such as 'cuda' or 'cpu'")
    # Before the first change: attention that cannot be found is no reason to leave a half-made model.
    require(survey(model, layouts=layouts), on_refused, dict(named_modules(model)))
    places = slots(model)
    kept = [place for place in places if not place.tensor.is_meta]
    if len(kept) == len(places):
        raise WriteError(
            f"none of the model's {len(places)} tensors is on the meta device",
            "use kappaone.init_, or build the model within `with torch.device('meta'):`",
        )
    fresh, ties = allocate(model, where)
    report = MaterializeReport(
        str(where), seed, kept=[p.name for p in kept], ties=[[place.name for place in group] for group in ties]
    )
    # The caller may still be within torch.device("meta").
    with drawing_on_cpu(seed, where), where:
        steps = _everything_but_attention(model, fresh, kept, initialize)
    check_ties(ties)
    report.set_by = steps.by
    with torch.device("cpu"):
        report.attention = init_(
            model,
            spec,
            seed=seed,
            layouts=layouts,
            example=example,
            on_refused=on_refused,
            overwrite=overwrite,
            prefix=prefix,
        )
        report.unset = {**_unset(fresh, steps), **dict(_forgotten(model))}
    for layer in report.attention.layers:
        for entry in layer.roles.values():
            if entry.status == "set":
                report.set_by[entry.parameter] = f"kappaone {report.attention.scheme}"
    report.set_by = {name: step for name, step in report.set_by.items() if name not in report.unset}
    report.remarks = _remarks(steps)
    report.seconds = time.perf_counter() - started
    if report.unset and on_unset == "raise":
        _refuse(report)
    return report


def _everything_but_attention(
    model: nn.Module, fresh: list[Slot], kept: list[Slot], initialize: Callable[[nn.Module], Any] | None
) -> Steps:
    """The library's initialization and the user's; what had memory before gets its values back."""
    saved = [(place, local(place.tensor).clone()) for place in kept]
    steps = initialise(model, fresh)
    if initialize is not None:
        before = {place.name: (id(place.tensor), place.tensor._version, count_unset(place.tensor)) for place in fresh}
        with torch.no_grad():
            initialize(model)
        for place in fresh:
            if before[place.name] != (id(place.tensor), place.tensor._version, count_unset(place.tensor)):
                steps.by[place.name] = "initialize="
    with torch.no_grad():
        for place, values in saved:
            local(place.tensor).copy_(values)
    return steps


def _unset(fresh: list[Slot], steps: Steps) -> dict[str, str]:
    """Tensors with entries that nothing set, on this rank or on another, with the reason."""
    counts = torch.tensor([_entries_unset(place, steps) for place in fresh])
    if any(hasattr(place.tensor, "device_mesh") for place in fresh):
        counts = _largest_of_all_ranks(counts, fresh)
    out = {}
    for place, count in zip(fresh, counts.tolist(), strict=True):
        if count:
            why = f"{count} entries are left" if place.name in steps.by else "nothing that the model brings sets it"
            out[place.name] = f"{'buffer' if place.buffer else 'parameter'} {tuple(place.tensor.shape)}, {why}"
    failed = "; ".join(steps.failed[:3])
    return {name: f"{why}; {failed}" if failed else why for name, why in out.items()}


def _entries_unset(place: Slot, steps: Steps) -> int:
    if can_be_marked(place.tensor):
        return count_unset(place.tensor)
    return 0 if place.name in steps.by else max(1, local(place.tensor).numel())


def _largest_of_all_ranks(counts: Tensor, fresh: list[Slot]) -> Tensor:
    import torch.distributed as dist

    if not dist.is_initialized():
        return counts
    device = next(local(place.tensor).device for place in fresh)
    shared = counts.to(device)
    dist.all_reduce(shared, op=dist.ReduceOp.MAX)
    return shared.cpu()


def _forgotten(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Tensors on the meta device that no to_empty reaches: plain attributes of modules."""
    for name, module in named_modules(model):
        for key, value in vars(module).items():
            if isinstance(value, Tensor) and value.is_meta:
                yield (
                    f"{name}.{key}" if name else key,
                    f"attribute {tuple(value.shape)}, neither parameter nor buffer: it is still on the meta device",
                )


def _remarks(steps: Steps) -> list[str]:
    out = [f"{recipe} ran; what the constructor does besides is not known" for recipe in steps.recipes]
    if steps.defaults:
        out.append(
            f"{len(steps.defaults)} tensors have the defaults of their own modules ({', '.join(steps.defaults[:3])}, ...): "
            "if the model's constructor sets them otherwise, do the same in initialize="
        )
    return out + steps.failed


def _refuse(report: MaterializeReport) -> None:
    shown = "\n  ".join(f"{name}: {why}" for name, why in list(report.unset.items())[:_SHOWN])
    more = f"\n  and {len(report.unset) - _SHOWN} more" if len(report.unset) > _SHOWN else ""
    error = WriteError(
        f"{len(report.unset)} tensors are not set by anything that is known of this model:\n  {shown}{more}",
        "pass initialize=, a function of the model that sets them as its constructor does; or on_unset='report' and set "
        "them yourself (they hold NaN, or the smallest integer; all else is set)",
    )
    error.report = report  # type: ignore[attr-defined]
    raise error
