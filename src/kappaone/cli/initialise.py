"""`kappaone init` and `kappaone check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kappaone.cli.arguments import Data as Data
from kappaone.cli.arguments import Json as Json
from kappaone.cli.arguments import Layouts, Scheme, writable
from kappaone.cli.arguments import Model as Model
from kappaone.cli.output import print_json, say
from kappaone.errors import SpecError, WriteError


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("init")(init)
    app.command()(check)


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
    layouts: Layouts = None,
    json: Json = False,
) -> None:
    """Initialise a model's attention and write it as safetensors."""
    from kappaone.apply import init_
    from kappaone.cli.models import example_for, load_model
    from kappaone.cli.weights import replace_file, save
    from kappaone.layouts.spec_file import read_specs
    from kappaone.schemes import understand

    specs = None if layouts is None else read_specs(layouts)
    spec = understand(scheme)  # a wrong scheme is said before a large model is built
    if on_refused not in ("raise", "skip"):
        raise SpecError(f"--on-refused {on_refused}; expected raise or skip", "choose one of the two")
    refusing: Literal["raise", "skip"] = "skip" if on_refused == "skip" else "raise"
    writable("--out", out, ".safetensors")
    writable("--report", report)
    found = load_model(model, seed=seed)
    if found.loaded and not overwrite:
        raise WriteError(
            f"the weights of {model} were loaded from a file", "pass --overwrite to replace their attention"
        )
    needs = verify or data is not None or spec.scale.kind == "logit" or getattr(spec.entry, "needs_example", False)
    example = example_for(found, data)[0] if needs else None
    done = init_(
        found.model,
        spec,
        seed=seed,
        layouts=specs,
        example=example,
        verify=verify,
        on_refused=refusing,
        overwrite=overwrite,
    )
    if out is not None:
        save(found.model, out, spec=found.origin, seed=found.seed, report=done)
    if report is not None:
        replace_file(report, lambda part: part.write_text(done.to_json(), encoding="utf-8"))
    if json:
        say(done.to_json())
    else:
        say(str(done))
        if out is not None:
            say(f"weights: {out}")
        else:
            say("nothing was written; --out FILE.safetensors keeps the weights")


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
        print_json(result.to_dict())
    else:
        say(str(result))
    if not result:
        raise typer.Exit(1)
