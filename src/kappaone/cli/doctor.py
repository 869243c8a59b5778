"""`kappaone doctor`: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, requires, version
from typing import Annotated, Any

import typer
from packaging.requirements import Requirement
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kappaone._version import __version__


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Check the installation (exit code 1 if something that every command needs is wrong)."""
    rows = findings()
    if json:
        import json as library

        typer.echo(
            library.dumps({"kappaone": __version__, "python": sys.version.split()[0], "findings": rows}, indent=1)
        )
    else:
        console = Console(highlight=False)
        console.print(
            f"kappaone {__version__}, Python {sys.version.split()[0]}, {platform.platform()}, {os.cpu_count()} cores",
            markup=False,
        )
        table = Table("package", "needed by", "wanted", "found", "", box=None, pad_edge=False)
        for row in rows:
            table.add_row(
                *(Text(row[key]) for key in ("package", "needed_by", "wanted", "found")), Text(row["todo"] or "ok")
            )
        console.print(table)
        for line in remarks():
            console.print(line, markup=False)
    if any(row["todo"] and row["needed_by"] == "every command" for row in rows):
        raise typer.Exit(1)


def findings() -> list[dict[str, str]]:
    """One row for each dependency: what is wanted, what is there, what to do."""
    out = []
    for line in requires("kappaone") or []:
        requirement = Requirement(line)
        extra = _extra(requirement)
        if requirement.name == "kappaone" or extra in ("dev", "all"):
            continue
        try:
            found = version(requirement.name)
        except PackageNotFoundError:
            found = "missing"
        fits = found != "missing" and requirement.specifier.contains(found, prereleases=True)
        fix = (
            f"pip install 'kappaone[{extra}]'" if extra else f"pip install '{requirement.name}{requirement.specifier}'"
        )
        out.append(
            {
                "package": requirement.name,
                "needed_by": f"[{extra}]" if extra else "every command",
                "wanted": str(requirement.specifier) or "any",
                "found": found,
                "todo": "" if fits else fix,
            }
        )
    return out


def _extra(requirement: Requirement) -> str:
    marker: Any = requirement.marker
    if marker is None:
        return ""
    text = str(marker)
    return text.partition("extra == ")[2].strip("\"' ") if "extra ==" in text else ""


def remarks() -> list[str]:
    """Broken pairs that versions alone do not show, and how torch will compute."""
    lines = []
    try:
        import torch

        device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
        lines.append(f"torch computes with {torch.get_num_threads()} threads, {device}")
    except ImportError as error:
        return [f"torch does not import: {error}; pip install --force-reinstall torch"]
    try:
        import torchvision.ops  # noqa: F401
    except ImportError:
        pass
    except RuntimeError as error:
        lines.append(f"torchvision does not fit torch ({error}): pip install --upgrade torch torchvision")
    return lines
