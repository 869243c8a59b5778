"""A whole run over a zoo of toys, in real processes where that is what is tested."""

from __future__ import annotations

import pytest

from kappaone.coverage import cover, workers
from kappaone.coverage.cover import Coverage, select
from kappaone.coverage.rows import examine, probed
from tests.coverage import zoo_of_toys as toys

LIBRARY = toys.__name__


def in_process(library, task, names, *, jobs, limit):
    """`workers.work` without its processes."""
    for name in names:
        if task == "survey":
            yield name, examine(toys, name).to_dict()
        else:
            yield name, {key: dict(vars(verdict)) for key, verdict in probed(toys, name).items()}


def test_a_crash_and_a_hang_cost_one_row_each():
    names = ["encoder_small", "dies", "hangs", "convolution", "broken", "encoder_large"]
    answers = dict(workers.work(LIBRARY, "survey", names, jobs=2, limit=3.0))
    assert set(answers) == set(names)
    assert answers["dies"] == "its process died (exit code 3)"
    assert answers["hangs"] == "took more than 3 s"
    assert answers["encoder_large"]["layers"] == 6
    assert answers["broken"]["status"] == "error"


def test_each_kind_is_probed_once_and_confirmed_for_all(monkeypatch):
    monkeypatch.setattr(cover, "work", in_process)
    steps: list[tuple[str, int, int]] = []
    found = Coverage(LIBRARY, tuple(toys.names()))
    rows = {row.name: row for row in found.run(probe=True, tell=lambda *step: steps.append(step))}
    assert list(rows) == toys.names()
    assert set(found.verdicts) == {"encoder_small", "mixed", "stubborn"}
    assert (rows["encoder_small"].confirmed, rows["encoder_large"].confirmed) == (True, True)
    assert rows["encoder_large"].note == "by kind: encoder_small"
    assert (rows["stubborn"].confirmed, rows["stubborn"].note) == (None, "no small instance: it is stubborn")
    assert ("surveyed", 7, 7) in steps
    assert ("probed", 3, 3) in steps
    assert found.run(probe=True) == list(rows.values())  # nothing is left to do


def test_an_interrupted_run_keeps_its_part(monkeypatch):
    def interrupted(*args, **kwargs):
        for i, answer in enumerate(in_process(*args, **kwargs)):
            if i == 2:
                raise KeyboardInterrupt
            yield answer

    monkeypatch.setattr(cover, "work", interrupted)
    found = Coverage(LIBRARY, ("encoder_small", "convolution", "shuffled"))
    with pytest.raises(KeyboardInterrupt):
        found.run(probe=True)
    assert [row.status for row in found.results()] == ["handled", "no attention"]


def test_names_and_globs():
    assert select(["a1", "a2", "b"], []) == (["a1", "a2", "b"], [])
    assert select(["a1", "a2", "b"], ["b", "a*", "a1"]) == (["a1", "a2", "b"], [])
    assert select(["a1"], ["c*", "a?"]) == (["a1"], ["c*"])
