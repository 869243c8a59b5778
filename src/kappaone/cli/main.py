"""The command `kappaone`: commands are thin, errors are two lines, exit code 2; `--debug` shows the traceback."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import click
import typer

from kappaone._version import __version__
from kappaone.cli import compare, doctor, initialise, measure
from kappaone.errors import KappaoneError

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


for group in (initialise, measure, compare, doctor):
    group.register(app)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        arguments: instead of those of the process.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [item for item in given if item != "--debug"]
    try:
        code = app(given, prog_name="kappaone", standalone_mode=False)
    except KappaoneError as error:
        if debug:
            raise
        _complain(error.what, error.todo)
        sys.exit(2)
    except click.exceptions.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.exceptions.Abort):
        _complain("interrupted", "the same command goes on where this one stopped, if it keeps results")
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of our output is gone; there is nobody to complain to
        sys.exit(141)
    except OSError as error:
        if debug:
            raise
        _complain(f"{error.filename or 'a file'}: {error.strerror or error}", "check the path and its permissions")
        sys.exit(2)
    except Exception as error:
        if debug:
            raise
        _complain(f"unexpected {type(error).__name__}: {error}", "run it again with --debug and report the traceback")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain(what: str, todo: str) -> None:
    """One line what, one line what to do (a list inside the first keeps its own lines)."""
    print(f"error: {what}", file=sys.stderr)
    if todo:
        print(f"what to do: {todo}", file=sys.stderr)


if __name__ == "__main__":
    main()
