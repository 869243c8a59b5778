"""The study's folder: whole files or none, one user at a time, one plan for ever."""

import json
import os
import shutil
from pathlib import Path

import pytest

from kappaone.errors import StudyError
from kappaone.studies.store import RunResult, Store, read_result, slug, write_atomic, write_json

OK = RunResult("ok", {"score": 0.5, "kappa_J": float("inf")}, 1.0)


def test_create_open_and_create_again(tmp_path, make_plan):
    plan = make_plan()
    Store.create(tmp_path / "a" / "study", plan)
    assert Store.open(tmp_path / "a" / "study").plan == plan
    assert Store.create(tmp_path / "a" / "study", plan).plan == plan


def test_another_plan_is_refused_and_the_differences_named(tmp_path, make_plan):
    Store.create(tmp_path, make_plan())
    for door in (Store.create, Store.open):
        with pytest.raises(StudyError) as caught:
            door(tmp_path, make_plan(seeds=(0, 1, 2), margin=0.1))
        assert "seeds: [0, 1] in the folder, [0, 1, 2] now" in str(caught.value)
        assert "margin: 0.05 in the folder, 0.1 now" in str(caught.value)
        assert "arms" not in str(caught.value)


def test_places_that_are_no_study(tmp_path, make_plan):
    with pytest.raises(StudyError, match="no study"):
        Store.open(tmp_path)
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(StudyError, match=r"holds thesis\.tex"):
        Store.create(tmp_path, make_plan())
    with pytest.raises(StudyError, match="is a file"):
        Store.create(tmp_path / "thesis.tex", make_plan())
    (tmp_path / "plan.json").write_text("{")
    with pytest.raises(StudyError, match="not JSON"):
        Store.open(tmp_path)


def test_jobs_go_seed_by_seed(tmp_path, make_plan):
    jobs = Store.create(tmp_path, make_plan(seeds=(4, 2))).jobs()
    assert jobs[:3] == [("default", 4), ("new", 4), ("default(redraw)", 4)]
    assert [seed for _, seed in jobs] == [4, 4, 4, 2, 2, 2]


def test_slugs_differ_where_the_readable_part_does_not():
    names = ["a(b)", "a[b]", "a-b", "a/b", "../a", "", "κ", "a" * 300]
    slugs = {slug(n, 1) for n in names}
    assert len(slugs) == len(names)
    assert all(len(s) < 100 and "/" not in s and not s.startswith(".") for s in slugs)


def test_a_result_survives_json_and_anything_less_is_unfinished(tmp_path):
    write_json(tmp_path / "result.json", OK.to_dict())
    assert read_result(tmp_path) == OK
    whole = OK.to_dict()
    for broken in (
        "",
        json.dumps(whole)[:-5],
        "[]",
        json.dumps({**whole, "schema": 2}),
        json.dumps({**whole, "status": "fine"}),
        json.dumps({**whole, "recorded_by": "train.py"}),
        json.dumps({**whole, "metrics": {"score": "high"}}),
        json.dumps({k: v for k, v in whole.items() if k != "seconds"}),
    ):
        (tmp_path / "result.json").write_text(broken)
        assert read_result(tmp_path) is None


def test_preparing_wipes_everything_but_kept_errors(tmp_path, make_plan):
    store = Store.create(tmp_path, make_plan())
    folder = store.prepare("new", 0)
    (folder / "deep").mkdir()
    (folder / "deep" / "file").touch()
    for name in ("metrics.jsonl", "result.json", "error-1.txt"):
        (folder / name).write_text("old")
    store.prepare("new", 0, keep_errors=True)
    assert sorted(p.name for p in folder.iterdir()) == ["error-1.txt", "spec.json"]
    store.prepare("new", 0)
    assert [p.name for p in folder.iterdir()] == ["spec.json"]
    spec = json.loads((folder / "spec.json").read_text())
    assert spec == {"arm": "new", "seed": 0, "options": {}, "out": str(folder)}


def test_an_atomic_write_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    write_atomic(path, "old")

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"


def test_a_second_user_is_told_who_holds_the_folder(tmp_path, make_plan):
    store = Store.create(tmp_path, make_plan())
    with store.lock():
        with pytest.raises(StudyError, match=f"in use by process {os.getpid()} on"), Store.open(tmp_path).lock():
            pass
        assert (tmp_path / ".holder.json").exists()
    with Store.open(tmp_path).lock():
        pass
    assert not (tmp_path / ".holder.json").exists()


def test_a_torn_line_in_a_finished_run_is_an_error(tmp_path, make_plan):
    store = Store.create(tmp_path, make_plan())
    folder = store.prepare("new", 0)
    (folder / "metrics.jsonl").write_text('{"step": 1, "score": 1}\n{"st')
    assert store.records() == []  # unfinished: nobody minds
    write_json(folder / "result.json", OK.to_dict())
    with pytest.raises(StudyError, match="line 2 is not JSON"):
        store.records()


def test_half_a_wiped_run_does_not_look_finished(tmp_path, make_plan, monkeypatch):
    store = Store.create(tmp_path, make_plan())
    folder = store.prepare("new", 0)
    (folder / "a").mkdir()
    write_json(folder / "result.json", OK.to_dict())

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "rmtree", killed)
    monkeypatch.setattr(Path, "iterdir", lambda self: iter([folder / "a", folder / "result.json"]))
    with pytest.raises(KeyboardInterrupt):
        store.prepare("new", 0)
    assert store.result("new", 0) is None
