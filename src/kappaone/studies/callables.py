"""Find the function that a runner names: "package.module:function" or "path/to/file.py:function"."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kappaone.errors import StudyError

RunFunction = Callable[[dict[str, Any], Callable[[dict[str, Any]], None]], "dict[str, float] | None"]


def split_name(name: str) -> tuple[str, str]:
    """The module or file, and the function.

    Examples:
        >>> split_name("recipes/mine.py:run"), split_name("package.module:run")
        (('recipes/mine.py', 'run'), ('package.module', 'run'))
    """
    module, _, function = name.rpartition(":")
    return module, function


def check_name(name: str) -> None:
    """Refuse early, in the study's own process, what cannot be found; imports nothing.

    Raises:
        StudyError: the file or the top-level package does not exist.
    """
    module, _ = split_name(name)
    if module.endswith(".py"):
        if not Path(module).is_file():
            raise StudyError(f"{name!r}: there is no file {Path(module).absolute()}", "correct the path")
        return
    top = module.split(".")[0]
    if top not in sys.modules and importlib.util.find_spec(top) is None:
        raise StudyError(
            f"{name!r}: no package {top!r} can be imported", "install it, or name a file as file.py:function"
        )


def load(name: str) -> RunFunction:
    """Import the module or file and return the function. Called in a run's own process.

    A file's folder goes to the front of `sys.path`, as it does for a script.

    Raises:
        StudyError: there is no such file or function, or it cannot be called.
    """
    module_name, function_name = split_name(name)
    if module_name.endswith(".py"):
        path = Path(module_name).resolve()
        # a name of its own: it must not shadow an installed module called like the file
        unique = f"_kappaone_run_{path.stem}"
        spec = importlib.util.spec_from_file_location(unique, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise StudyError(f"{name!r}: there is no Python file {path}", "correct the path")
        sys.path.insert(0, str(path.parent))
        module = importlib.util.module_from_spec(spec)
        sys.modules[unique] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        raise StudyError(
            f"{name!r}: {module_name} has no function {function_name!r}",
            "define run(spec, emit) there, or correct the name",
        )
    found: RunFunction = function
    return found
