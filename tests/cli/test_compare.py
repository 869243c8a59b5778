from __future__ import annotations

import json

import pytest

from kappaone.cli.compare import read_seeds, split_arms
from kappaone.errors import SpecError


@pytest.mark.slow  # two processes that train
def test_a_study_from_the_command_line_is_resumed_by_the_same_command(process, folder):
    words = ["compare", "images", "--preset", "smoke", "--arms", "default,conditioned(value=per_head, scale=matched)"]
    words += [
        "--seeds",
        "2",
        "--workers",
        "1",
        "--set",
        "dataset=mnist-5k",
        "--set",
        "steps=4",
        "--set",
        "warmup_steps=1",
        "--set",
        "probe_images=0",
    ]
    first = process(*words)
    assert first.code == 0, first.err
    lines = first.out.splitlines()
    assert max(map(len, lines[:-2])) <= 80
    (study,) = (folder / "studies").iterdir()
    assert lines[-2:] == [f"study: {study}", f"page: {study / 'report.html'}"]
    assert (study / "report.html").stat().st_size > 1e6
    assert "conditioned(value=per_head, scale=matched)" in " ".join(first.out.split()) or "per_head" in first.out
    stamps = {path: path.stat().st_mtime_ns for path in study.glob("runs/*/result.json")}
    assert len(stamps) == 4
    # One run is taken away, as if it had been stopped; the same command does that one again, and no other.
    lost = min(stamps)
    kept = json.loads(lost.read_text())
    lost.unlink()
    second = process(*words, "--json", "--html", "page.html")
    assert second.code == 0, second.err
    assert (folder / "page.html").stat().st_size > 1e6
    analysis = json.loads(second.out, parse_constant=lambda word: pytest.fail(word))
    assert [arm["n"] for arm in analysis["arms"]] == [2, 2]
    again = {path: path.stat().st_mtime_ns for path in study.glob("runs/*/result.json")}
    assert {path for path in again if again[path] != stamps[path]} == {lost}
    assert json.loads(lost.read_text())["metrics"]["test_accuracy"] == kept["metrics"]["test_accuracy"]


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nope"], "there is no recipe 'nope'"),
        (["images", "--preset", "huge"], "no preset 'huge'"),
        (["images", "--set", "stepps=3"], "did you mean 'steps'"),
        (["images", "--set", "steps"], "not written name=value"),
        (["images", "--arms", "default,nope"], "no scheme is called 'nope'"),
        (["images", "--arms", "default"], "at least two"),
        (["images", "--arms", ""], "without a name"),
        (["images", "--seeds", "many"], "expected a number"),
        (["images", "--seeds", "1"], "at least 2 seeds"),
        (["images", "--seeds", "3,3"], "doubled"),
        (["images", "--margin", "-1"], "margin"),
        (["images", "--workers", "0"], "--workers"),
        (["images", "--html", "no/where/page.html"], "there is no folder"),
        (["images", "--out", "model.py"], "is a file"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(command, folder, words, what):
    assert what in "\n".join(command("compare", *words).refused())
    assert not (folder / "studies").exists()


@pytest.mark.parametrize("text", ["a,b(", "a,b)", "a,,b", ",a", "a(b]"])
def test_arms_that_cannot_be_split(text):
    if text == "a(b]":
        assert split_arms(text) == [text]  # the scheme's own reader says what is wrong
        return
    with pytest.raises(SpecError, match="--arms"):
        split_arms(text)


def test_arms_with_lists_and_calls():
    assert split_arms("a(layers=[0,2], scale=matched(group=role)),b") == [
        "a(layers=[0,2], scale=matched(group=role))",
        "b",
    ]


@pytest.mark.parametrize("text", ["", "x", "3,x", "3,,4", "1.5"])
def test_seeds_that_are_none(text):
    with pytest.raises(SpecError, match="--seeds"):
        read_seeds(text)
