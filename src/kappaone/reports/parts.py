"""What a page is made of: tables, figures with their data, and text that is safe where Plotly or a script reads it."""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kappaone.reports.palette import Look


@dataclass(frozen=True)
class Table:
    """A table: the first column holds the row's name, the others right-aligned numbers unless listed in `text`.

    Attributes:
        caption: what it shows.
        columns: heads of the columns.
        rows: cells, one text per column.
        text: indices of further columns that hold words.
    """

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    text: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Key:
    """One line of a figure's legend.

    Attributes:
        name: what is shown.
        look: how it is drawn.
    """

    name: str
    look: Look


@dataclass(frozen=True)
class Figure:
    """A figure with its text alternative and its data.

    Attributes:
        id: its id in the page.
        title: one line.
        alt: what a reader who cannot see it should know.
        plot: the figure as Plotly's JSON: {"data", "layout"}.
        tables: the data drawn.
        legend: lines of the legend, if there is one.
        toggles: the legend's lines can be switched off and on.
        note: how to read it.
        zoom: readers with a mouse get the bar for zooming.
        narrow: it needs no more than half of a wide page.
    """

    id: str
    title: str
    alt: str
    plot: Mapping[str, Any]
    tables: Sequence[Table]
    legend: Sequence[Key] = field(default_factory=tuple)
    toggles: bool = False
    note: str = ""
    zoom: bool = False
    narrow: bool = False


def plot_text(text: object, limit: int = 0) -> str:
    """A text as it may stand in a Plotly figure, which reads a little HTML: no tag, link or entity of its own.

    Args:
        text: the text.
        limit: shorten it in its middle to so many characters (0: do not).

    Examples:
        >>> plot_text("a<b>c & <a href='x'>"), plot_text("abcdefghij", limit=5)
        ('a&lt;b&gt;c &amp; &lt;a href=&#x27;x&#x27;&gt;', 'ab…ij')
    """
    plain = " ".join(str(text).split())
    if limit and len(plain) > limit:
        tail = (limit - 1) // 2
        plain = f"{plain[: limit - 1 - tail]}…{plain[len(plain) - tail :]}"
    return html.escape(plain)


def plot_lines(text: object, width: int = 46) -> str:
    """A text for a Plotly axis title, which does not wrap by itself: broken so that it fits a phone.

    Examples:
        >>> plot_lines("one two three", width=8)
        'one two<br>three'
    """
    return "<br>".join(html.escape(line) for line in textwrap.wrap(str(text), width))


def strict(value: Any) -> Any:
    """A copy that is strict JSON: NaN and the infinities as the texts "NaN", "Infinity" and "-Infinity".

    Examples:
        >>> strict({"a": [float("nan"), 1, float("-inf")]})
        {'a': ['NaN', 1, '-Infinity']}
    """
    if isinstance(value, Mapping):
        return {str(k): strict(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def script_json(value: Any, *, indent: int | None = None) -> str:
    r"""Strict JSON that can stand inside a script element: no character that could end it or begin a tag.

    Examples:
        >>> script_json("</script>")
        '"\\u003c/script\\u003e"'
    """
    text = json.dumps(strict(value), ensure_ascii=False, allow_nan=False, indent=indent)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
