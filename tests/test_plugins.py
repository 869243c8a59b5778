"""Packages of others, as installed: entry points in metadata on the path, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

SCHEME = '''
"""Signs: every entry is 1 / sqrt(D) or its negative, at random."""
import numpy as np
from kappaone.schemes.base import Scheme, per_head

def make(layer, stream):
    def block(role, shape, head):
        return np.sign(stream.normal((shape.size, shape.width), role, head)) / shape.width**0.5
    return per_head(layer, "qkv", block)

SCHEME = Scheme(name="signs", summary="random signs", source="an example", make=make, options={})
OTHER = Scheme(name="conditioned", summary="ours?", source="an example", make=make, options={})
'''
LIBRARY = """
import torch
from torch import nn

class Attend(nn.Module):
    def __init__(self, width=16, heads=4):
        super().__init__()
        self.count, self.w_in, self.w_out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
    def forward(self, x):
        v, q, k = self.w_in(x).unflatten(-1, (3, self.count, -1)).permute(2, 0, 3, 1, 4)
        p = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.w_out(p.transpose(1, 2).flatten(2))
"""
ADAPTER = """
from kappaone.layouts.adapters import Adapter
from kappaone.layouts.adapters.shared import fused_rows
from kappaone.layouts import AttentionLayout

def describe(site):
    if site.children() != {"w_in", "w_out"} or not isinstance(site.attribute("count"), int):
        return None
    heads, w_in, out = site.attribute("count"), site.projection("w_in"), site.projection("w_out")
    rows = fused_rows(w_in, "v q k", heads=heads, size=out.inputs // heads)
    if rows is None:
        return None
    return AttentionLayout(site.name, type(site.module).__name__, "their.attend", rows["q"], rows["k"], rows["v"],
                           out.columns(heads), scale=rows["q"].size ** -0.5)

ADAPTER = Adapter("their.attend", "their_models", describe)
"""


def install(folder, entries: str) -> None:
    for name, text in (("their_schemes", SCHEME), ("their_models", LIBRARY), ("their_layouts", ADAPTER)):
        (folder / f"{name}.py").write_text(text)
    info = folder / "theirs-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(textwrap.dedent(entries))


def python(folder, code: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


ENTRIES = """
    [kappaone.schemes]
    signs = their_schemes:SCHEME
    [kappaone.adapters]
    their_models = their_layouts:ADAPTER
"""


def test_a_package_brings_a_scheme_and_an_adapter_that_pass_the_suite(tmp_path):
    install(tmp_path, ENTRIES)
    done = python(
        tmp_path,
        """
        import sys
        import torch
        from torch import nn
        import kappaone
        from kappaone.layouts import survey
        survey(nn.TransformerEncoderLayer(8, 2))
        assert "their_layouts" not in sys.modules  # their library is not loaded
        import their_models
        from kappaone.testing import ModelCase, check_layout, check_scheme
        case = ModelCase("theirs", lambda: nn.Sequential(their_models.Attend(), their_models.Attend()),
                         lambda: torch.randn(2, 5, 16), layers=2, heads=4, source="their.attend")
        check_layout(case)
        for dtype in (torch.float32, torch.bfloat16):
            check_scheme("signs", case, dtype)
            check_scheme("conditioned(scale=signs)", case, dtype)
        from kappaone.cli.main import main
        main(["schemes", "signs"])
        """,
    )
    assert done.returncode == 0, done.stderr
    assert "Signs: every entry is 1 / sqrt(D)" in done.stdout


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        ("[kappaone.schemes]\nsigns = their_schemes:NONE", "'signs' of theirs 1.2 cannot be loaded: AttributeError"),
        ("[kappaone.schemes]\nsigns = their_schemes:make", "'signs' of theirs 1.2 is function; expected Scheme or Procedure"),
        ("[kappaone.schemes]\nsings = their_schemes:SCHEME", "calls itself 'signs'"),
        ("[kappaone.schemes]\nconditioned = their_schemes:OTHER", "which is a name of ours"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_package_is_said_with_its_name(tmp_path, entries, what):
    install(tmp_path, entries)
    done = python(tmp_path, "from kappaone.cli.main import main; main(['schemes'])")
    assert done.returncode == 2
    assert what in done.stderr
