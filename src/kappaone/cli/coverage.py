"""`kappaone coverage`: which architectures of timm or transformers are handled, refused, or have no attention."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kappaone.cli.arguments import Json, writable
from kappaone.cli.output import Terminal, print_json, table
from kappaone.errors import SpecError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import TaskID

    from kappaone.coverage.cover import Coverage, Tell

_LIBRARIES = ("timm", "transformers")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(coverage)


def coverage(
    library: Annotated[str, typer.Argument(help="timm or transformers.")],
    names: Annotated[
        list[str] | None, typer.Argument(help="Architectures or globs such as 'vit_*'; all of them if left out.")
    ] = None,
    probe: Annotated[
        bool, typer.Option("--probe", help="Confirm each kind of attention by behaviour, on a small instance.")
    ] = False,
    json: Json = False,
    markdown: Annotated[Path | None, typer.Option(help="Write a page here.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print the totals only.")] = False,
    jobs: Annotated[int, typer.Option(min=1, help="Processes, one thread each.")] = 2,
    limit: Annotated[float, typer.Option(min=1, help="Seconds for one architecture.")] = 300.0,
) -> None:
    """Survey a library's architectures: handled, refused (why), no attention (exit code 1 if a layout is contradicted)."""
    if library not in _LIBRARIES:
        raise SpecError(f"coverage of {library!r}; expected timm or transformers", "choose one of the two")
    writable("--markdown", markdown, ".md")
    from kappaone.coverage.cover import Coverage, select
    from kappaone.coverage.table import totals
    from kappaone.coverage.workers import zoo

    chosen, unknown = select(zoo(library).names(), names or [])
    if unknown:
        raise SpecError(
            f"{library} has no architecture {', '.join(map(repr, unknown))}", "globs in quotes, such as 'vit_*'"
        )
    found = Coverage(library, tuple(chosen))
    try:
        with _progress(shown=not json) as tell:
            found.run(probe=probe, jobs=jobs, tell=tell, limit=limit)
    except KeyboardInterrupt:
        _show(found, json=json, summary=summary)  # what there is so far; a page is written by a whole run only
        raise
    _show(found, json=json, summary=summary)
    if markdown is not None:
        _write(found, markdown, probe=probe, names=names or [])
    if totals(found.results()).contradicted:
        raise typer.Exit(1)


def _show(found: Coverage, *, json: bool, summary: bool) -> None:
    from kappaone.coverage.table import COLUMNS, cells, to_json, totals

    rows = found.results()
    if json:
        print_json(to_json(rows))
        return
    terminal = Terminal()
    if rows and not summary:
        terminal.print(table(COLUMNS, [cells(row) for row in rows]))
        terminal.say("")
    if len(rows) < len(found.asked):
        terminal.say(f"{len(rows)} of {len(found.asked)} architectures were looked at")
    for line in totals(rows).lines():
        terminal.say(f"{found.library}: {line}")


def _write(found: Coverage, path: Path, *, probe: bool, names: list[str]) -> None:
    from importlib.metadata import version

    from kappaone.coverage.table import markdown

    words = ["kappaone coverage", found.library, *(f"'{name}'" for name in names), *(["--probe"] if probe else [])]
    page = markdown(found.library, version(found.library), found.results(), " ".join([*words, "--markdown", path.name]))
    path.write_text(page, encoding="utf-8")
    Terminal().whole(f"page: {path}")


@contextmanager
def _progress(*, shown: bool) -> Iterator[Tell]:
    """What is done and how much time is left, on stderr; a line for each tenth where that is no terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    if not shown:
        yield lambda *_: None
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console)
        return
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=None), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TimeRemainingColumn(elapsed_when_finished=True), console=console) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield tell


def _lines(console: Console) -> Tell:
    said: dict[str, int] = {}
    since: dict[str, float] = {}

    def tell(what: str, done: int, total: int) -> None:
        if done == 0:
            since[what], said[what] = time.monotonic(), 0
            return
        tenth = 10 * done // total
        if tenth > said[what]:
            said[what] = tenth
            left = (time.monotonic() - since[what]) / done * (total - done)
            ahead = f", about {left / 60:.1f} min left" if done < total else ""
            console.print(f"{what} {done} of {total}{ahead}", markup=False, highlight=False)

    return tell
