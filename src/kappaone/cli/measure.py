"""`kappaone inspect`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from kappaone.cli.arguments import Layouts
from kappaone.cli.initialise import Data, Json, Model


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("inspect")(inspect)


def inspect(
    model: Model,
    data: Data = None,
    scheme: Annotated[str | None, typer.Option(help="Initialise by this scheme first.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the model and the scheme.")] = 0,
    html: Annotated[Path | None, typer.Option(help="Write a page with heat maps here.")] = None,
    jacobian: Annotated[bool, typer.Option(help="Compute the condition number of the attention Jacobian.")] = True,
    max_rows: Annotated[int, typer.Option(help="Largest tokens x head_dim for it.")] = 4096,
    layers: Annotated[
        str | None, typer.Option(help="Only these layers: first, last, or positions such as 0,5,11.")
    ] = None,
    layouts: Layouts = None,
    json: Json = False,
) -> None:
    """Measure the conditioning of a model's attention."""
    from kappaone.apply import init_
    from kappaone.cli.models import example_for, load_model
    from kappaone.conditioning import inspect as measure
    from kappaone.layouts import AttentionLayout, AttentionSpec, find_attention
    from kappaone.layouts.spec_file import read_specs
    from kappaone.schemes import understand

    specs = None if layouts is None else read_specs(layouts)
    spec = understand(scheme) if scheme else None
    chosen = understand(f"default(layers={_layers(layers)})") if layers else None
    found = load_model(model, seed=seed)
    example, words = example_for(found, data)
    if spec is not None:
        init_(found.model, spec, seed=seed, layouts=specs, example=example, on_refused="skip")
    picked: list[AttentionLayout | AttentionSpec] | None = list(specs) if specs is not None else None
    if chosen is not None:
        every = find_attention(found.model, layouts=specs, on_refused="skip")
        picked = [every[i] for i in sorted(chosen.chosen(len(every)))]
    with _bar() as tell:
        report = measure(
            found.model, example, layouts=picked, jacobian=jacobian, max_jacobian_rows=max_rows, progress=tell
        )
    if report.example is not None:
        report = replace(report, example=f"{words}: sample 0")
    if html is not None:
        from kappaone.reports import report as page

        page(report, html, title=f"{model}{', ' + str(spec) if spec else ''}")
    if json:
        typer.echo(report.to_json())
    else:
        typer.echo(f"input: {words}")
        typer.echo(str(report))
        if html is not None:
            typer.echo(f"page: {html.resolve()}")


@contextmanager
def _bar(console: Console | None = None) -> Iterator[Callable[[int, int, float | None], None] | None]:
    """A bar over layers and heads with the time left, on stderr; None, and not a character, where that is no terminal."""
    console = console or Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("layers and heads"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(elapsed_when_finished=False),
    )
    # transient: the bar leaves no trace before the table, nor before the line that says "interrupted".
    with Progress(*columns, console=console, transient=True) as shown:
        task = shown.add_task("inspect", total=None)
        yield lambda done, total, _left: shown.update(task, completed=done, total=total)


def _layers(text: str) -> str:
    return f"[{text}]" if "," in text else text
