"""How commands print: one style of table, plain text, JSON on its own; stdout for results, stderr for the rest."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


class Terminal(Console):
    """Standard output as the commands use it: no highlighting, and a reader that is gone ends the command as such."""

    def __init__(self) -> None:
        super().__init__(highlight=False)

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to `main`, which knows the exit code."""
        raise BrokenPipeError

    def say(self, text: str) -> None:
        """One line as it is, wrapped by words: no markup, so that square brackets in names stay."""
        self.print(Text(text))

    def whole(self, text: str) -> None:
        """One line that must stay in one piece, such as a path."""
        self.print(Text(text), soft_wrap=True)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], *, keep: Sequence[str] = ()) -> Table:
    """A table whose cells are plain text.

    Args:
        columns: headings.
        rows: cells.
        keep: columns that are never folded; the others give way in a narrow terminal.

    Examples:
        >>> Console(width=30).print(table(["a", "b"], [["[x]", "1"]]))
        a    b
        ──────
        [x]  1
    """
    out = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False, header_style="bold")
    for column in columns:
        out.add_column(column, no_wrap=column in keep, overflow="fold")
    for row in rows:
        out.add_row(*map(Text, row))
    return out


@contextmanager
def rows_bar() -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar over the rows of a module that is explored, on stderr; None, and not a character, where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("rows", total=None)
        yield lambda name, done, total: shown.update(task, description=name, completed=done, total=total)


def print_json(data: Any) -> None:
    """JSON and nothing else on standard output; a number that JSON does not know is an error, not a broken file."""
    say(json.dumps(data, indent=1, allow_nan=False))


def say(text: str) -> None:
    """Text as it is on standard output."""
    try:
        typer.echo(text)
    except BrokenPipeError:
        raise BrokenPipeError from None  # without its errno, by which typer would turn it into an exit of its own
