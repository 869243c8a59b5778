"""The one style of all figures: transparent, with colours of text and grid that the page's style sheet overrides.

So a figure follows light, dark and print without being drawn again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kappaone.errors import MissingExtra
from kappaone.reports.palette import NEUTRAL

Plot = Mapping[str, Any]
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif'
GRID = "rgba(128,128,128,0.28)"


def graph_objects() -> Any:
    """Plotly's graph objects.

    Raises:
        MissingExtra: Plotly is not installed.
    """
    try:
        import plotly.graph_objects as go
    except ImportError as error:
        raise MissingExtra("kappaone.report", "plotly", "report") from error
    return go


def axis(**options: Any) -> dict[str, Any]:
    """Settings of an axis, with a grid that the style sheet can recolour."""
    plain = {
        "gridcolor": GRID,
        "zeroline": False,
        "automargin": True,
        "ticks": "outside",
        "tickcolor": GRID,
    }
    return plain | options


def plot(traces: Sequence[Any], *, height: int, **layout: Any) -> Plot:
    """The JSON of a figure in the one style of all pages."""
    style: dict[str, Any] = {
        "template": "none",
        "height": height,
        "autosize": True,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": NEUTRAL},
        "margin": {"l": 12, "r": 12, "t": 12, "b": 12},
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"align": "left", "font": {"family": FONT, "size": 13}},
        "dragmode": False,
    }
    figure = graph_objects().Figure(data=list(traces), layout=style | layout)
    drawn: dict[str, Any] = json.loads(figure.to_json())
    # The template "none" still writes a page of defaults; an empty one draws the same.
    drawn["layout"]["template"] = {}
    return drawn
