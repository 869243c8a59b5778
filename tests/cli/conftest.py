"""The command line as its users meet it: in this process where that is enough, in its own where it matters."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kappaone.cli.main import main

MODEL_FILE = '''
import torch
from torch import nn

from sizes import WIDTH


class Mix(nn.Module):
    """Attention by hand that no adapter knows, with a declaration."""

    def __init__(self):
        super().__init__()
        from kappaone import AttentionSpec

        self.wires = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.kappaone_attention = AttentionSpec(heads=2, fused="wires", order="head(q k v)", o="out")

    def forward(self, x):
        n, m, _ = x.shape
        q, k, v = self.wires(x).reshape(n, m, 2, 3, WIDTH // 2).permute(3, 0, 2, 1, 4)
        mixed = (q @ k.mT * (WIDTH // 2) ** -0.5).softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).reshape(n, m, WIDTH))


def build():
    return nn.Sequential(Mix(), Mix())


def torch_encoder():
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 16, batch_first=True), 2)


def undeclared():
    model = build()
    for mix in model:
        del mix.kappaone_attention
    return model


def number():
    return 7


def broken():
    raise RuntimeError("this builder is broken\\nsecond line")
'''


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    def refused(self) -> list[str]:
        """The two lines of an error on stderr; nothing on stdout, no traceback."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert self.out == ""
        lines = [line for line in self.err.splitlines() if not line.startswith("warning: ")]
        assert lines[0].startswith("error: ")
        assert lines[-1].startswith("what to do: ")
        assert "Traceback" not in self.err
        return lines


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A working directory with a model file and a module beside it; 80 columns."""
    (tmp_path / "model.py").write_text(MODEL_FILE)
    (tmp_path / "sizes.py").write_text("WIDTH = 8\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "sizes", raising=False)
    return tmp_path


@pytest.fixture
def command(folder, capsys):
    """Run a command in this process."""

    def run(*arguments: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        return Answer(int(left.value.code or 0), out, err)

    return run


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "80", "PYTHONWARNINGS": "default"}


def spawn(arguments: list[str], where: Path, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "kappaone.cli.main", *arguments],
        cwd=where,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **options,
    )


@pytest.fixture
def process(folder):
    """Run a command in a process of its own."""

    def run(*arguments: str) -> Answer:
        child = spawn(list(arguments), folder)
        out, err = child.communicate(timeout=300)
        return Answer(child.returncode, out, err)

    return run
