"""Schemes, procedures and adapters that other packages bring, by Python's entry points.

    [project.entry-points."kappaone.schemes"]
    signs = "my_package.signs:SCHEME"

    [project.entry-points."kappaone.adapters"]
    my_models = "my_package.layouts:ADAPTER"

The groups are kappaone.schemes, kappaone.procedures and kappaone.adapters. An adapter's entry point is called after the
library whose models it describes, "my_models" or "my_models.windows": it is loaded only where that library is. Only what
is asked for is imported.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from kappaone.errors import SpecError

Group = Literal["kappaone.schemes", "kappaone.procedures", "kappaone.adapters"]


@cache
def found(group: Group) -> dict[str, EntryPoint]:
    """The entry points of a group by name, of all installed packages.

    Raises:
        SpecError: if two packages use one name.
    """
    out: dict[str, EntryPoint] = {}
    for point in entry_points(group=group):
        other = out.setdefault(point.name, point)
        if other.value != point.value:
            raise SpecError(
                f"{_package(other)} and {_package(point)} both bring {point.name!r} in {group}",
                "uninstall one of the two",
            )
    return out


def load(point: EntryPoint, kinds: tuple[type, ...]) -> Any:
    """What an entry point names.

    Args:
        point: the entry point.
        kinds: what it may be.

    Raises:
        SpecError: if it cannot be imported or is something else; the message names the package.
    """
    try:
        value = point.load()
    except Exception as error:  # another package's code: which errors it knows is its own affair
        raise SpecError(
            f"{point.name!r} of {_package(point)} cannot be loaded: {type(error).__name__}: {error}",
            "mend or uninstall that package",
        ) from error
    if not isinstance(value, kinds):
        raise SpecError(
            f"{point.name!r} of {_package(point)} is {type(value).__name__}; expected {' or '.join(k.__name__ for k in kinds)}",
            "mend the entry point of that package",
        )
    return value


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.module
