"""The command `kappaone`: commands are thin, errors are two lines, exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated, Any, NoReturn

import typer

from kappaone._version import __version__
from kappaone.cli import catalogue, compare, coverage, doctor, initialise, measure
from kappaone.errors import KappaoneError, KappaoneWarning

_INTERRUPTED = 130
# What typer raises for wrong usage: click's own class, or that of the click inside typer, depending on its release.
_USAGE: type[Any] = next(base for base in typer.BadParameter.__mro__ if base.__name__ == "UsageError")

app = typer.Typer(
    name="kappaone",
    help="Start the attention layers of any Transformer well, measure what that does, and prove whether it helped.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog="Add --debug anywhere for tracebacks.",
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"kappaone {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Nothing of its own: the options are handled by their callbacks."""


for group in (catalogue, initialise, measure, compare, coverage, doctor):
    group.register(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: instead of those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [item for item in given if item != "--debug"]
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        sys.exit(_run(given, debug))


def _run(given: list[str], debug: bool) -> int:
    """The exit code of one command; with `debug`, errors pass through with their traceback."""
    try:
        code = app(given or ["--help"], prog_name="kappaone", standalone_mode=False)
        sys.stdout.flush()  # here, where a reader that is gone can still be noticed
        if code == _INTERRUPTED:  # newer typers turn Ctrl-C into this code, older ones into Abort
            raise KeyboardInterrupt
    except (KeyboardInterrupt, typer.Abort):
        _complain(
            "interrupted", "nothing is half written; kappaone compare goes on where it stopped when it is called again"
        )
        return _INTERRUPTED
    except BrokenPipeError:
        # Nobody reads on, and Python's own flush at exit must not complain about that.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        if isinstance(error, _USAGE):
            command = error.ctx.command_path if error.ctx is not None else "kappaone"
            _complain(error.format_message(), f"see {command} --help")
            return 2
        if debug:
            raise
        if isinstance(error, KappaoneError):
            _complain(error.what, error.todo)
            return 2
        if isinstance(error, OSError):
            place = f"{error.filename}: " if error.filename else ""
            _complain(f"{place}{error.strerror or error}", "check the path and its permissions")
            return 2
        _complain(f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report the traceback")
        return 1
    return code if isinstance(code, int) else 0


def _warn(message: Warning | str, category: type[Warning], filename: str, lineno: int, *_: Any, **__: Any) -> None:
    """Our own warnings in one line, on stderr; those of other libraries with their place."""
    if issubclass(category, KappaoneWarning):
        print(f"warning: {message}", file=sys.stderr)
    else:
        print(warnings.formatwarning(message, category, filename, lineno), end="", file=sys.stderr)


def _complain(what: str, todo: str) -> None:
    """One line what, one line what to do (a list inside the first keeps its own lines)."""
    print(f"error: {what}", file=sys.stderr)
    if todo:
        print(f"what to do: {todo}", file=sys.stderr)


if __name__ == "__main__":
    main()
