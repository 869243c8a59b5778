"""CONTRIBUTING's promise, counted: a scheme or an adapter is one new file and a line in three others."""

from __future__ import annotations

import filecmp
import os
import re
import shutil
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ADAPTER = '''"""An adapter for the tests' own attention."""

from kappaone.layouts.layout import AttentionLayout


def describe(site):
    """The layout of a `Throwaway`, or None."""
    if site.children() != {"throw", "away"}:
        return None
    fused, out = site.projection("throw"), site.projection("away")
    size = out.inputs // 2
    return AttentionLayout(
        name=site.name, kind="", source="throwaway.fused",
        q=fused.rows((size, 4 * size), size), k=fused.rows((0, 3 * size), size), v=fused.rows((2 * size, 5 * size), size),
        o=out.columns(2), scale=size**-0.5,
    )
'''
CASE = """    ModelCase("throwaway", lambda: __import__("throwaway_model").model(), lambda: torch.randn(2, 5, 8), layers=1, heads=2, source="throwaway.fused"),
"""
MODEL = """from torch import nn


class Throwaway(nn.Module):
    def __init__(self):
        super().__init__()
        self.throw, self.away = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        k, q, v = self.throw(x).reshape(*x.shape[:2], 2, 3, 4).permute(3, 0, 2, 1, 4)
        return self.away(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).reshape(x.shape))


def model():
    return nn.Sequential(Throwaway())
"""


@pytest.fixture
def copy(tmp_path):
    """What a contributor edits, in a copy."""
    place = tmp_path / "kappaone"
    for name in ("src", "tests/conformance", "tests/docs", "tests/layouts", "docs"):
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "tests/__init__.py"):
        shutil.copy(ROOT / name, place / name)
    return place


def _insert(path: Path, after: str, line: str) -> None:
    text = path.read_text()
    assert text.count(after) == 1, (path, after)
    path.write_text(text.replace(after, after + line))


def _changes(copy: Path) -> dict[str, int]:
    """Lines added to each file that differs, new files included; the number for a new file is 0."""
    out = {}
    for path in sorted(copy.rglob("*")):
        old = ROOT / path.relative_to(copy)
        if path.is_dir() or "__pycache__" in path.parts or (old.exists() and filecmp.cmp(path, old, shallow=False)):
            continue
        before = old.read_text().splitlines() if old.exists() else []
        diff = list(unified_diff(before, path.read_text().splitlines(), n=0))[2:]
        out[str(path.relative_to(copy))] = sum(line.startswith("+") for line in diff) if old.exists() else 0
    return out


def _test(copy: Path, choice: str) -> str:
    path = os.pathsep.join([str(copy / "src"), str(copy), str(copy.parent)])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/conformance", "tests/docs/test_blocks.py", "-k", choice],
        cwd=copy, env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    return done.stdout


def test_a_scheme_is_one_file_and_three_lines(copy):
    block = re.search(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.S)
    (copy / "src/kappaone/schemes/signs.py").write_text(block[1])
    _insert(
        copy / "src/kappaone/schemes/registry.py",
        "ENTRIES: dict[str, str] = {\n",
        '    "signs": "kappaone.schemes.signs:SCHEME",\n',
    )
    table = next(
        line for line in (ROOT / "docs/schemes.md").read_text().splitlines(True) if line.startswith("| `fan_in`")
    )
    _insert(copy / "docs/schemes.md", table, "| `signs` | random signs | `gain=1` | q k v | an example |\n")
    _insert(copy / "tests/conformance/rows.py", "SCHEMES = [\n", '    "signs",\n')
    assert _changes(copy) == {
        "docs/schemes.md": 1,
        "src/kappaone/schemes/registry.py": 1,
        "src/kappaone/schemes/signs.py": 0,
        "tests/conformance/rows.py": 1,
    }
    out = _test(copy, "(signs and (DeiT or torch) and not mimetic and not decoder) or registry")
    assert int(re.search(r"(\d+) passed", out)[1]) > 10


def test_an_adapter_is_one_file_and_its_lines(copy):
    (copy.parent / "throwaway_model.py").write_text(MODEL)
    (copy / "src/kappaone/layouts/adapters/throwaway.py").write_text(ADAPTER)
    registry = copy / "src/kappaone/layouts/adapters/__init__.py"
    _insert(
        registry,
        "ADAPTERS: tuple[Adapter, ...] = (\n",
        '    Adapter("throwaway.fused", "throwaway_model", throwaway.describe),\n',
    )
    _insert(registry, "from dataclasses import dataclass\n", "from kappaone.layouts.adapters import throwaway\n")
    table = next(
        line for line in (ROOT / "docs/layouts.md").read_text().splitlines(True) if line.startswith("| `timm.vit`")
    )
    _insert(copy / "docs/layouts.md", table, "| `throwaway.fused` | a test's | rows (k q v) by head |\n")
    _insert(copy / "tests/conformance/rows.py", "MODELS = [\n", CASE)
    assert _changes(copy) == {
        "docs/layouts.md": 1,
        "src/kappaone/layouts/adapters/__init__.py": 2,
        "src/kappaone/layouts/adapters/throwaway.py": 0,
        "tests/conformance/rows.py": 1,
    }
    out = _test(copy, "(throwaway and (test_layout or conditioned) and not float16) or (registry and adapters)")
    assert int(re.search(r"(\d+) passed", out)[1]) > 4
