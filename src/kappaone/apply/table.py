"""The init report as a table for a terminal."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from kappaone.apply.report import LayerReport, RoleReport

if TYPE_CHECKING:
    from kappaone.apply.report import InitReport


def render(report: InitReport) -> str:
    """Plain text: one row a layer, then what is worth knowing."""
    note = report.measure_if_possible()
    stacked = all(entry.kappa_role for layer in report.layers for entry in layer.roles.values())
    buffer = io.StringIO()
    console = Console(file=buffer, width=220, no_color=True, highlight=False)
    console.print(
        f"kappaone init: {report.scheme}, seed {report.seed}: {report.blocks_set} blocks set in "
        f"{sum(bool(layer.set_roles) for layer in report.layers)} of {len(report.layers)} layers, {report.seconds:.2f} s",
        markup=False,
    )
    table = Table(box=None, pad_edge=False, header_style="")
    for head in ("layer", "heads x dim", "set", "|W_Q|", "|W_K|", "|W_V|", "kappa per head"):
        table.add_column(head, no_wrap=head != "layer", overflow="fold")
    for head in (("kappa per role", "fused") if stacked else ()) + ("logit std",):
        table.add_column(head, no_wrap=True)
    for layer in report.layers:
        table.add_row(*_row(layer, stacked))
    console.print(table)
    for line in _facts(report):
        console.print(line, markup=False)
    for line in (*report.remarks, *(f"refused: {item}" for item in report.refused), note):
        if line:
            console.print(line, markup=False)
    return "\n".join(line.rstrip() for line in buffer.getvalue().rstrip().splitlines())


def _row(layer: LayerReport, stacked: bool) -> list[str]:
    layout, roles = layer.layout, layer.roles
    heads = f"{layout.heads}" + (f"/{layout.kv_heads}" if layout.kv_heads != layout.heads else "")
    cells = [layout.name or "(root)", f"{heads} x {layout.head_dim}", layer.set_roles or "-"]
    cells += [_norm(roles[role]) if role in roles else "-" for role in "qkv"]
    cells.append(" ".join(f"{role} {_kappa(entry)}" for role, entry in roles.items()))
    if stacked:
        cells.append(" ".join(f"{r} {e.kappa_role.kappa_text()}" for r, e in roles.items() if e.kappa_role))
        cells.append(layer.kappa_fused.kappa_text() if layer.kappa_fused else "-")
    values = layer.logit_std
    cells.append(f"{sum(values) / len(values):.3g}" if values else "-")
    return cells


def _norm(entry: RoleReport) -> str:
    """Norm of the role, before and after: the root of the sum of squares over heads."""
    before = sum(value**2 for value in entry.norms_before) ** 0.5
    if entry.status != "set":
        return f"{before:.3g}"
    return f"{before:.3g} -> {sum(value**2 for value in entry.norms_after) ** 0.5:.3g}"


def _kappa(entry: RoleReport) -> str:
    """The largest over heads."""
    if not entry.kappa_heads:
        return "-"
    worst = max(entry.kappa_heads, key=lambda s: (s.status != "ok", s.condition_number))
    return worst.kappa_text()


def _facts(report: InitReport) -> list[str]:
    lines = []
    facts = {
        (name, str(value))
        for layer in report.layers
        for name, value in layer.layout.facts.items()
        if name != "batch_first"
    }
    if facts:
        lines.append(
            "facts: " + ", ".join(name if value == "True" else f"{name}={value}" for name, value in sorted(facts))
        )
    left = {layer.why_left for layer in report.layers if layer.why_left}
    for why in sorted(left):
        lines.append(f"left: {sum(layer.why_left == why for layer in report.layers)} layers ({why})")
    biases = {entry.bias for layer in report.layers for entry in layer.roles.values() if entry.status == "set"}
    if biases - {"none"}:
        lines.append("biases of what was set: " + ", ".join(sorted(biases)))
    lines.append("kappa per head: the largest over heads; logit std: expected, on layer-normed tokens, mean over heads")
    return lines
