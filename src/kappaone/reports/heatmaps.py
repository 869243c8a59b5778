"""Heat maps by layer and head, stacked by role over one colour scale; what has a status is hatched, never only coloured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kappaone.reports.numbers import finite, show
from kappaone.reports.parts import plot_lines, plot_text
from kappaone.reports.plots import FONT, Plot, axis, graph_objects, plot

_GREY = "#8a8f95"
_TITLE, _BELOW = 26, 30  # pixels above a map, for its title, and below it, for the numbers of its axis


@dataclass(frozen=True)
class Cell:
    """One measured value.

    Attributes:
        value: the number, or None where there is none.
        status: "ok", or why the number is not to be read as it stands.
        note: what else is known about it.
        exact: the number is the quantity itself, not a bound of it; only such numbers set the colour scale.
    """

    value: float | None
    status: str = "ok"
    note: str = ""
    exact: bool = True

    @property
    def text(self) -> str:
        """For tables: the number, with the status where it is not "ok".

        Examples:
            >>> Cell(12.5).text, Cell(1e8, "bounded").text, Cell(None, "zero_operator").text
            ('12.5', '1e8 (bounded)', 'zero_operator')
        """
        if self.status == "ok":
            return show(self.value)
        return self.status if finite(self.value) is None else f"{show(self.value)} ({self.status})"


@dataclass(frozen=True)
class Panel:
    """One heat map: a role, or the whole layer.

    Attributes:
        title: written above it.
        rows: for each layer its heads; layers may have different numbers of heads, or none.
    """

    title: str
    rows: Sequence[Sequence[Cell]]


def heatmaps(panels: Sequence[Panel], *, layers: Sequence[str], quantity: str, log: bool) -> Plot:
    """Heat maps under each other, with one colour scale for all of them.

    Args:
        panels: the heat maps, each with one row per layer.
        layers: names of the layers, for the tooltips; the axis shows their numbers.
        quantity: title of the colour scale.
        log: colours follow the logarithm; values that are not above 0 are left grey.
    """
    go = graph_objects()

    def level(cell: Cell) -> float | None:
        x = finite(cell.value)
        if x is None or (log and x <= 0):
            return None
        return math.log10(x) if log else x

    # The scale is that of the exact numbers: one lower bound of 1e15 would paint all others alike.
    cells = [c for panel in panels for row in panel.rows for c in row]
    plain = [v for c in cells if c.exact and (v := level(c)) is not None]
    levels = plain or [v for c in cells if (v := level(c)) is not None] or [0.0]
    low, high = min(levels), max(levels)
    values, words = _colour_ticks(low, high, log)
    if len(values) == 1:
        low, high = low - 0.05, high + 0.05
    per_row = 18 if len(layers) <= 16 else 11
    heights = [max(len(layers), 1) * per_row for _ in panels]
    total = sum(heights) + (_TITLE + _BELOW) * len(panels)
    traces: list[Any] = []
    layout: dict[str, Any] = {}
    notes: list[dict[str, Any]] = []
    top = float(total)
    for place, panel in enumerate(panels):
        suffix = "" if place == 0 else str(place + 1)
        heads = max((len(row) for row in panel.rows), default=0)
        start = top - _TITLE
        domain = [max(0.0, (start - heights[place]) / total), start / total]
        top = start - heights[place] - _BELOW
        on = {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
        z: list[list[float | None]] = []
        grey: list[list[float | None]] = []
        said: list[list[str]] = []
        hatched: list[tuple[int, int]] = []
        for y, row in enumerate(panel.rows):
            z.append([level(c) for c in row] + [None] * (heads - len(row)))
            grey.append([0.0 if level(c) is None else None for c in row] + [None] * (heads - len(row)))
            said.append([_tip(panel, layers[y], x, c) for x, c in enumerate(row)] + [""] * (heads - len(row)))
            hatched += [(x, y) for x, c in enumerate(row) if c.status != "ok" or level(c) is None]
        shared = {"text": said, "hoverinfo": "text", "hoverongaps": False, "xgap": 1, "ygap": 1, **on}
        traces.append(go.Heatmap(z=z, coloraxis="coloraxis", **shared))
        if any(g is not None for row in grey for g in row):
            traces.append(go.Heatmap(z=grey, colorscale=[[0, _GREY], [1, _GREY]], showscale=False, **shared))
        if hatched:
            # A dark stroke with a light one on it is seen on every colour of the scale.
            for colour, width in (("#14171a", 3.5), ("#ffffff", 1.5)):
                marker = {"symbol": "line-ne", "size": 9, "line": {"color": colour, "width": width}}
                traces.append(
                    go.Scatter(
                        x=[x for x, _ in hatched],
                        y=[y for _, y in hatched],
                        mode="markers",
                        marker=marker,
                        hoverinfo="skip",
                        **on,
                    )
                )
        last = place == len(panels) - 1
        layout[f"xaxis{suffix}"] = axis(
            title={"text": "head", "standoff": 2} if last else None,
            anchor=f"y{suffix}",
            range=[-0.5, max(heads, 1) - 0.5],
            showgrid=False,
            **_ticks(heads),
        )
        layout[f"yaxis{suffix}"] = axis(
            title={"text": "layer"},
            anchor=f"x{suffix}",
            range=[len(layers) - 0.5, -0.5],
            domain=domain,
            showgrid=False,
            **_ticks(len(layers)),
        )
        notes.append(
            {
                "text": f"<b>{plot_text(panel.title, 40)}</b>",
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": domain[1],
                "yref": "paper",
                "yanchor": "bottom",
                "yshift": 3,
                "showarrow": False,
            }
        )
    bar = {
        "orientation": "h",
        "thickness": 12,
        "len": 1,
        "y": 0,
        "yanchor": "top",
        "ypad": 44,
        "xpad": 0,
        "outlinewidth": 0,
        "title": {"text": plot_lines(quantity), "side": "top", "font": {"family": FONT, "size": 13}},
        "tickvals": values,
        "ticktext": words,
    }
    scale = {"colorscale": "Cividis", "cmin": low, "cmax": high, "colorbar": bar}
    # Fixed: room for a colour bar grows by its padding on both sides if Plotly sets it.
    lines = str(bar["title"]["text"]).count("<br>") + 1  # type: ignore[index]
    margin = {"l": 52, "r": 16, "t": 4, "b": 90 + 17 * lines, "autoexpand": False}
    return plot(
        traces, height=total + margin["t"] + margin["b"], margin=margin, coloraxis=scale, annotations=notes, **layout
    )


def _tip(panel: Panel, layer: str, head: int, cell: Cell) -> str:
    lines = [plot_text(layer or "(the model itself)", 48), f"{plot_text(panel.title)}, head {head}: {cell.text}"]
    return "<br>".join([*lines, plot_lines(cell.note)] if cell.note else lines)


def _ticks(count: int) -> dict[str, Any]:
    """Whole numbers, about eight of them."""
    step = next(s for s in (1, 2, 4, 5, 8, 10, 16, 20, 50, 100, 1000) if count / s <= 9 or s == 1000)
    return {"tickvals": list(range(0, count, step)), "ticktext": [str(i) for i in range(0, count, step)]}


def _colour_ticks(low: float, high: float, log: bool) -> tuple[list[float], list[str]]:
    """Where the colour scale is labelled, and with what; `low` and `high` are logarithms where `log` is set."""
    if high - low < 1e-6 * max(1.0, abs(high)):
        middle = (low + high) / 2
        return [middle], [show(10**middle if log else middle)]
    if not log:
        places = [low + (high - low) * i / 4 for i in (0.1, 1.35, 2.65, 3.9)]
        return places, [show(p, 3) for p in places]
    for mantissas in ((1,), (1, 3), (1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 8)):
        found = [(m, d) for d in range(math.floor(low), math.ceil(high) + 1) for m in mantissas]
        inside = [(m, d) for m, d in found if low <= math.log10(m) + d <= high]
        if len(inside) >= 3:
            chosen = inside[:: -(-len(inside) // 5)]
            words = [f"{m:g}e{d}" if abs(d) > 3 else show(m * 10.0**d) for m, d in chosen]
            return [math.log10(m) + d for m, d in chosen], words
    places = [low + (high - low) * i for i in (0.03, 0.5, 0.97)]
    return places, [show(float(f"{10**p:.3g}")) for p in places]
