"""Plotly figures of studies from their dicts, one function each; a drawn number is never computed here.

Names stand above their rows, inside the plot: an axis full of long names would leave a phone
no room. Names reach Plotly only through `plot_text`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kappaone.reports.numbers import finite, pair, show, show_interval, show_with_interval
from kappaone.reports.palette import PLAIN, Look
from kappaone.reports.parts import plot_lines, plot_text
from kappaone.reports.plots import Plot, axis, graph_objects, plot

_LINE = "rgba(128,128,128,0.9)"
_SHADE = "rgba(128,128,128,0.17)"


@dataclass(frozen=True)
class Row:
    """One row of a row chart.

    Attributes:
        name: written above the row, on the left.
        remark: written above the row, on the right.
        look: how it is drawn.
        mean: the large marker, or None.
        interval: the thick line, or None.
        inner: a shorter, thicker interval on the same line, or None.
        dots: (label, value) of the small markers.
        open_dots: (label, value) of small hollow markers (values that are only bounds).
    """

    name: str
    remark: str
    look: Look
    mean: float | None = None
    interval: tuple[float, float] | None = None
    inner: tuple[float, float] | None = None
    dots: Sequence[tuple[str, float]] = ()
    open_dots: Sequence[tuple[str, float]] = ()


def rows_chart(
    rows: Sequence[Row],
    *,
    x_title: str,
    zero: bool = False,
    margin: float | None = None,
    limit: float | None = None,
) -> Plot:
    """Rows with a name above each: an interval with its mean, and the dots of the seeds under it.

    Args:
        rows: from top to bottom.
        x_title: title of the axis, with the unit.
        zero: draw a line at 0.
        margin: shade [-margin, margin].
        limit: draw a dotted line here (the last step that was looked at).

    Returns:
        Plotly's JSON.
    """
    go = graph_objects()
    traces: list[Any] = []
    notes: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        y, colour, name = -float(place), row.look.colour, plot_text(row.name)
        seeds = row.dots or row.open_dots
        lift = 0.0 if seeds else -0.12
        for ends, width in ((row.interval, 2.5), (row.inner, 6.0)):
            if ends is not None:
                said = f"{name}<br>{show_interval(ends, signed=zero)}"
                traces.append(
                    go.Scatter(
                        x=list(ends),
                        y=[y + lift] * 2,
                        mode="lines+markers",
                        line={"color": colour, "width": width},
                        marker=_cap(colour, 8 if width < 4 else 0),
                        text=[said, said],
                        hoverinfo="text",
                        opacity=1.0 if width < 4 else 0.55,
                    )
                )
        if row.mean is not None:
            said = f"{name}<br>{show_with_interval(row.mean, row.interval, signed=zero)}"
            marker = {"color": colour, "size": 11, "symbol": row.look.symbol}
            traces.append(
                go.Scatter(x=[row.mean], y=[y + lift], mode="markers", marker=marker, text=[said], hoverinfo="text")
            )
        top = y - 0.27 if row.interval is not None or row.mean is not None else y + 0.08
        placed = _stacked([*row.dots, *row.open_dots], top)
        for dots, symbol, size in (
            (placed[: len(row.dots)], "circle", 7),
            (placed[len(row.dots) :], "triangle-right-open", 10),
        ):
            if dots:
                hollow = symbol.endswith("open")
                marker = {"color": colour, "size": size, "symbol": symbol, "opacity": 1.0 if hollow else 0.8}
                marker["line"] = {"width": 2 if hollow else 0, "color": colour}
                said_by = [f"{name}<br>{plot_text(label)}: {show(x, signed=zero)}" for label, x, _ in dots]
                traces.append(
                    go.Scatter(
                        x=[x for _, x, _ in dots],
                        y=[height for _, _, height in dots],
                        mode="markers",
                        marker=marker,
                        text=said_by,
                        hoverinfo="text",
                    )
                )
        place_y = {"y": y + 0.33, "xref": "paper", "showarrow": False, "yanchor": "middle", "font": {"size": 12}}
        if limit is not None:
            # The style sheet paints it in the page's colour, so that the limit's line does not cross a word.
            place_y["bgcolor"] = "#808080"
        notes.append(place_y | {"x": 0, "xanchor": "left", "text": f"<b>{plot_text(row.name, 30)}</b>"})
        notes.append(place_y | {"x": 1, "xanchor": "right", "text": plot_text(row.remark, 20)})
    shapes: list[dict[str, Any]] = []
    upright = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    if margin is not None:
        shapes.append(
            upright | {"type": "rect", "x0": -margin, "x1": margin, "fillcolor": _SHADE, "line": {"width": 0}}
        )
    for at, dash in ((0.0 if zero else None, "solid"), (limit, "dot")):
        if at is not None:
            line = {"color": _LINE, "width": 1.5, "dash": dash}
            shapes.append(upright | {"type": "line", "x0": at, "x1": at, "line": line})
    return plot(
        traces,
        height=70 + 64 * max(len(rows), 1),
        xaxis=axis(title={"text": plot_lines(x_title)}, nticks=6),
        yaxis={"visible": False, "range": [-len(rows) + 0.45, 0.6], "fixedrange": True},
        annotations=notes,
        shapes=shapes,
    )


def _cap(colour: str, size: float) -> dict[str, Any]:
    """The short stroke at the end of an interval; it also keeps Plotly from ending the axis right there."""
    return {"symbol": "line-ns", "size": size, "line": {"color": colour, "width": 2}}


def _stacked(dots: Sequence[tuple[str, float]], top: float) -> list[tuple[str, float, float]]:
    """(label, x, y): dots at the same x stand under each other, so that eight equal values do not look like one."""
    seen: dict[float, int] = {}
    placed = []
    for label, x in dots:
        layer = seen[x] = seen.get(x, -1) + 1
        placed.append((label, x, top - 0.115 * min(layer, 4)))
    return placed


def curves(by_arm: Mapping[str, Any], looks: Mapping[str, Look], *, metric: str) -> Plot:
    """One metric over the steps: each arm's mean as a line, its pointwise interval over the seeds as a band.

    Args:
        by_arm: {arm: {"steps", "mean", "low", "high"}}.
        looks: how each arm is drawn.
        metric: the name, written above the axis.
    """
    go = graph_objects()
    bands: list[Any] = []
    lines: list[Any] = []
    for arm, curve in by_arm.items():
        look, name = looks.get(arm, PLAIN), plot_text(arm)
        steps, means = list(curve["steps"]), [finite(m) for m in curve["mean"]]
        ends = [pair(e) for e in zip(curve["low"], curve["high"], strict=True)]
        known = [(s, e) for s, e in zip(steps, ends, strict=True) if e is not None]
        if known:
            bands.append(
                go.Scatter(
                    x=[s for s, _ in known] + [s for s, _ in reversed(known)],
                    y=[e[0] for _, e in known] + [e[1] for _, e in reversed(known)],
                    fill="toself",
                    fillcolor=look.faint(0.14),
                    line={"width": 0},
                    mode="lines",
                    hoverinfo="skip",
                    legendgroup=look.group,
                )
            )
        said = [
            f"{name}<br>step {show(s)}: {show_with_interval(m, e)}" for s, m, e in zip(steps, means, ends, strict=True)
        ]
        few = len(steps) <= 25
        lines.append(
            go.Scatter(
                x=steps,
                y=means,
                mode="lines+markers" if few else "lines",
                text=said,
                hoverinfo="text",
                line={"color": look.colour, "width": 2, "dash": look.dash},
                connectgaps=False,
                marker={"color": look.colour, "symbol": look.symbol, "size": 6},
                legendgroup=look.group,
            )
        )
    return plot(
        bands + lines,
        height=400,
        margin={"l": 12, "r": 12, "t": 34, "b": 12},
        xaxis=axis(title={"text": "step"}, nticks=7),
        yaxis=axis(nticks=7),
        annotations=[_above(metric)],
    )


def _above(text: str) -> dict[str, Any]:
    """The name of the vertical axis, level and above it: a turned title costs a phone width and is hard to read."""
    return {
        "text": plot_text(text, 44),
        "x": 0,
        "xref": "paper",
        "xanchor": "left",
        "y": 1,
        "yref": "paper",
        "yanchor": "bottom",
        "yshift": 8,
        "showarrow": False,
    }


def interaction(
    lines: Sequence[tuple[Look, Sequence[float | None], Sequence[Sequence[tuple[str, float]]]]],
    *,
    ticks: Sequence[str],
    metric: str,
) -> Plot:
    """The four cells of the 2x2: one line per spectrum, from one scale to the other; parallel lines: no interaction.

    Args:
        lines: for each spectrum its look, its two cell means, and for each of the two the (seed, value) behind it.
        ticks: names of the two scales.
        metric: the name of what the cells hold.
    """
    go = graph_objects()
    traces: list[Any] = []
    for place, (look, means, seeds) in enumerate(lines):
        offset = (place - 0.5) * 0.05
        for x, dots in enumerate(seeds):
            if dots:
                traces.append(
                    go.Scatter(
                        x=[x + 2 * offset] * len(dots),
                        y=[value for _, value in dots],
                        mode="markers",
                        marker={"color": look.colour, "size": 6, "opacity": 0.5},
                        hoverinfo="text",
                        text=[f"{plot_text(label)}: {show(value)}" for label, value in dots],
                    )
                )
        traces.append(
            go.Scatter(
                x=[0 + offset, 1 + offset],
                y=list(means),
                mode="lines+markers",
                hoverinfo="text",
                text=[show(m) for m in means],
                line={"color": look.colour, "width": 2.5, "dash": look.dash},
                marker={"color": look.colour, "size": 12, "symbol": look.symbol},
            )
        )
    return plot(
        traces,
        height=360,
        margin={"l": 12, "r": 12, "t": 34, "b": 12},
        xaxis=axis(tickvals=[0, 1], ticktext=[plot_lines(t, 20) for t in ticks], range=[-0.35, 1.35], showgrid=False),
        yaxis=axis(nticks=7),
        annotations=[_above(metric)],
    )


def first_and_last(
    by_arm: Mapping[str, Any],
    looks: Mapping[str, Look],
    *,
    quantity: str,
    log: bool,
    remarks: Mapping[str, str],
) -> Plot:
    """One tracked quantity by arm: hollow at the first record, filled at the last, each with its interval.

    Args:
        by_arm: {arm: {"first": {"mean", "low", "high"}, "last": {...}}}.
        looks: how each arm is drawn.
        quantity: title of the axis.
        log: logarithmic axis; what is not above 0 cannot be drawn on it and stands in the table only.
        remarks: written at the right of each arm's row.
    """
    go = graph_objects()
    traces: list[Any] = []
    notes: list[dict[str, Any]] = []

    def drawable(value: object) -> float | None:
        x = finite(value)
        return None if x is None or (log and x <= 0) else x

    for place, (arm, ends) in enumerate(by_arm.items()):
        look, y, name = looks.get(arm, PLAIN), -float(place), plot_text(arm)
        points = {when: drawable(ends[when]["mean"]) for when in ("first", "last")}
        if None not in points.values():
            traces.append(
                go.Scatter(
                    x=[points["first"], points["last"]],
                    y=[y - 0.05, y - 0.2],
                    mode="lines",
                    hoverinfo="skip",
                    line={"color": look.colour, "width": 1.5, "dash": "dot"},
                )
            )
        for when, lower in (("first", 0.05), ("last", 0.2)):
            limits = pair((ends[when].get("low"), ends[when].get("high")))
            span = [drawable(x) for x in limits] if limits else [None]
            if None not in span:
                traces.append(
                    go.Scatter(
                        x=span,
                        y=[y - lower] * 2,
                        mode="lines+markers",
                        marker=_cap(look.colour, 8),
                        hoverinfo="skip",
                        line={"color": look.colour, "width": 2},
                    )
                )
            if points[when] is not None:
                symbol = look.symbol + ("-open" if when == "first" else "")
                marker = {
                    "color": look.colour,
                    "size": 10,
                    "symbol": symbol,
                    "line": {"width": 2, "color": look.colour},
                }
                said = f"{name}<br>{when} record: {show_with_interval(points[when], limits)}"
                traces.append(
                    go.Scatter(
                        x=[points[when]],
                        y=[y - lower],
                        mode="markers",
                        marker=marker,
                        text=[said],
                        hoverinfo="text",
                    )
                )
        place_y = {"y": y + 0.3, "xref": "paper", "showarrow": False, "yanchor": "middle", "font": {"size": 12}}
        notes.append(place_y | {"x": 0, "xanchor": "left", "text": f"<b>{plot_text(arm, 30)}</b>"})
        notes.append(place_y | {"x": 1, "xanchor": "right", "text": plot_text(remarks.get(arm, ""), 24)})
    scale = axis(title={"text": plot_lines(quantity)}, nticks=6)
    if log:
        scale |= {"type": "log", "dtick": None, "exponentformat": "power", "nticks": 5}
    return plot(
        traces,
        height=70 + 54 * max(len(by_arm), 1),
        xaxis=scale,
        yaxis={"visible": False, "range": [-len(by_arm) + 0.5, 0.55], "fixedrange": True},
        annotations=notes,
    )
