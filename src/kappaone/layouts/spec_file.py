"""Layout specs in a TOML file, for the command line.

[[layout]]
match = "blocks.*.mix"
heads = 12
fused = "to_qkv"
order = "head(q k v)"
o = "to_out"
"""

from __future__ import annotations

import tomllib
from dataclasses import fields
from pathlib import Path

from kappaone.errors import SpecError
from kappaone.layouts.spec import AttentionSpec


def read_specs(path: Path) -> list[AttentionSpec]:
    """The specs of a file, one for each `[[layout]]` table.

    Raises:
        SpecError: if the file cannot be read, or a table is no spec; the message names the table.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SpecError(f"{str(path)!r}: {error.strerror}", "pass the name of a TOML file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SpecError(
            f"{str(path)!r} is no TOML file: {error}", "correct it; kappaone layouts MODEL --probe writes one"
        ) from error
    tables = data.get("layout")
    if set(data) - {"layout"} or not isinstance(tables, list) or not tables:
        raise SpecError(
            f"{str(path)!r} holds {', '.join(map(repr, data)) or 'nothing'}; expected one [[layout]] table or more",
            "write [[layout]], then match = ..., heads = ...",
        )
    known = [item.name for item in fields(AttentionSpec)]
    specs = []
    for number, table in enumerate(tables, 1):
        where = f"{str(path)!r}, layout {number}"
        if not isinstance(table, dict) or set(table) - set(known):
            unknown = sorted(set(table) - set(known)) if isinstance(table, dict) else [str(table)]
            raise SpecError(f"{where}: unknown {', '.join(unknown)}; there are {', '.join(known)}", "correct the file")
        try:
            specs.append(AttentionSpec(**table))
        except (SpecError, TypeError) as error:
            what, todo = (error.what, error.todo) if isinstance(error, SpecError) else (str(error), "correct the file")
            raise SpecError(f"{where}: {what}", todo) from error
    return specs
