"""`kappaone compare`: arms with paired seeds on a recipe, ending in a table and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kappaone.cli.arguments import Json, writable
from kappaone.cli.output import Terminal, print_json
from kappaone.errors import SpecError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(compare)


def compare(
    recipe: Annotated[str, typer.Argument(help="A recipe: images, package.module:NAME or file.py:NAME.")] = "images",
    arms: Annotated[
        str | None, typer.Option(help="Schemes, separated by commas (commas inside brackets stay).")
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many (8 means 0 to 7), or a list 3,4,5.")] = "8",
    preset: Annotated[str, typer.Option(help="Size of the recipe: smoke, tiny, ...")] = "tiny",
    option: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE, an option of the recipe; repeatable.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the study; the same folder goes on where it stopped.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Runs at a time, one thread each.")] = 2,
    margin: Annotated[float | None, typer.Option(help="Equivalence margin in the metric's unit.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the page here; by default into the study's folder.")] = None,
    json: Json = False,
) -> None:
    """Compare initializations with paired seeds and say what the differences show."""
    from kappaone.recipes import compare as run
    from kappaone.recipes import comparison_folder, parse_assignments, plan_comparison

    writable("--html", html)
    if out is not None and out.exists() and not out.is_dir():
        raise SpecError(f"--out {str(out)!r} is a file; expected a folder", "name a folder, new or of the same study")
    names = split_arms(arms) if arms is not None else None
    numbers = read_seeds(seeds)
    options = parse_assignments(option or [])
    plan = plan_comparison(recipe, names, numbers, preset=preset, margin=margin, **options)
    folder = comparison_folder(plan, out)
    analysis = run(
        recipe, names, numbers, preset=preset, margin=margin, out=folder, workers=workers, progress=not json, **options
    )
    page = html or folder / "report.html"
    from kappaone.reports import report

    report(analysis, page)
    if json:
        print_json(analysis.to_dict())
        return
    from kappaone.studies.table import render

    terminal = Terminal()
    terminal.print(render(analysis.to_dict()))
    terminal.whole(f"study: {folder.resolve()}")
    terminal.whole(f"page: {page.resolve()}")


def split_arms(text: str) -> list[str]:
    """Split at commas that are in no bracket.

    Raises:
        SpecError: if a bracket is not closed, or an arm is empty.

    Examples:
        >>> split_arms("default, conditioned(value=per_head, scale=matched)")
        ['default', 'conditioned(value=per_head, scale=matched)']
    """
    out, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    names = [item.strip() for item in out]
    if depth or not all(names):
        what = "has a bracket without its partner" if depth else "has an arm without a name"
        raise SpecError(f"--arms {text!r} {what}", "write for instance --arms 'default,conditioned(scale=matched)'")
    return names


def read_seeds(text: str) -> int | list[int]:
    """A number of seeds, or the seeds themselves.

    Raises:
        SpecError: if it is neither.

    Examples:
        >>> read_seeds("8"), read_seeds("3,4,5"), read_seeds("7,")
        (8, [3, 4, 5], [7])
    """
    try:
        if "," in text:
            return [int(item) for item in text.removesuffix(",").split(",")]
        return int(text)
    except ValueError:
        raise SpecError(
            f"--seeds {text}; expected a number such as 8 or a list such as 3,4,5", "write --seeds 8"
        ) from None
