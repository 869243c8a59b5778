"""The analysis of a study as tables for a terminal, from its JSON form alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kappaone.studies.verdict import number, span

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.table import Table

STYLES: Mapping[str, str] = {
    "better": "green",
    "positive": "green",
    "worse": "red",
    "negative": "red",
    "equivalent": "cyan",
    "inconclusive": "yellow",
}


def render(analysis: Mapping[str, Any]) -> Group:
    """Tables of an analysis: noise floor and detectable effect first, then arms, contrasts, the 2x2, steps to target.

    Args:
        analysis: what `StudyAnalysis.to_dict` gives, or the same read from JSON.

    Returns:
        Something that `rich.console.Console.print` shows.
    """
    from rich.console import Group
    from rich.text import Text

    plan = analysis["plan"]
    parts: list[RenderableType] = [Text(f"Study {plan['name']}: {plan['metric']}", style="bold")]
    first = [analysis["noise_floor"], analysis["pairing"], analysis["mde"], analysis["exact_test"]]
    parts += [Text(part["words"]) for part in first if part]
    parts += [_arms(analysis), _contrasts(analysis)]
    if analysis["causal"]:
        parts.append(Text(analysis["causal"]["words"]))
    if analysis["target"]["rows"]:
        parts.append(_target(analysis))
    parts.append(Text(analysis["target"].get("words", "")))
    if analysis["tracked"]:
        parts.append(_tracked(analysis))
    parts += [Text(f"Warning: {warning}", style="yellow") for warning in analysis["warnings"]]
    return Group(*parts)


def _arms(analysis: Mapping[str, Any]) -> RenderableType:
    plan = analysis["plan"]
    table = _table(f"{plan['metric']} by arm", "arm", "seeds", "mean", "sd", "diverged", "failed")
    for arm in analysis["arms"]:
        table.add_row(
            _text(arm["name"] + _note(arm["name"], plan)),
            str(arm["n"]),
            _number(arm["mean"], digits=4),
            _number(arm["sd"]),
            str(len(arm["diverged"])),
            str(len(arm["failed"])),
        )
    return table


def _contrasts(analysis: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    reference = analysis["plan"]["reference"]
    title = f"Paired differences of {analysis['plan']['metric']}, simultaneous 95 % intervals"
    counts = {len(contrast["differences"]) for contrast in analysis["contrasts"]}
    alike = len(counts) == 1
    title += f", {counts.pop()} seeds" if alike else ""
    table = _table(title, "contrast", *(() if alike else ("seeds",)), "mean", "95 %", "exact p", "verdict")
    for contrast in analysis["contrasts"]:
        verdict = contrast["verdict"]
        # " vs default" in every row would cost an 80-column terminal the names; the caption says it once
        name = contrast["name"].removesuffix(f" vs {reference}") if contrast["kind"] == "arm" else contrast["name"]
        table.add_row(
            _text(name),
            *(() if alike else (str(len(contrast["differences"])),)),
            _number(contrast["mean"], signed=True),
            _span(contrast["interval"]),
            _number(contrast["p_maxt"]),
            Text(verdict, style=STYLES.get(verdict, "")),
        )
    table.caption = f"arms against {reference}; scale, spectrum, interaction: the 2x2" if analysis["causal"] else None
    return table


def _target(analysis: Mapping[str, Any]) -> RenderableType:
    plan = analysis["plan"]
    target = analysis["target"]
    title = f"Steps to the target set by {plan['reference']}'s {target['rule']['metric']}, of {target['horizon']}"
    table = _table(title, "arm", "reached", "difference", "95 % alone")
    for row in target["rows"]:
        table.add_row(
            _text(row["arm"] + _note(row["arm"], plan)),
            f"{row['reached']}/{row['n']}",
            _number(row["difference"], signed=True),
            _span(row["interval"]),
        )
    return table


def _tracked(analysis: Mapping[str, Any]) -> RenderableType:
    """One row an arm, first → last; two digits, so that four metrics fit 80 columns."""
    metrics = list(analysis["tracked"])
    # a long metric name takes two lines rather than the room of the numbers
    headers = [name if len(name) <= 12 else "\n".join(name.rsplit("_", 1)) for name in metrics]
    table = _table("Tracked, mean over seeds: first → last", "arm", *headers)
    for arm in [item["name"] for item in analysis["arms"]]:
        ends = [analysis["tracked"][metric].get(arm) for metric in metrics]
        if any(ends):
            cells = ["→".join(_short(end[at]["mean"]) for at in ("first", "last")) if end else "-" for end in ends]
            table.add_row(_text(arm), *cells)
    return table


def _note(arm: str, plan: Mapping[str, Any]) -> str:
    return {plan["reference"]: " (reference)", plan["noise_arm"]: " (A/A)"}.get(arm, "")


def _table(title: str, *columns: str) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in columns:
        left = column in ("arm", "contrast", "verdict")
        # the names give way last: 26 columns hold every arm of the default comparison
        table.add_column(
            column,
            justify="left" if left else "right",
            overflow="fold",
            min_width=26 if column in ("arm", "contrast") else None,
        )
    return table


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}".replace("e+0", "e").replace("e-0", "e-").replace("e+", "e")


def _text(value: str) -> RenderableType:
    # names are shown as they are: square brackets in them are no markup
    from rich.text import Text

    return Text(value)


def _number(value: float | None, *, signed: bool = False, digits: int = 3) -> str:
    if value is None:
        return "-"
    return number(value, signed) if digits == 3 else f"{value:.{digits}g}"


def _span(interval: list[float] | None) -> RenderableType:
    return _text(span((interval[0], interval[1])) if interval else "-")
