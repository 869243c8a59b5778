"""The documentation is true: its Python runs, its links lead somewhere, its tables name everything that there is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from kappaone.layouts.adapters import ADAPTERS
from kappaone.layouts.facts import FACTS
from kappaone.schemes import ENTRIES, lookup

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
_BLOCK = re.compile(r"(?P<before>[^\n]*)\n```python(?P<mark>[^\n]*)\n(?P<code>.*?)^```", re.S | re.M)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_python_blocks_run_one_after_the_other(page, tmp_path, monkeypatch):
    text = page.read_text(encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    module = ModuleType("__page__")
    monkeypatch.setitem(sys.modules, "__page__", module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for block in _BLOCK.finditer(text):
            mark = block["mark"].strip()
            assert mark in ("", "no-run"), f"{_name(page)}: a block is marked {mark!r}"
            if mark == "no-run":
                assert block["before"].strip(), f"{_name(page)}: the line before a no-run block says why"
                continue
            line = text.count("\n", 0, block.start("code"))
            code = compile("\n" * line + block["code"], str(page), "exec")
            exec(code, module.__dict__)  # noqa: S102


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_somewhere(page):
    for link in _LINK.finditer(page.read_text(encoding="utf-8")):
        target, _, anchor = link["target"].partition("#")
        if target.startswith(("https://", "http://", "mailto:")):
            continue
        place = (page.parent / target) if target else page
        assert place.exists(), f"{_name(page)} links to {target}, which is not there"
        if anchor:
            heads = re.findall(r"^#+ (.*)$", place.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w -]", "", head).lower().replace(" ", "-") for head in heads]


def _rows(page: str) -> dict[str, str]:
    """Lines of tables by the first name in backticks."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return {found[1]: found[0] for found in re.finditer(r"^\| `([^`]+)` \|.*$", text, re.M)}


def test_the_table_of_schemes_is_the_registry():
    rows = _rows("schemes.md")
    assert set(ENTRIES) <= set(rows)
    for name in ENTRIES:
        for option in lookup(name).options:
            assert re.search(rf"\b{option}\b", rows[name]), f"docs/schemes.md, {name}: option {option} is missing"
        for role in lookup(name).parts:
            assert role in rows[name].split("|")[4], f"docs/schemes.md, {name}: role {role} is missing"
    assert not {name for name in rows if name not in ENTRIES} - {"unit", "matched", "logit(STD)"}


def test_the_table_of_adapters_is_the_registry():
    assert {name for name in _rows("layouts.md") if "." in name} == {adapter.name for adapter in ADAPTERS}


def test_the_import_contract_is_the_one_that_is_checked():
    import tomllib

    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    assert "\n".join(contract["layers"]) in (ROOT / "docs" / "house.md").read_text()


def test_the_table_of_facts_is_the_vocabulary():
    text = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    for name, fact in FACTS.items():
        row = "| `" + name + "` | " + fact.meaning.replace("|", "\\|") + " |"
        assert row in text, f"docs/layouts.md: fact {name}"
