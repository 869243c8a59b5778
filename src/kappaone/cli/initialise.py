"""`kappaone schemes`, `layouts`, `init`, `check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from rich.table import Table

from kappaone.errors import SpecError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Model = Annotated[
    str,
    typer.Argument(help="timm:NAME, hf:TYPE, torchvision:NAME, file.py:function, a folder, or a .safetensors file."),
]
Scheme = Annotated[str, typer.Option(help="For instance 'conditioned(value=per_head, scale=matched)'.")]
Data = Annotated[
    str | None, typer.Option(help="An image, a .safetensors file of named inputs, or 'none'. Default: a sample.")
]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(schemes)
    app.command()(layouts)
    app.command("init")(init)
    app.command()(check)


def schemes(
    name: Annotated[str | None, typer.Argument(help="One scheme, for its options.")] = None, json: Json = False
) -> None:
    """List the initialization schemes, or the options of one."""
    from kappaone.schemes import ENTRIES, lookup

    entries = [lookup(name)] if name else [lookup(item) for item in ENTRIES]
    if json:
        _print_json(
            [
                {
                    "name": entry.name, "summary": entry.summary, "source": entry.source, "parts": entry.parts,
                    "options": {
                        key: {"default": option.default, "allowed": option.allowed(), "help": option.help}
                        for key, option in entry.options.items()
                    },
                }
                for entry in entries
            ]
        )  # fmt: skip
        return
    console = Console(highlight=False)
    if name is None:
        table = Table("scheme", "sets", "what it is", "options", box=None, pad_edge=False)
        for entry in entries:
            table.add_row(entry.name, entry.parts, entry.summary, ", ".join(entry.options) or "-")
        console.print(table)
        console.print(
            "any of them: parts=, layers=, scale=unit|matched|matched(group=role)|logit(STD)|NUMBER|SCHEME",
            markup=False,
        )
        console.print("kappaone schemes NAME shows the options of one.")
        return
    entry = entries[0]
    console.print(f"{entry.name}: {entry.summary}\nsets {entry.parts}; source: {entry.source}", markup=False)
    table = Table("option", "allowed", "default", "meaning", box=None, pad_edge=False)
    for key, option in entry.options.items():
        table.add_row(key, option.allowed(), str(option.default), option.help)
    if entry.options:
        console.print(table)


def layouts(
    model: Model,
    verify: Annotated[bool, typer.Option(help="Check each layout against the model's behaviour.")] = False,
    data: Data = None,
    json: Json = False,
) -> None:
    """Show where q, k, v and o live in a model, and what is refused."""
    from kappaone.cli.models import example_for, load_model
    from kappaone.layouts import survey
    from kappaone.layouts.probe import verify as probe

    found = load_model(model)
    example, words = example_for(found, data)
    result = survey(found.model, example)
    report = probe(found.model, result.layouts, example) if verify and example is not None else None
    if verify and example is None:
        raise SpecError(f"--verify runs the model, and there is {words}", "pass --data")
    if json:
        _print_json(
            {
                "layouts": [layout.to_dict() for layout in result.layouts],
                "refused": [item.to_dict() for item in result.refused],
                "probe": None
                if report is None
                else {"ok": report.ok, "rows": len(report.verdicts), "wrong": [str(v) for v in report.wrong]},
            }
        )
    else:
        console = Console(highlight=False)
        table = Table("layer", "described by", "heads x dim", "q", "k", "v", "o", "facts", box=None, pad_edge=False)
        for layout in result.layouts:
            kv = f"/{layout.kv_heads}" if layout.kv_heads != layout.heads else ""
            own = {role: layout.role(role) for role in ("q", "k", "v")} | ({"o": layout.o} if layout.o else {})  # type: ignore[dict-item]
            cells = [
                f"{r.parameter.removeprefix(layout.name + '.')}[{min(r.starts)}:{max(r.starts) + r.size}]"
                for r in own.values()
            ]
            facts = ", ".join(k if v is True else f"{k}={v}" for k, v in layout.facts.items())
            table.add_row(
                layout.name or "(root)",
                layout.source,
                f"{layout.heads}{kv} x {layout.head_dim}",
                *cells,
                *["-"] * (4 - len(cells)),
                facts,
            )
        console.print(table)
        for item in result.refused:
            console.print(f"refused: {item}", markup=False)
        if report is not None:
            console.print(str(report), markup=False)
    if (report is not None and not report.ok) or not result.layouts:
        raise typer.Exit(1)


def init(
    model: Model,
    scheme: Scheme = "conditioned",
    seed: Annotated[int, typer.Option(help="Seed of the scheme and of everything else in the model.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Write the weights here (.safetensors).")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the report here (.json).")] = None,
    verify: Annotated[bool, typer.Option(help="Check each layout against the model's behaviour first.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Replace weights that were loaded or trained.")] = False,
    on_refused: Annotated[str, typer.Option(help="raise, or skip to set the rest.")] = "raise",
    data: Data = None,
    json: Json = False,
) -> None:
    """Initialise a model's attention and write it as safetensors."""
    from kappaone.apply import init_
    from kappaone.cli.models import example_for, load_model
    from kappaone.cli.weights import replace_file, save
    from kappaone.schemes import understand

    spec = understand(scheme)  # a wrong scheme is said before a large model is built
    if on_refused not in ("raise", "skip"):
        raise SpecError(f"--on-refused {on_refused}; expected raise or skip", "choose one of the two")
    refusing: Literal["raise", "skip"] = "skip" if on_refused == "skip" else "raise"
    found = load_model(model, seed=seed)
    needs = verify or data is not None or spec.scale.kind == "logit" or getattr(spec.entry, "needs_example", False)
    example = example_for(found, data)[0] if needs else None
    done = init_(found.model, spec, seed=seed, example=example, verify=verify, on_refused=refusing, overwrite=overwrite)
    if out is not None:
        save(found.model, out, spec=model, seed=seed, report=done)
    if report is not None:
        replace_file(report, lambda part: part.write_text(done.to_json(), encoding="utf-8"))
    if json:
        typer.echo(done.to_json())
    else:
        typer.echo(str(done))
        if out is not None:
            typer.echo(f"weights: {out}")


def check(
    model: Model,
    report: Annotated[
        Path | None, typer.Option(help="The report of init; by default the one inside the weights.")
    ] = None,
    json: Json = False,
) -> None:
    """Say whether weights are still as `kappaone init` set them, bit for bit (exit code 1 if not)."""
    from kappaone.apply.check import check_tensors
    from kappaone.cli.models import load_model
    from kappaone.cli.weights import read_report, read_tensors
    from kappaone.layouts.blocks import parameters_by_name

    path = Path(model)
    if path.suffix == ".safetensors":
        result = check_tensors(read_tensors(path), read_report(report or path))
    elif report is not None:
        result = check_tensors(parameters_by_name(load_model(model).model), read_report(report))
    else:
        raise SpecError(
            f"{model!r} holds no report of an initialization",
            "pass weights written by kappaone init --out, or --report",
        )
    if json:
        _print_json(result.to_dict())
    else:
        typer.echo(str(result))
    if not result:
        raise typer.Exit(1)


def _print_json(data: object) -> None:
    import json as library

    typer.echo(library.dumps(data, indent=1))
