"""The table in README.md names all numbers, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROWS = re.findall(r"^\| (\d+) \|[^|]*\| ([^|]*) \|$", (HERE / "README.md").read_text(encoding="utf-8"), re.M)


def test_every_number_is_in_the_table_once():
    assert [int(number) for number, _ in ROWS] == list(range(1, 49))


def test_every_test_that_is_named_is_there():
    for number, where in ROWS:
        found = re.match(r"`([\w./]+)::(test_\w+)`", where)
        if found is None:
            assert where.startswith(("does not concern us: ", "not a test here: ")), number
            continue
        text = (HERE / found[1]).read_text(encoding="utf-8")
        start = rf"def {found[2]}_" if found[2].startswith("test_D") else rf"def {found[2]}\("
        assert re.search(start, text), (number, where)


def test_every_numbered_test_is_in_the_table():
    named = {where.partition("::")[2].strip("`")[:8] for _, where in ROWS}
    for path in HERE.glob("test_*.py"):
        for name in re.findall(r"^def (test_D\d\d)", path.read_text(encoding="utf-8"), re.M):
            assert name in named, (path.name, name)
