"""`kappaone coverage`: what it prints, what it writes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from kappaone.coverage import cover, workers
from tests.cli.conftest import environment
from tests.coverage import zoo_of_toys as toys
from tests.coverage.test_cover import in_process


@pytest.fixture
def toy_run(command, monkeypatch):
    """`coverage timm` on the zoo of toys, in this process."""
    monkeypatch.setattr(workers, "zoo", lambda library: toys)
    monkeypatch.setattr(cover, "work", in_process)
    return lambda *words: command("coverage", "timm", *words)


def test_all_architectures_with_their_reasons_and_the_totals(toy_run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    answer = toy_run("--probe")
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    shown = {line.split()[0]: line for line in lines if line.split() and line.split()[0] in toys.names()}
    assert list(shown) == toys.names()
    assert "its builder raises" in shown["broken"]
    assert "Shuffled: has to_q and to_k (1 layers)" in shown["mixed"]
    assert "by kind: encoder_small" in shown["encoder_large"]
    assert "timm: 7 architectures: 3 handled, 2 refused, 0 outside, 1 no attention, 1 error" in lines
    assert "timm: handled: 60.0 % of architectures with softmax attention, 60.0 % of those with any attention" in lines
    assert lines[-1].startswith(
        "timm: probe: 2 of 3 distinct kinds of attention confirmed, 0 contradicted, 1 could not"
    )
    assert "surveyed 7 of 7" in answer.err


def test_globs_summary_and_a_page(toy_run, folder):
    answer = toy_run("encoder_*", "--summary", "--markdown", "page.md")
    assert answer.code == 0, answer.err
    assert answer.out.startswith("timm: 2 architectures: 2 handled, ")
    assert "not probed" in answer.out
    page = (folder / "page.md").read_text()
    assert "Made by `kappaone coverage timm 'encoder_*' --markdown page.md`" in page
    assert "| encoder_large | handled | 6 | MultiheadAttention | - |  |" in page


def test_json_alone_on_stdout_and_nothing_on_stderr(toy_run):
    answer = toy_run("encoder_small", "mixed", "--json")
    data = json.loads(answer.out)
    assert answer.err == ""
    assert [row["status"] for row in data["rows"]] == ["handled", "refused"]
    assert data["totals"]["handled_percent"] == 50.0


def test_what_was_done_is_printed_after_ctrl_c(toy_run, monkeypatch):
    def interrupted(*words, **options):
        for i, answer in enumerate(in_process(*words, **options)):
            if i == 2:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(cover, "work", interrupted)
    answer = toy_run("--markdown", "page.md")
    assert answer.code == 130
    assert "2 of 7 architectures were looked at" in answer.out
    assert "error: interrupted" in answer.err
    assert "page:" not in answer.out


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["keras"], "coverage of 'keras'; expected timm or transformers"),
        (["timm", "--markdown", "page.txt"], "does not end in .md"),
        (["timm", "--jobs", "0"], "Invalid value"),
    ],
)
def test_what_cannot_be_done_is_said_at_once(command, words, what):
    assert what in command("coverage", *words).refused()[0]


def test_a_name_that_fits_nothing_is_an_error(toy_run):
    assert "no architecture 'encoder_huge', 'x*'" in toy_run("encoder_small", "encoder_huge", "x*").refused()[0]


def test_help_and_wrong_usage_import_neither_torch_nor_the_libraries(folder):
    code = (
        "import sys\nfrom kappaone.cli.main import main\n"
        "for words in (['coverage', '--help'], ['coverage', 'keras']):\n"
        "    try: main(words)\n"
        "    except SystemExit: pass\n"
        "print('HEAVY', sorted({'torch', 'timm', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, cwd=folder)
    assert done.stdout.endswith("HEAVY []\n"), done.stdout + done.stderr


@pytest.mark.slow
def test_real_architectures_in_real_processes(process):
    pytest.importorskip("timm")
    answer = process(
        "coverage", "timm", "vit_tiny_patch16_224", "deit_tiny_patch16_224", "resnet18", "--probe", "--json"
    )
    assert answer.code == 0, answer.err
    rows = {row["name"]: row for row in json.loads(answer.out)["rows"]}
    assert rows["resnet18"]["status"] == "no attention"
    assert all(rows[name]["confirmed"] is True for name in ("vit_tiny_patch16_224", "deit_tiny_patch16_224"))
    assert rows["vit_tiny_patch16_224"]["note"] == "by kind: deit_tiny_patch16_224"
