"""Propose a layout for attention that nobody described, from its behaviour alone, ready to paste.

A proposal is a hypothesis that was tested: its rows come from `explore`, every one of them is confirmed by the probe
afterwards, and its scale is fitted to the logits that entered the softmax. It is still for a person to read and paste:
nothing is ever initialised by a proposal that the user did not pass on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise, permutations
from typing import Any

from torch import nn

from kappaone.errors import KappaoneError, LayoutError
from kappaone.layouts.bench import Bench
from kappaone.layouts.blocks import block_view, named_modules
from kappaone.layouts.capture import Heard, hear
from kappaone.layouts.explore import Explored, Explorer, Weight
from kappaone.layouts.factor import expected_products, fitted
from kappaone.layouts.find import Refused, survey
from kappaone.layouts.layout import QKV, AttentionLayout, Role, RoleRows
from kappaone.layouts.order import parse, starts_and_steps
from kappaone.layouts.probe import ProbeReport, verify
from kappaone.layouts.running import evaluating
from kappaone.layouts.spec import AttentionSpec

Tell = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Proposal:
    """What behaviour says about one module, and about all that it fits.

    Attributes:
        name: the module that was explored.
        kind: its class name.
        layout: its layout.
        spec: the same as a spec, or None where no spec can state it.
        fits: all modules that the spec fits, each confirmed by the probe.
        probe: the probe's verdicts, every row of the module that was explored.
        notes: what a reader should know.
    """

    name: str
    kind: str
    layout: AttentionLayout
    spec: AttentionSpec | None
    fits: tuple[str, ...]
    probe: ProbeReport
    notes: tuple[str, ...] = ()

    def to_python(self) -> str:
        """The lines to paste into Python."""
        if self.spec is not None:
            return self.spec.to_python()
        return f"kappaone.{self.layout!r}".replace("RoleRows(", "kappaone.RoleRows(")

    def to_toml(self) -> str:
        """The lines to paste into a TOML file for the command line; empty where only Python can state it."""
        return "" if self.spec is None else self.spec.to_toml()

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return {
            "name": self.name,
            "kind": self.kind,
            "layout": self.layout.to_dict(),
            "python": self.to_python(),
            "toml": self.to_toml(),
            "fits": list(self.fits),
            "rows": len(self.probe.verdicts),
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class NoProposal:
    """A module for which behaviour gave no layout.

    Attributes:
        name: the module.
        kind: its class name.
        why: the reason.
    """

    name: str
    kind: str
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return dict(vars(self))


def propose(
    model: nn.Module,
    example: Any,
    *,
    layouts: Sequence[AttentionLayout | AttentionSpec] | None = None,
    seed: int = 0,
    tell: Tell | None = None,
) -> list[Proposal | NoProposal]:
    """Explore the attention of a model that no adapter describes, one module of each kind.

    Args:
        model: the model; nothing in it changes.
        example: an input; at least three tokens, all different.
        layouts: the user's own layouts or specs for other parts of the model.
        seed: of the directions that are tried.
        tell: called with (module, rows done, rows in all).

    Raises:
        MeasureError: if the model does not run on the example.

    Examples:
        >>> import torch
        >>> class Mix(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.wires, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        ...     def forward(self, x):  # head_dim is the outermost axis, then the roles, then the heads
        ...         k, q, v = self.wires(x).unflatten(-1, (4, 3, 2)).permute(3, 0, 4, 1, 2)
        ...         p = (q @ k.mT / 2).softmax(-1)
        ...         return self.out((p @ v).transpose(1, 2).flatten(2))
        >>> _ = torch.manual_seed(0)
        >>> (found,) = propose(nn.Sequential(Mix()), torch.randn(1, 5, 8))
        >>> print(found.to_python())
        kappaone.AttentionSpec(match='0', heads=2, fused='wires', order='dim(k q v)', o='out')
    """
    found = survey(model, example, layouts=layouts)
    modules = dict(named_modules(model))
    waiting = list(found.refused)
    out: list[Proposal | NoProposal] = []
    heard = hear(model, [item.name for item in waiting], example)
    while waiting:
        first = waiting.pop(0)
        try:
            proposal: Proposal | NoProposal = _one(model, modules, first, waiting, heard, example, seed, tell)
        except KappaoneError as error:
            proposal = NoProposal(first.name, first.kind, f"{error.what}; {error.todo}")
        if isinstance(proposal, Proposal):
            waiting = [item for item in waiting if item.name not in proposal.fits]
        else:
            waiting = [item for item in waiting if item.kind != first.kind or item.shapes != first.shapes]
        out.append(proposal)
    return out


def _one(
    model: nn.Module,
    modules: Mapping[str, nn.Module],
    first: Refused,
    others: Sequence[Refused],
    heard: Mapping[str, Heard],
    example: Any,
    seed: int,
    tell: Tell | None,
) -> Proposal:
    if not heard[first.name].calls:
        raise LayoutError("the example does not reach this module", "pass an example that runs the whole model")
    module = modules[first.name]
    with evaluating(module):
        explorer = Explorer(module, first.name, heard[first.name], seed=seed)
        explored = explorer.explore(None if tell is None else lambda done, total: tell(first.name, done, total))
    layout = _fit(first, explored)
    layout, notes = _with_scale(module, layout, heard[first.name])
    probe = verify(model, [layout], example, rows_per_head=None, seed=seed)
    probe.require()
    spec = _spec(layout, explored)
    if spec is None:
        note = "no AttentionSpec states this order; the layout is written out, for this module alone"
        return Proposal(first.name, first.kind, layout, None, (first.name,), probe, (*notes, note))
    for any_number in ("*", "[0-9]*"):
        glob = ".".join(any_number if part.isdigit() else part for part in first.name.split("."))
        alike = [item.name for item in others if item.kind == first.kind and fnmatchcase(item.name, glob)]
        layers = {first.name, *alike}
        # What lies inside a described layer is not looked at again.
        strangers = [n for n in modules if fnmatchcase(n, glob) and not any(n == a or n.startswith(f"{a}.") for a in layers)]  # fmt: skip
        wide = replace(spec, match=glob)
        if alike and not strangers and _all_fit(model, wide, alike, example, seed):
            return Proposal(first.name, first.kind, layout, wide, (first.name, *alike), probe, notes)
    return Proposal(first.name, first.kind, layout, spec, (first.name,), probe, notes)


def _all_fit(
    model: nn.Module,
    spec: AttentionSpec,
    names: Sequence[str],
    example: Any,
    seed: int,
) -> bool:
    """Whether the probe confirms a spec on further modules, one row for each head and role."""
    try:
        layouts = [layout for layout in survey(model, layouts=[spec]).layouts if layout.name in names]
        return len(layouts) == len(names) and verify(model, layouts, example, seed=seed).ok
    except KappaoneError:
        return False


def _fit(first: Refused, explored: Explored) -> AttentionLayout:
    """Heads and blocks from the rows and the columns that they move."""
    columns = _head_columns(first.name, explored)
    by_column = {column: head for head, group in enumerate(columns) for column in group}
    roles: dict[Role, RoleRows] = {}
    members: dict[Role, list[tuple[int, ...]]] = {}
    for role in QKV:
        weights = [w for w in explored.weights if any(found == role for found, _ in w.rows.values())]
        if len(weights) > 1:
            raise LayoutError(
                f"layer {first.name!r}: {role} rows lie in several weights, {', '.join(w.name for w in weights)}",
                "write a layout for each, as AttentionLayout objects",
            )
        roles[role], members[role] = _blocks(first.name, weights[0], role, by_column)
    if members["k"] != members["v"]:
        raise LayoutError(
            f"layer {first.name!r}: keys serve the heads {members['k']}, values {members['v']}",
            "write the layout by hand",
        )
    heads, shared = len(columns), members["k"]
    modulo = len(shared) not in (1, heads) and shared == [
        tuple(range(g, heads, len(shared))) for g in range(len(shared))
    ]
    size = heads // len(shared)
    if not modulo and shared != [tuple(range(g * size, (g + 1) * size)) for g in range(len(shared))]:
        raise LayoutError(f"layer {first.name!r}: keys serve the heads {shared}, in no order that a layout can state", "write the layout by hand")  # fmt: skip
    o = None
    if explored.output is not None:
        starts, step = _progression(first.name, "o", columns)
        out = explored.output
        width = out.outputs
        o = RoleRows(_qualified(first.name, out.name), starts, len(columns[0]), width, out.transposed, None, (), step)
    return AttentionLayout(
        name=first.name,
        kind=first.kind,
        source="probe",
        q=roles["q"],
        k=roles["k"],
        v=roles["v"],
        o=o,
        scale=None,
        facts={"kv_map": "modulo"} if modulo else {},
        output="heads" if o is None else "projected",
    )


def _head_columns(layer: str, explored: Explored) -> list[tuple[int, ...]]:
    """The output columns of each head: the groups that query rows move together."""
    groups = sorted({moved for w in explored.weights for role, moved in w.rows.values() if role == "q"})
    flat = sorted(column for group in groups for column in group)
    if flat != list(range(explored.columns)) or len({len(group) for group in groups}) > 1:
        raise LayoutError(
            f"layer {layer!r}: query rows move {len(groups)} groups of columns that do not divide its {explored.columns} columns evenly",
            "heads may be mixed (talking heads) or of unequal size; write the layout by hand",
        )
    return groups


def _blocks(
    layer: str, weight: Weight, role: Role, by_column: Mapping[int, int]
) -> tuple[RoleRows, list[tuple[int, ...]]]:
    """The rows of a role, and for each of its heads the query heads that it serves."""
    rows: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for row, (found, moved) in sorted(weight.rows.items()):
        if found == role:
            rows.setdefault(tuple(sorted({by_column[c] for c in moved})), []).append((min(moved), row))
    serving = sorted(rows)
    # A value row moves one column of each head: their order inside the head is that of the columns.
    blocks = [tuple(row for _, row in (sorted(rows[key]) if role == "v" else rows[key])) for key in serving]
    starts, step = _progression(layer, role, blocks)
    name = _qualified(layer, weight.name)
    return RoleRows(name, starts, len(blocks[0]), weight.reads.shape[-1], weight.transposed, None, (), step), serving


def _progression(layer: str, role: str, blocks: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], int]:
    steps = {b - a for block in blocks for a, b in pairwise(block)} or {1}
    if len({len(block) for block in blocks}) > 1 or len(steps) > 1 or min(steps) < 1:
        raise LayoutError(
            f"layer {layer!r}: the {role} rows of a head are not evenly spaced, {blocks[0][:8]}",
            "no layout can state this; set these weights yourself",
        )
    return tuple(block[0] for block in blocks), steps.pop()


def _qualified(layer: str, name: str) -> str:
    return f"{layer}.{name}" if layer else name


def _with_scale(module: nn.Module, layout: AttentionLayout, heard: Heard) -> tuple[AttentionLayout, tuple[str, ...]]:
    """The layout with the biases that its weights have, and the scale fitted to the logits."""
    held = dict(module.named_parameters())

    def biased(rows: RoleRows) -> RoleRows:
        name = rows.parameter.removesuffix("weight") + "bias"
        local = name.removeprefix(f"{layout.name}." if layout.name else "")
        return replace(rows, bias=name, bias_starts=rows.starts) if local != name.removesuffix("bias") and local in held else rows  # fmt: skip

    layout = replace(layout, q=biased(layout.q), k=biased(layout.k), v=biased(layout.v))
    usual = layout.head_dim**-0.5
    facts, notes = dict(layout.facts), []
    with evaluating(module):
        bench = Bench(module, replace(layout, scale=usual), heard)
    if _scale_free(bench):
        facts["qk_norm"] = True
        return replace(layout, facts=facts, scale=usual), (
            "q and k are normalized: twice the weights give the same output",
        )
    scale, why = fitted(expected_products(bench), heard)
    if scale is None:
        facts["extra"] = "q and k, or the logits, are changed before the softmax"
        notes.append(f"the scale could not be fitted ({why}); 1/sqrt(head_dim) is assumed")
    return replace(layout, facts=facts, scale=usual if scale is None else scale), tuple(notes)


def _scale_free(bench: Bench) -> bool:
    """Whether doubling every query row leaves the output as it is."""
    rows, state = bench.layout.q, dict(bench.state)
    name = bench.local(rows.parameter)
    weight = state[name].clone()
    for head in range(rows.heads):
        block_view(weight, rows, "q", head).mul_(2)
    changed = {name: weight}
    if rows.bias is not None:
        bias = state[bench.local(rows.bias)].clone()
        for head in range(rows.heads):
            bias[rows.bias_span(head)] *= 2
        changed[bench.local(rows.bias)] = bias
    return float((bench.output({**state, **changed}) - bench.base).abs().max()) < 1e-6 * bench.size


def _spec(layout: AttentionLayout, explored: Explored) -> AttentionSpec | None:
    """The shortest spec that gives this layout, or None."""
    prefix = f"{layout.name}." if layout.name else ""

    def child(parameter: str) -> str:
        return parameter.removeprefix(prefix).removesuffix(".weight")

    weights = {role: child(layout.role(role).parameter) for role in QKV}
    shared = {name for name in weights.values() if list(weights.values()).count(name) > 1}
    common: dict[str, Any] = {"match": layout.name, "heads": layout.heads}
    if layout.kv_heads != layout.heads:
        common["kv_heads"] = layout.kv_heads
    if len(shared) > 1:
        return None
    apart: dict[str, str] = {role: name for role, name in weights.items() if name not in shared}
    if layout.o is not None:
        apart["o"] = child(layout.o.parameter)
        if layout.o.step > 1:
            common["o_order"] = "dim"
    if layout.v.size != layout.q.size:
        common["value_dim"] = layout.v.size
    usual = layout.head_dim**-0.5
    if layout.scale is not None and abs(layout.scale - usual) > 1e-3 * usual:
        common["scale"] = float(f"{layout.scale:.6g}")
    if layout.facts:
        common["facts"] = dict(layout.facts)
    if shared:
        inside: tuple[Role, ...] = tuple(role for role in QKV if weights[role] in shared)
        order = next(_orders(layout, inside, explored), None)
        if order is None:
            return None
        common |= {"fused": shared.pop(), "order": order}
    elif {layout.role(role).step for role in QKV} != {1}:
        common["order"] = "dim"
    return AttentionSpec(**{**common, **apart})


def _orders(layout: AttentionLayout, inside: Sequence[Role], explored: Explored) -> Iterator[str]:
    """Orders that give these starts, the plainest first."""
    heads: dict[str, int] = {role: layout.role(role).heads for role in inside}
    sizes: dict[str, int] = {role: layout.role(role).size for role in inside}
    outputs = next(w.outputs for w in explored.weights if layout.role(inside[0]).parameter.endswith(w.name))
    chunks = [str(n) for n in range(2, min(heads.values())) if not any(count % n for count in heads.values())]
    nests = [
        "{}",
        "head({})",
        "group({})",
        "dim({})",
        "dim(head({}))",
        "head(dim({}))",
        "dim(group({}))",
        "group(dim({}))",
    ]
    nests += [f"{n}({{}})" for n in chunks]
    for nest in nests:
        for roles in permutations(inside):
            text = nest.format(" ".join(roles))
            try:
                at, total = starts_and_steps(parse(text), heads, sizes, text=text)
            except KappaoneError:
                continue  # this nest needs other heads
            if total == outputs and all(
                at[role] == (layout.role(role).starts, layout.role(role).step) for role in inside
            ):
                yield text
