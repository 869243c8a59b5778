"""Find the attention of a model: who is asked, in which order, and what is refused.

Order of trust: the user's own spec, a declaration on the module, an adapter whose library is loaded, else a refusal
that shows the shapes and how to write a spec. Nothing is guessed from shapes alone.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from math import prod
from typing import Any, Literal

import torch
from torch import nn

from kappaone.errors import LayoutError, SpecError
from kappaone.layouts.adapters import all_adapters
from kappaone.layouts.alone import contradiction
from kappaone.layouts.blocks import named_modules, parameters_by_name
from kappaone.layouts.layout import QKV, AttentionLayout
from kappaone.layouts.notice import by_calls, by_structure
from kappaone.layouts.origin import foreign_code
from kappaone.layouts.sharing import with_shared
from kappaone.layouts.site import Outside, Refusal, Site
from kappaone.layouts.spec import AttentionSpec


@dataclass(frozen=True)
class Refused:
    """Attention that was noticed and that nobody could describe.

    Attributes:
        name: qualified module name.
        kind: class name.
        why: what made it look like attention.
        shapes: its parameters and their shapes.
    """

    name: str
    kind: str
    why: str
    shapes: str

    def __str__(self) -> str:
        return f"{self.name or '(the model itself)'} ({self.kind}; {self.why}): {self.shapes}"

    def to_dict(self) -> dict[str, str]:
        """Plain JSON-ready form."""
        return dict(vars(self))


@dataclass(frozen=True)
class Survey:
    """Every attention layer of a model: described, or refused with the reason.

    Attributes:
        layouts: in the order of the model's modules.
        refused: noticed, not described.
        outside: recognised as something without softmax(Q K^T) V (linear attention, state spaces): left alone, by name.
    """

    layouts: tuple[AttentionLayout, ...]
    refused: tuple[Refused, ...] = ()
    outside: tuple[Refused, ...] = ()


def survey(
    model: nn.Module, example: Any = None, *, layouts: Sequence[AttentionLayout | AttentionSpec] | None = None
) -> Survey:
    """Look at every module of a model and describe or refuse its attention.

    Args:
        model: any module; wrappers (DDP, torch.compile, ...) are looked through.
        example: an input, so that attention which only its calls betray is noticed too; tensor, tuple or dict.
        layouts: the user's own layouts or specs, which come before everything else.

    Raises:
        LayoutError: if a given layout or spec fits no module, or not its module.
    """
    if not isinstance(model, nn.Module):
        raise SpecError(
            f"the model is {type(model).__name__}; expected a torch.nn.Module",
            "pass the built model, not its builder or a list",
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise LayoutError(
            f"the model is a {type(model).__name__}: a scripted or traced model no longer says what its modules are",
            "pass the model before torch.jit.script or torch.jit.trace",
        )
    if layouts is not None and not isinstance(layouts, Sequence):
        raise SpecError(f"layouts={layouts!r}; expected a list", "pass layouts=[kappaone.AttentionSpec(...)]")
    modules = dict(named_modules(model))
    given: dict[str, list[AttentionLayout]] = {}
    for item in layouts or ():
        if isinstance(item, AttentionLayout):
            given.setdefault(item.module, []).append(item)
    specs = [item for item in layouts or () if isinstance(item, AttentionSpec)]
    unknown = [item for item in layouts or () if not isinstance(item, (AttentionLayout, AttentionSpec))]
    if unknown:
        raise SpecError(
            f"layouts holds {unknown[0]!r}; expected AttentionLayout or AttentionSpec objects",
            "kappaone.find_attention(model) gives the former, kappaone.AttentionSpec(...) makes the latter",
        )
    used: set[int] = set()
    found: dict[str, list[AttentionLayout]] = {}
    declined: dict[str, Outside | Refusal] = {}
    for name, module in modules.items():
        if any(_within(name, other) for other in (*found, *declined)):
            continue  # part of a layer that is described already; a wide match= does not reach into it
        answer: Answer = given.get(name) or _describe(Site(name, module, modules), specs, used)
        if isinstance(answer, (Outside, Refusal)):
            declined[name] = answer
        elif answer:
            found[name] = answer
    for item in layouts or ():
        if isinstance(item, AttentionLayout) and item.module not in found:
            raise LayoutError(
                f"the given layout is for module {item.name!r}, which the model does not have",
                "take the layouts from kappaone.find_attention of the same model",
            )
    for i, spec in enumerate(specs):
        taken = next((name for name in modules if spec.matches(name)), None)
        if i not in used and taken is not None:
            raise LayoutError(
                f"the layout spec {spec.match!r} only matches modules that another layout or spec before it took, such as {taken!r}",
                "narrow the match= of the one before, or leave one of the two out",
            )
        if i not in used:
            raise LayoutError(
                f"the layout spec {spec.match!r} matches none of the model's {len(modules)} modules",
                "match= is a glob over qualified names, such as 'blocks.*.attn'",
            )
    described = [layout for group in found.values() for layout in group]
    parameters = parameters_by_name(model)
    for layout in described:
        _check_shapes(parameters, layout)
    noticed = by_structure(modules, {*found, *declined})
    if example is not None:
        for name, why in by_calls(model, modules, example).items():
            known = any(_within(name, other) or _within(other, name) for other in (*found, *declined))
            if not known and not any(_within(name, other) for other in noticed):
                noticed[name] = why
        described = with_shared(model, modules, described, example)

    def listed(reasons: Mapping[str, str]) -> tuple[Refused, ...]:
        return tuple(
            Refused(name, type(modules[name]).__name__, why, Site(name, modules[name], modules).shapes())
            for name, why in reasons.items()
        )

    refused = {name: item.why for name, item in declined.items() if isinstance(item, Refusal)}
    outside = {name: item.why for name, item in declined.items() if isinstance(item, Outside)}
    return Survey(tuple(described), listed({**refused, **noticed}), listed(outside))


def find_attention(
    model: nn.Module,
    example: Any = None,
    *,
    layouts: Sequence[AttentionLayout | AttentionSpec] | None = None,
    on_refused: Literal["raise", "skip"] = "raise",
) -> list[AttentionLayout]:
    """The layouts of a model's attention layers, as data.

    Args:
        model: any module.
        example: an input (tensor, tuple of positional or dict of keyword inputs); finds attention by its calls too.
        layouts: the user's own layouts or specs.
        on_refused: "raise" where attention is noticed that nobody can describe, or "skip" it.

    Raises:
        LayoutError: if no attention was found, or some was refused.

    Examples:
        >>> layers = find_attention(nn.TransformerEncoderLayer(16, 4))
        >>> layers[0].name, layers[0].heads, layers[0].head_dim
        ('self_attn', 4, 4)
    """
    result = survey(model, example, layouts=layouts)
    require(result, on_refused, dict(named_modules(model)))
    return list(result.layouts)


def require(result: Survey, on_refused: str, modules: dict[str, nn.Module]) -> None:
    """Raise where a survey found nothing, or refused something that must not be skipped."""
    if on_refused not in ("raise", "skip"):
        raise SpecError(f"on_refused={on_refused!r}; expected 'raise' or 'skip'", "choose one of the two")
    if result.refused and (on_refused == "raise" or not result.layouts):
        first = result.refused[0]
        lines = "\n  ".join(map(str, result.refused[:5]))
        more = f"\n  and {len(result.refused) - 5} more" if len(result.refused) > 5 else ""
        if "quantised" in first.why:
            raise LayoutError(
                f"{len(result.refused)} attention layers hold no weights that could be read or written:\n  {lines}{more}",
                "initialise and measure the model before it is quantised"
                + ("; or on_refused='skip' to set the rest" if result.layouts else ""),
            )
        raise LayoutError(
            f"{len(result.refused)} attention layers have a layout that nobody described:\n  {lines}{more}",
            f"pass layouts=[{spec_skeleton(first, result.refused, modules)}], or with fused=?, order='q k v' in place of q=, "
            "k=, v=; kappaone.propose(model, example) finds it by behaviour (docs/layouts.md)"
            + ("; or on_refused='skip' to set the rest" if result.layouts else ""),
        )
    if not result.layouts and result.outside:
        lines = "\n  ".join(map(str, result.outside[:5]))
        raise LayoutError(
            f"the model has no softmax(Q K^T) V attention; {len(result.outside)} layers mix tokens in another way:\n  {lines}",
            "the schemes of kappaone are defined for softmax attention; this model needs another initialization",
        )
    if not result.layouts:
        kinds = sorted({type(module).__name__ for module in modules.values()})
        raise LayoutError(
            f"no attention was found among {len(modules)} modules ({', '.join(kinds[:12])}"
            + (", ...)" if len(kinds) > 12 else ")"),
            "pass example= to find attention by its softmax calls too, or "
            "layouts=[kappaone.AttentionSpec(match=..., heads=..., q=..., k=..., v=..., o=...)]",
        )


def spec_skeleton(first: Refused, refused: Sequence[Refused], modules: Mapping[str, nn.Module]) -> str:
    """A spec to fill in: for all refused layers of one kind where a glob names them and nothing else, else for one."""
    glob = ".".join("*" if part.isdigit() else part for part in first.name.split("."))
    alike = {item.name for item in refused if item.kind == first.kind}
    matched = [name for name in modules if fnmatchcase(name, glob)]
    match = glob if all(any(_within(name, layer) for layer in alike) for name in matched) else first.name
    return f"kappaone.AttentionSpec(match={match!r}, heads=?, q=?, k=?, v=?, o=?)"


Answer = list[AttentionLayout] | Outside | Refusal | None


def _describe(site: Site, specs: list[AttentionSpec], used: set[int]) -> Answer:
    for i, spec in enumerate(specs):
        if spec.matches(site.name):
            used.add(i)
            return [spec.describe(site)]
    declared = getattr(site.module, "kappaone_attention", None)
    if isinstance(declared, AttentionSpec):
        return [declared.describe(site, "declaration")]
    if declared is not None:
        raise SpecError(
            f"{site.name!r} declares kappaone_attention = {declared!r}; expected an AttentionSpec",
            "set module.kappaone_attention = kappaone.AttentionSpec(heads=..., ...)",
        )
    answers: dict[str, list[AttentionLayout] | Outside | Refusal] = {}
    unsure: Refusal | None = None
    for adapter in all_adapters():
        if adapter.library in sys.modules and (answer := adapter.describe(site)) is not None:
            foreign = None if adapter.reads_code else foreign_code(site.module, adapter.library)
            if foreign is not None:
                # What it would leave alone may be attention in this code: whoever looks like it is noticed.
                if not isinstance(answer, Outside):
                    unsure = Refusal(
                        f"looks like {adapter.name}, but runs other code than {adapter.library}'s: {foreign}"
                    )
                continue
            if isinstance(answer, (Outside, Refusal)):
                answers[adapter.name] = answer
                continue
            layouts = [answer] if isinstance(answer, AttentionLayout) else list(answer)
            otherwise = contradiction(site.module, layouts) if adapter.reads_code else None
            if otherwise is not None:
                unsure = Refusal(f"looks like {adapter.name}, but behaves otherwise: {otherwise}")
                continue
            answers[adapter.name] = layouts
    if len(answers) > 1:
        raise LayoutError(
            f"{site.name!r} is claimed by the adapters {', '.join(answers)}",
            "pass the right one yourself with layouts=[...]",
        )
    return next(iter(answers.values()), unsure)


def _within(name: str, other: str) -> bool:
    return name == other or name.startswith(f"{other}.") or other == ""


def _check_shapes(parameters: Mapping[str, nn.Parameter], layout: AttentionLayout) -> None:
    _check_overlaps(parameters, layout)
    for role in ("q", "k", "v", "o"):
        rows = {"q": layout.q, "k": layout.k, "v": layout.v, "o": layout.o}[role]
        if rows is None:
            continue
        weight = parameters.get(rows.parameter)
        # A parametrized or quantised weight is no parameter of this name; `apply` refuses it and says so.
        if weight is None or isinstance(weight, nn.parameter.UninitializedParameter) or weight.ndim < 2:
            continue
        outputs, inputs = prod(weight.shape[: rows.axes]), prod(weight.shape[rows.axes :])
        if rows.transposed:
            outputs, inputs = inputs, outputs
        along, across = (inputs, outputs) if role == "o" else (outputs, inputs)
        if rows.stop > along or across != rows.width or min(rows.starts) < 0:
            raise LayoutError(
                f"{rows.parameter!r} has shape {tuple(weight.shape)}; the layout of {layout.name!r} ({layout.source}) "
                f"needs {rows.stop} by {rows.width} for role {role}",
                "correct the spec, or report the adapter",
            )


def _check_overlaps(parameters: Mapping[str, nn.Parameter], layout: AttentionLayout) -> None:
    """No row belongs to two blocks: a write into one would go over the other. Tied weights are one."""
    stored = {name: id(parameters[name]) if name in parameters else name for name in _weights(layout)}
    taken: dict[tuple[int | str, int], str] = {}
    for role, rows in (("q", layout.q), ("k", layout.k), ("v", layout.v)):
        for head in range(rows.heads):
            span = rows.span(head)
            for index in range(span.start, span.stop, span.step):
                other = taken.setdefault((stored[rows.parameter], index), f"{role}{head}")
                if other != f"{role}{head}":
                    raise LayoutError(
                        f"layer {layout.name!r} ({layout.source}): blocks {other} and {role}{head} lie over each other "
                        f"in {rows.parameter!r}",
                        "give each role its own rows; for q, k and v in one weight use fused= and order=; roles that share "
                        "one weight cannot be set apart",
                    )
    if layout.o is not None and stored[layout.o.parameter] in {stored[layout.role(role).parameter] for role in QKV}:
        raise LayoutError(
            f"layer {layout.name!r} ({layout.source}): the output projection {layout.o.parameter!r} also holds q, k or v",
            "correct o=, or leave it out",
        )


def _weights(layout: AttentionLayout) -> set[str]:
    return {layout.role(role).parameter for role in QKV} | ({layout.o.parameter} if layout.o is not None else set())
