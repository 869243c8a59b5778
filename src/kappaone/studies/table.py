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
        note = {plan["reference"]: " (reference)", plan["noise_arm"]: " (A/A)"}.get(arm["name"], "")
        table.add_row(
            _text(arm["name"] + note),
            str(arm["n"]),
            _number(arm["mean"], digits=4),
            _number(arm["sd"]),
            str(len(arm["diverged"])),
            str(len(arm["failed"])),
        )
    return table


def _contrasts(analysis: Mapping[str, Any]) -> RenderableType:
    from rich.text import Text

    title = f"Paired differences of {analysis['plan']['metric']}, simultaneous 95 % intervals"
    table = _table(title, "contrast", "seeds", "mean", "95 %", "90 % alone", "exact p", "verdict")
    for contrast in analysis["contrasts"]:
        verdict = contrast["verdict"]
        table.add_row(
            _text(contrast["name"]),
            str(len(contrast["differences"])),
            _number(contrast["mean"], signed=True),
            _span(contrast["interval"]),
            _span(contrast["interval90"]),
            _number(contrast["p_maxt"]),
            Text(verdict, style=STYLES.get(verdict, "")),
        )
    return table


def _target(analysis: Mapping[str, Any]) -> RenderableType:
    plan = analysis["plan"]
    target = analysis["target"]
    title = f"Steps to {plan['reference']}'s final {target['rule']['metric']}, of {target['horizon']}"
    table = _table(title, "arm", "reached", "difference", "95 % alone")
    for row in target["rows"]:
        note = {plan["reference"]: " (reference)", plan["noise_arm"]: " (A/A)"}.get(row["arm"], "")
        table.add_row(
            _text(row["arm"] + note),
            f"{row['reached']}/{row['n']}",
            _number(row["difference"], signed=True),
            _span(row["interval"]),
        )
    return table


def _tracked(analysis: Mapping[str, Any]) -> RenderableType:
    table = _table("Tracked, mean over seeds", "metric", "arm", "first", "last")
    for metric, arms in analysis["tracked"].items():
        for arm, ends in arms.items():
            table.add_row(_text(metric), _text(arm), _number(ends["first"]["mean"]), _number(ends["last"]["mean"]))
    return table


def _table(title: str, *columns: str) -> Table:
    from rich.table import Table

    table = Table(title=title, title_justify="left", title_style="bold")
    for column in columns:
        left = column in ("arm", "contrast", "metric", "verdict")
        table.add_column(column, justify="left" if left else "right", overflow="fold")
    return table


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
