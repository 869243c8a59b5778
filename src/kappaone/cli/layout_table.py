"""Layouts for a terminal: layers that differ by their number only are shown once, a role a row, 80 columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kappaone.cli.output import Terminal, table

if TYPE_CHECKING:
    from kappaone.layouts import AttentionLayout, RoleRows, Survey
    from kappaone.layouts.probe import ProbeReport
    from kappaone.layouts.propose import NoProposal, Proposal

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def show(terminal: Terminal, found: Survey, probe: ProbeReport | None = None) -> None:
    """Print a survey and, if it was asked for, what the probe says."""
    for members in alike(found.layouts):
        first = members[0]
        terminal.say(f"{family([layout.name for layout in members])}: {described(first)}")
        roles = {"q": first.q, "k": first.k, "v": first.v} | ({"o": first.o} if first.o is not None else {})
        prefix = f"{first.name}." if first.name else ""
        rows = [
            [role, rows.parameter.removeprefix(prefix), where(rows, role), rows.bias.removeprefix(prefix) if rows.bias else "-"]
            for role, rows in roles.items()
        ]  # fmt: skip
        terminal.print(table(["role", "weight", "where, by head", "bias"], rows, keep=["role"]))
        terminal.say("")
    for item in found.refused:
        terminal.say(f"refused: {item}")
    for item in found.outside:
        terminal.say(f"left alone: {item}")
    layers, refused, outside = len(found.layouts), len(found.refused), len(found.outside)
    aside = f", {outside} without softmax(Q K^T) V left alone" if outside else ""
    terminal.say(f"{layers} attention layers described, {refused} refused{aside}")
    if probe is not None:
        terminal.say(str(probe))


def proposed(terminal: Terminal, proposals: Sequence[Proposal | NoProposal]) -> None:
    """Print what the behaviour of refused layers says, ready to paste."""
    from kappaone.layouts.propose import NoProposal

    for item in proposals:
        terminal.say("")
        if isinstance(item, NoProposal):
            terminal.say(f"no proposal for {item.name or '(the model itself)'} ({item.kind}): {item.why}")
            continue
        rows = len(item.probe.verdicts)
        terminal.say(f"proposed for {family(item.fits)}: {described(item.layout)}; {rows} rows confirmed, one by one")
        for note in item.notes:
            terminal.say(f"note: {note}")
        terminal.say("in Python, init_(model, ..., layouts=[")
        terminal.whole(f"    {item.to_python()},")
        terminal.say("])")
        if item.to_toml():
            terminal.say("on the command line, --layouts FILE.toml with")
            for line in item.to_toml().splitlines():
                terminal.whole(f"    {line}")


def alike(layouts: Sequence[AttentionLayout]) -> list[list[AttentionLayout]]:
    """Layers grouped by everything but the numbers in their names, in the order of the first of each."""
    groups: dict[str, list[AttentionLayout]] = {}
    for layout in layouts:
        key = _NUMBER.sub("#", layout.name) + repr(
            {
                name: value if name != "roles" else [_anonymous(rows) for rows in value.items()]
                for name, value in layout.to_dict().items()
                if name != "name"
            }
        )
        groups.setdefault(key, []).append(layout)
    return list(groups.values())


def _anonymous(item: tuple[str, dict[str, object]]) -> tuple[str, list[tuple[str, str]]]:
    role, rows = item
    return role, [(name, _NUMBER.sub("#", str(value)) if "bias" in name or name == "parameter" else str(value)) for name, value in rows.items()]  # fmt: skip


def family(names: Sequence[str]) -> str:
    """Names that differ in one number as one pattern.

    Examples:
        >>> family(["h.0.attn", "h.1.attn", "h.2.attn"])
        'h.{0..2}.attn (3 layers)'
        >>> family(["h.1.attn", "h.3.attn"])
        'h.{1,3}.attn (2 layers)'
        >>> family(["attn"]), family([""])
        ('attn', '(the model itself)')
    """
    if len(names) == 1:
        return names[0] or "(the model itself)"
    numbers = [tuple(map(int, _NUMBER.findall(name))) for name in names]
    columns = list(zip(*numbers, strict=True))
    vary = [i for i, column in enumerate(columns) if len(set(column)) > 1]
    if len(vary) != 1:
        return f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''} ({len(names)} layers)"
    values = list(columns[vary[0]])
    run = values == list(range(values[0], values[0] + len(values)))
    inside = f"{values[0]}..{values[-1]}" if run and len(values) > 2 else ",".join(map(str, values))
    count = iter(range(len(columns)))
    pattern = _NUMBER.sub(lambda match: f"{{{inside}}}" if next(count) == vary[0] else match[0], names[0])
    return f"{pattern} ({len(names)} layers)"


def described(layout: AttentionLayout) -> str:
    """What is known of a layer, in one line."""
    kv = f" ({layout.kv_heads} key/value heads)" if layout.kv_heads != layout.heads else ""
    parts = [f"{layout.heads} heads{kv} x {layout.head_dim}, width {layout.width}"]
    parts.append("scale unknown" if layout.scale is None else f"scale {layout.scale:.4g}")
    parts += ["causal"] if layout.causal else []
    parts += [name if value is True else f"{name}={value}" for name, value in layout.facts.items()]
    return ", ".join([*parts, f"by {layout.source}"])


def where(rows: RoleRows, role: str) -> str:
    """The indices of a role's blocks in the weight as it is stored, half-open ranges as in Python.

    Examples:
        >>> from kappaone.layouts import RoleRows
        >>> where(RoleRows("w", (0, 4, 8), 4, 16), "q")
        'rows 0:12'
        >>> where(RoleRows("w", (0, 12, 24), 4, 16), "q")
        'rows 0:4, 12:16, 24:28'
        >>> where(RoleRows("w", tuple(range(0, 120, 12)), 4, 16), "k")
        'rows 0:4, 12:16, ... 108:112'
    """
    axis = "columns" if rows.transposed != (role == "o") else "rows"
    if rows.step > 1:
        spans = [f"{rows.starts[i]}:{rows.span(i).stop}:{rows.step}" for i in range(rows.heads)]
        return f"{axis} {', '.join(spans[:2])}{', ...' if len(spans) > 2 else ''}"
    steps = {b - a for a, b in zip(rows.starts, rows.starts[1:], strict=False)}
    if steps <= {rows.size}:
        return f"{axis} {rows.starts[0]}:{rows.starts[-1] + rows.size}"
    spans = [f"{start}:{start + rows.size}" for start in rows.starts]
    shown = spans if len(spans) <= 4 else [spans[0], spans[1], f"... {spans[-1]}"]
    return f"{axis} {', '.join(shown)}"
