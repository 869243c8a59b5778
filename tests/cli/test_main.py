"""Exit codes, streams, signals and pipes, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import warnings

import pytest

from kappaone.cli import main as main_module
from kappaone.errors import KappaoneWarning, SpecError
from tests.cli.conftest import environment, spawn

COMMANDS = ["schemes", "layouts", "init", "check", "inspect", "compare", "coverage", "doctor"]


def test_help_lists_every_command_and_imports_no_torch(folder):
    code = (
        "import sys\nfrom kappaone.cli.main import main\n"
        "for words in ([], ['--help'], ['--version'], ['schemes'], ['schemes', 'unit_logits'], ['schemes', '--json'],"
        " ['doctor', '--help'], ['compare', '--help'], ['init', '--help']):\n"
        "    try: main(words)\n"
        "    except SystemExit as left: assert not left.code, (words, left.code)\n"
        "heavy = {'torch', 'timm', 'transformers', 'plotly', 'scipy', 'statsmodels'} & set(sys.modules)\n"
        "print('HEAVY', sorted(heavy))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("HEAVY []\n")
    for name in COMMANDS:
        assert f"│ {name} " in done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(command, name):
    answer = command(name, "--help")
    assert answer.code == 0
    assert "Usage: kappaone" in answer.out


def test_an_error_is_two_lines_on_stderr_and_debug_shows_the_traceback(process):
    words = process("schemes", "conditoned").refused()
    assert len(words) == 2
    assert "conditioned, default" in words[0]
    assert words[1] == "what to do: did you mean conditioned?"
    answer = process("schemes", "conditoned", "--debug")
    assert answer.code == 1
    assert "Traceback" in answer.err
    assert "SpecError" in answer.err


@pytest.mark.parametrize(
    ("words", "what", "todo"),
    [
        (["nope"], "No such command", "kappaone --help"),
        (["schemes", "--nope"], "No such option", "kappaone schemes --help"),
        (["init"], "Missing argument", "kappaone init --help"),
        (["init", "a", "--seed", "x"], "Invalid value", "kappaone init --help"),
        (["layouts", "a", "b"], "unexpected extra argument", "kappaone layouts --help"),
    ],
)
def test_wrong_usage_reads_like_every_other_error(command, words, what, todo):
    first, last = command(*words).refused()
    assert what in first
    assert todo in last


def test_an_error_of_our_own_says_to_report_it(command, monkeypatch):
    monkeypatch.setattr(main_module, "app", lambda *_, **__: 1 / 0)
    answer = command("schemes")
    assert (answer.code, answer.out) == (1, "")
    assert answer.err.splitlines()[0] == "error: unexpected ZeroDivisionError: division by zero"
    with pytest.raises(ZeroDivisionError):
        main_module.main(["schemes", "--debug"])


def test_warnings_of_ours_are_one_line_on_stderr(command, monkeypatch):
    def warned(*_, **__):
        warnings.simplefilter("always")
        warnings.warn("two arms differ [in data]", KappaoneWarning, stacklevel=1)
        warnings.warn("something else", UserWarning, stacklevel=1)
        raise SpecError("what", "todo")

    monkeypatch.setattr(main_module, "app", warned)
    answer = command("schemes")
    assert "warning: two arms differ [in data]\n" in answer.err
    assert "UserWarning: something else" in answer.err
    assert answer.err.endswith("error: what\nwhat to do: todo\n")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, main_module.typer.Abort])
def test_an_interrupt_exits_with_130(command, monkeypatch, interrupt):
    def stopped(*_, **__):
        raise interrupt

    monkeypatch.setattr(main_module, "app", stopped)
    answer = command("schemes")
    assert (answer.code, answer.out) == (130, "")
    assert answer.err.startswith("error: interrupted\nwhat to do: ")


@pytest.mark.skipif(os.name == "nt", reason="no SIGINT to a child there")
def test_ctrl_c_in_a_real_process(folder):
    (folder / "slow.py").write_text(
        "import sys, time\ndef build():\n    print('here', file=sys.stderr, flush=True)\n    time.sleep(60)\n"
    )
    child = spawn(["layouts", "slow.py:build"], folder)
    assert child.stderr.readline() == "here\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    assert err.startswith("error: interrupted")
    assert "Traceback" not in err


@pytest.mark.skipif(os.name == "nt", reason="pipes are closed otherwise there")
@pytest.mark.parametrize("words", [["schemes"], ["schemes", "--json"], ["schemes", "mimetic"], ["--help"]])
def test_a_reader_that_is_gone_is_no_error(folder, words):
    reading, writing = os.pipe()
    os.close(reading)
    child = subprocess.run(
        [sys.executable, "-m", "kappaone.cli.main", *words],
        env=environment(),
        cwd=folder,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writing)
    assert (child.returncode, child.stderr) == (1 if words == ["--help"] else 141, "")  # help is printed by typer


def test_json_is_all_that_is_on_stdout(process):
    for words in (["schemes", "--json"], ["init", "model.py:build", "--json"], ["layouts", "model.py:build", "--json"]):
        answer = process(*words)
        assert answer.code == 0, answer.err
        json.loads(answer.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
