"""`kappaone doctor`: what is installed, what is missing, and the command that mends it."""

from __future__ import annotations

import multiprocessing
import os
import platform
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import typer
from packaging.requirements import Requirement

from kappaone._version import __version__
from kappaone.cli.arguments import Json
from kappaone.cli.output import Terminal, print_json, table
from kappaone.errors import KappaoneError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(doctor)


def doctor(json: Json = False) -> None:
    """Check the installation (exit code 1 if something that every command needs is wrong)."""
    rows, tried = packages(), [check() for check in CHECKS]
    if json:
        print_json(
            {
                "kappaone": __version__,
                "python": sys.version.split()[0],
                "platform": platform.platform(),
                "cores": os.cpu_count(),
                "packages": rows,
                "checks": tried,
            }
        )
    else:
        terminal = Terminal()
        terminal.say(
            f"kappaone {__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, {platform.platform()}"
        )
        terminal.say("")
        cells = [[row["package"], row["needed_by"], row["wanted"], row["found"], row["todo"] or "ok"] for row in rows]
        terminal.print(
            table(["package", "needed by", "wanted", "found", "what to do"], cells, keep=["package", "found"])
        )
        terminal.say("")
        cells = [[row["check"], row["found"], row["todo"] or "ok"] for row in tried]
        terminal.print(table(["check", "found", "what to do"], cells))
    if any(row["todo"] and row["needed_by"] == "every command" for row in [*rows, *tried]):
        raise typer.Exit(1)


def packages() -> list[dict[str, str]]:
    """One row for each dependency: what is wanted, what is there, what to do."""
    try:
        wanted = requires("kappaone") or []
    except PackageNotFoundError:
        return [_row("kappaone", "every command", "any", "not installed", "pip install kappaone")]
    out = []
    for line in wanted:
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
        used = f"[{extra}]" if extra else "every command"
        out.append(_row(requirement.name, used, str(requirement.specifier) or "any", found, "" if fits else fix))
    return out


def _row(package: str, needed_by: str, wanted: str, found: str, todo: str) -> dict[str, str]:
    return {"package": package, "needed_by": needed_by, "wanted": wanted, "found": found, "todo": todo}


def _extra(requirement: Requirement) -> str:
    marker: Any = requirement.marker
    if marker is None:
        return ""
    text = str(marker)
    return text.partition("extra == ")[2].strip("\"' ") if "extra ==" in text else ""


def _check(name: str, needed_by: str, found: str, todo: str = "") -> dict[str, str]:
    return {"check": name, "needed_by": needed_by, "found": found, "todo": todo}


def _torch() -> dict[str, str]:
    """Versions alone do not show a torch that does not load, or one built for another numpy."""
    try:
        import torch

        torch.from_numpy(torch.eye(2).numpy())
    except (ImportError, OSError, RuntimeError) as error:
        return _check("torch", "every command", str(error), "pip install --force-reinstall torch numpy")
    device = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU"
    return _check("torch", "every command", f"loads, {torch.get_num_threads()} threads, {device}")


def _torchvision() -> dict[str, str]:
    """A torchvision built for another torch loads its operators not at all."""
    try:
        import torchvision.ops  # noqa: F401
    except ImportError:
        return _check("torchvision", "[train]", "missing", "pip install 'kappaone[train]'")
    except (RuntimeError, OSError) as error:
        return _check("torchvision", "[train]", str(error), "pip install --upgrade torch torchvision")
    return _check("torchvision", "[train]", "fits torch")


def _weights() -> dict[str, str]:
    """Weights are written beside their place and moved there, which some file systems do not allow."""
    try:
        with tempfile.TemporaryDirectory(dir=".") as folder:
            target = Path(folder) / "x"
            target.write_bytes(b"a")
            (Path(folder) / "y").write_bytes(b"b")
            (Path(folder) / "y").replace(target)
    except OSError as error:
        return _check("this folder", "writing here", str(error), "work in a folder that you may write to")
    return _check("this folder", "writing here", "can be written")


def _images() -> dict[str, str]:
    """The images that `kappaone compare images` would train on."""
    try:
        from kappaone.recipes import find_images

        name, place = find_images("auto")
    except KappaoneError as error:
        return _check("images to compare on", "[train]", error.what, error.todo)
    except ImportError as error:
        return _check("images to compare on", "[train]", str(error), "pip install 'kappaone[train]'")
    return _check("images to compare on", "[train]", f"{name} ({place})")


def _workers() -> dict[str, str]:
    """Runs of a study are forked from a process that has torch loaded, where the system can do that."""
    methods = multiprocessing.get_all_start_methods()
    return _check("how runs start", "[study]", "forkserver" if "forkserver" in methods else "spawn (slower to start)")


CHECKS: tuple[Callable[[], dict[str, str]], ...] = (_torch, _torchvision, _weights, _images, _workers)
