"""`kappaone schemes` and `kappaone layouts`: what there is to choose from, and where it would go."""

from __future__ import annotations

import inspect
import sys
from typing import Annotated

import typer

from kappaone.cli.arguments import Data, Json, Layouts, Model
from kappaone.cli.output import Terminal, print_json, rows_bar, table
from kappaone.errors import LayoutError, SpecError

COMMON = "any of them takes parts=, layers= and scale=unit|matched|matched(group=role)|logit(STD)|NUMBER|SCHEME"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command()(schemes)
    app.command()(layouts)


def schemes(
    name: Annotated[str | None, typer.Argument(help="One scheme, for its formula, source and options.")] = None,
    json: Json = False,
) -> None:
    """List the initialization schemes, or explain one."""
    from kappaone.schemes import lookup, names

    entries = [lookup(item) for item in ([name] if name else names())]
    if json:
        print_json(
            [
                {
                    "name": entry.name, "summary": entry.summary, "source": entry.source, "parts": entry.parts,
                    "about": about(entry.name),
                    "options": {
                        key: {"default": option.default, "allowed": option.allowed(), "help": option.help}
                        for key, option in entry.options.items()
                    },
                }
                for entry in entries
            ]
        )  # fmt: skip
        return
    terminal = Terminal()
    if name is None:
        rows = [[entry.name, entry.parts, entry.summary, ", ".join(entry.options) or "-"] for entry in entries]
        terminal.print(table(["scheme", "sets", "what it is", "options"], rows, keep=["scheme", "sets"]))
        terminal.say("")
        terminal.say(COMMON)
        terminal.say("kappaone schemes NAME explains one")
        return
    entry = entries[0]
    terminal.say(f"{entry.name}: {entry.summary}")
    terminal.say(f"sets {entry.parts}; source: {entry.source}")
    for line in ("", *unfolded(about(entry.name)), ""):
        terminal.say(line)
    if entry.options:
        rows = [[key, option.allowed(), str(option.default), option.help] for key, option in entry.options.items()]
        terminal.print(table(["option", "allowed", "default", "meaning"], rows, keep=["option", "default"]))
        terminal.say("")
    terminal.say(COMMON)


def about(name: str) -> str:
    """What the scheme's own file says of it: formula, readings, source.

    Examples:
        >>> about("orthogonal").splitlines()[0]
        'Orthogonal initialization (Saxe et al. 2013), joint: one orthogonal D x D matrix for each role, sliced by head.'
    """
    from kappaone.schemes import home, lookup

    lookup(name)  # imports its module
    return inspect.cleandoc(sys.modules[home(name)].__doc__ or "")


def unfolded(text: str) -> list[str]:
    r"""Lines of prose joined to paragraphs and list items, so that any terminal can fold them itself.

    Examples:
        >>> unfolded("One\ntwo.\n\n* three\n  four\n* five")
        ['One two.', '', '* three four', '* five']
    """
    out: list[str] = []
    for line in text.splitlines():
        if out and out[-1] and line.strip() and not line.startswith("* "):
            out[-1] += " " + line.strip()
        else:
            out.append(line)
    return out


def layouts(
    model: Model,
    verify: Annotated[bool, typer.Option(help="Check each layout against the model's behaviour.")] = False,
    probe: Annotated[
        bool, typer.Option(help="Propose a layout, from behaviour alone, for attention that is refused.")
    ] = False,
    data: Data = None,
    layouts: Layouts = None,
    json: Json = False,
) -> None:
    """Show where q, k, v and o live in a model, and what is refused (exit code 1 if a layout is contradicted)."""
    from kappaone.cli.layout_table import proposed, show
    from kappaone.cli.models import example_for, load_model
    from kappaone.layouts import survey
    from kappaone.layouts.find import require
    from kappaone.layouts.probe import verify as check
    from kappaone.layouts.propose import NoProposal, Proposal, propose
    from kappaone.layouts.spec_file import read_specs

    specs = None if layouts is None else read_specs(layouts)
    found = load_model(model)
    example, words = example_for(found, data)
    if (verify or probe) and example is None:
        raise SpecError(
            f"--{'verify' if verify else 'probe'} runs the model, and there is {words}",
            "pass --data, or let the function return (model, example)",
        )
    result = survey(found.model, example, layouts=specs)
    if not result.layouts and not result.refused:
        require(result, "skip", dict(found.model.named_modules()))
    report = check(found.model, result.layouts, example) if verify and result.layouts else None
    proposals: list[Proposal | NoProposal] = []
    if probe and result.refused:
        with rows_bar() as tell:
            proposals = propose(found.model, example, layouts=specs, tell=tell)
    if json:
        print_json(
            {
                "model": model,
                "layouts": [layout.to_dict() for layout in result.layouts],
                "refused": [item.to_dict() for item in result.refused],
                "outside": [item.to_dict() for item in result.outside],
                "probe": None
                if report is None
                else {
                    "ok": report.ok,
                    "rows": len(report.verdicts),
                    "wrong": [str(verdict) for verdict in report.wrong],
                    "unreached": list(report.unreached),
                },
                "proposals": [item.to_dict() for item in proposals],
            }
        )
    else:
        show(Terminal(), result, report)
        proposed(Terminal(), proposals)
    if probe and result.refused:
        if any(isinstance(item, NoProposal) for item in proposals):
            raise typer.Exit(1)
    elif not result.layouts:
        raise LayoutError(
            f"none of the {len(result.refused)} attention layers that were noticed could be described",
            "kappaone layouts MODEL --probe proposes a layout from behaviour, or write one (docs/layouts.md)",
        )
    if report is not None and not report.ok:
        raise typer.Exit(1)
