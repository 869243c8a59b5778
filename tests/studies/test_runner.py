"""Runs in processes: callables and commands, failures, divergence, and being killed at any moment."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from kappaone.errors import StudyError
from kappaone.studies import Study
from kappaone.studies.store import Store

from .conftest import FILE

MODULE = f"{__name__.rpartition('.')[0]}.tiny_run"


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks for left processes in /proc")


def outcomes(study):
    """Everything measured, without times."""
    return [(r.arm, r.seed, r.result.status, dict(r.result.metrics), r.records) for r in study._store.records()]


def alive(folder):
    """Processes, other than this one, that have a file below a folder open."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            handles = [os.readlink(entry.path) for entry in os.scandir(f"/proc/{pid}/fd")]
        except OSError:  # ended meanwhile, or not ours to look into
            continue
        if int(pid) != os.getpid() and any(h.startswith(str(folder)) for h in handles):
            found.append(int(pid))
    return found


def command(**options):
    return {"command": [sys.executable, str(FILE), "{spec}"], "options": options}


def test_by_module_by_file_and_as_a_command_are_the_same(tmp_path, make_plan):
    seen = []
    runners = [
        {"callable": f"{MODULE}:run", "options": {}},
        {"callable": f"{FILE}:run", "options": {}},
        command(),
    ]
    found = []
    for i, runner in enumerate(runners):
        study = Study.create(tmp_path / str(i), make_plan(runner=runner))
        status = study.run(preload=(), progress=lambda *args: seen.append(args))
        assert (status.ok, status.pending, status.complete) == (6, 0, True)
        found.append(outcomes(study))
    # a returned dict adds to the metrics; a command returns none
    for _, _, _, metrics, _ in found[0] + found[1]:
        assert metrics.pop("extra") == 1.5
    assert found[0] == found[1] == found[2]
    assert [s[:2] for s in seen[:7]] == [(i, 6) for i in range(7)]
    assert seen[0][2] is None
    assert seen[6][2] == 0
    assert all(eta > 0 for _, _, eta in seen[1:6])
    assert Study.open(tmp_path / "0").run(preload=()).ok == 6  # nothing left to do
    assert json.loads((tmp_path / "0" / "provenance.json").read_text())["versions"]["python"]


def test_relative_files_are_found_from_the_working_folder(tmp_path, make_plan, monkeypatch):
    monkeypatch.chdir(FILE.parent)
    study = Study.create(tmp_path, make_plan(runner={"callable": "tiny_run.py:run"}))
    assert study.run(preload=()).ok == 6


def test_divergence_is_a_result(tmp_path, make_plan):
    study = Study.create(tmp_path, make_plan("nan"))
    status = study.run(preload=())
    assert (status.ok, status.diverged, status.failed, status.complete) == (4, 2, 0, True)
    result = Store.open(tmp_path).result("new", 0)
    assert result.detail == "not finite at the end: score"
    stamp = (Store.open(tmp_path).run_folder("new", 0) / "result.json").stat().st_mtime_ns
    assert study.run(preload=()).diverged == 2  # kept, not made again
    assert (Store.open(tmp_path).run_folder("new", 0) / "result.json").stat().st_mtime_ns == stamp


def test_a_run_that_raises_keeps_its_traceback_and_the_others_go_on(tmp_path, make_plan):
    study = Study.create(tmp_path, make_plan("raises"))
    status = study.run(preload=(), retries=1)
    assert (status.ok, status.failed, status.complete) == (4, 2, False)
    assert status.failures["new", 1] == "RuntimeError: the sky fell"
    folder = Store.open(tmp_path).run_folder("new", 1)
    assert status.to_dict()["failures"][1]["folder"] == str(folder)
    for attempt in (1, 2):
        text = (folder / f"error-{attempt}.txt").read_text()
        assert "Traceback" in text
        assert "tiny_run.py" in text
    assert "about to raise" in (folder / "log.txt").read_text()


def test_a_failed_run_is_made_again_by_the_next_call(tmp_path, make_plan):
    study = Study.create(tmp_path, make_plan("second_time_lucky", arms=("default", "new"), seeds=(0, 1)))
    assert study.run(preload=(), retries=1).complete
    other = Study.create(tmp_path / "other", make_plan("second_time_lucky", arms=("default", "new"), seeds=(0, 1)))
    with pytest.raises(StudyError, match="nothing works: 2 runs failed"):
        other.run(preload=(), retries=0, workers=1)
    assert other.status().failed == 2
    assert other.run(preload=(), retries=1).complete


def test_a_run_that_is_killed(tmp_path, make_plan):
    status = Study.create(tmp_path, make_plan("dies")).run(preload=(), retries=0)
    assert status.failed == 2
    detail = status.failures["new", 0]
    assert "SIGKILL" in detail or "status" in detail


def test_the_primary_metric_is_required(tmp_path, make_plan):
    with pytest.raises(StudyError, match="without the primary metric 'score'"):
        Study.create(tmp_path, make_plan("without_metric")).run(preload=(), retries=0)


@pytest.mark.parametrize(
    ("runner", "said"),
    [
        (command(exit=True), "ended with status 3"),
        ({"command": ["/no/such/program", "{spec}"]}, "No such file"),
        ({"callable": f"{FILE}:absent"}, "no function 'absent'"),
        (command(result="failed"), "expected status 'ok' or 'diverged'"),
    ],
)
def test_what_cannot_run_stops_early_and_says_why(tmp_path, make_plan, runner, said):
    with pytest.raises(StudyError) as caught:
        Study.create(tmp_path, make_plan(runner=runner)).run(preload=(), retries=0)
    assert said in str(caught.value)


def test_names_that_do_not_exist_are_refused_before_any_process(tmp_path, make_plan):
    for name in ("no_such_package_anywhere.x:run", str(tmp_path / "absent.py:run")):
        study = Study.create(tmp_path / str(len(name)), make_plan(runner={"callable": name}))
        with pytest.raises(StudyError, match=r"no package|no file"):
            study.run(preload=())
    for wrong in ({"workers": 0}, {"retries": -1}, {"threads": 0}, {"workers": True}):
        with pytest.raises(StudyError, match=next(iter(wrong))):
            study.run(preload=(), **wrong)


def test_a_commands_own_result_counts(tmp_path, make_plan):
    study = Study.create(tmp_path, make_plan(runner=command(result="diverged"), seeds=(0, 1)))
    assert study.run(preload=()).diverged == 6
    assert Store.open(tmp_path).result("new", 0).metrics["score"] == 9.0


def test_threads_environment_and_main(tmp_path, make_plan, monkeypatch):
    before = dict(os.environ)
    main = sys.modules["__main__"]
    kept = dict(vars(main))
    # the fork server has been started by earlier tests: what changes since must reach the runs all the same
    monkeypatch.setenv("TINY_MARKER", "7")
    study = Study.create(tmp_path, make_plan("environment", arms=("default", "new")))
    study.run(preload=(), threads=1)
    metrics = study._store.result("new", 1).metrics
    assert (metrics["omp"], metrics["main"], metrics["marker"]) == (1, 0, 7)
    monkeypatch.undo()
    assert dict(os.environ) == before
    assert {k: v for k, v in vars(main).items() if k in ("__spec__", "__file__")} == {
        k: v for k, v in kept.items() if k in ("__spec__", "__file__")
    }


@needs_proc
@pytest.mark.parametrize(("how", "moments"), [("callable", (0, 3)), ("command", (0, 1, 3))])
def test_kill_at_several_moments_then_resume_equals_undisturbed(tmp_path, make_plan, start_study, how, moments):
    options = {"sleep": 0.02}
    runner = command(**options) if how == "command" else {"callable": f"{FILE}:run", "options": options}
    plan = make_plan(runner=runner, seeds=(0, 1, 2))
    undisturbed = Study.create(tmp_path / "undisturbed", plan)
    undisturbed.run(preload=())
    folder = tmp_path / "killed"
    kept = {}
    for moment in moments:
        process = start_study(folder, plan)
        for line in process.stdout:
            if int(line.split()[0]) >= moment:
                break
        time.sleep(0.07)  # in the middle of runs
        process.kill()
        process.wait()
        store = Store.open(folder)
        for job, stamp in kept.items():  # finished runs were not touched
            assert (store.run_folder(*job) / "result.json").stat().st_mtime_ns == stamp
        kept = {j: (store.run_folder(*j) / "result.json").stat().st_mtime_ns for j in store.jobs() if store.result(*j)}
        deadline = time.monotonic() + 10
        while alive(folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive(folder) == []  # children do not outlive the study
    assert 0 < len(kept) < 9
    resumed = Study.create(folder, plan)
    assert resumed.run(preload=()).complete
    assert outcomes(resumed) == outcomes(undisturbed)
    a, b = resumed.analyse().to_dict(), undisturbed.analyse().to_dict()
    assert {**a, "provenance": None} == {**b, "provenance": None}


@needs_proc
def test_ctrl_c_ends_the_children_and_the_same_call_goes_on(tmp_path, make_plan, start_study):
    plan = make_plan(runner={"callable": f"{FILE}:run", "options": {"sleep": 0.05}})
    folder = tmp_path / "study"
    process = start_study(folder, plan)
    for line in process.stdout:
        if line.startswith("1 "):
            break
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    _, said = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in said
    assert alive(folder) == []
    store = Store.open(folder)
    done = [j for j in store.jobs() if store.result(*j)]
    assert 1 <= len(done) < 6
    assert not any(store.result(*j).status == "failed" for j in done)
    assert Study.open(folder).run(preload=()).complete


def test_the_fork_server_loads_torch_once_and_each_run_sets_its_threads(tmp_path, make_plan, start_study):
    # a stand-in: these tests load no torch
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "torch.py").write_text(
        "import os\nPID, THREADS = os.getpid(), 0\nOMP = os.environ['OMP_NUM_THREADS']\n"
        "def set_num_threads(n):\n    global THREADS\n    THREADS = n\n"
    )
    plan = make_plan("torch_seen")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path / "path"), os.environ.get("PYTHONPATH", "")]),
        "OMP_NUM_THREADS": "5",
    }
    process = start_study(tmp_path / "study", plan, preload=("torch",), environment=environment)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    results = [Store.open(tmp_path / "study").result(*job) for job in Store.open(tmp_path / "study").jobs()]
    assert len({r.metrics["loaded_in"] for r in results}) == 1
    assert len({r.metrics["ran_in"] for r in results}) == 6
    assert all((r.metrics["threads"], r.metrics["omp_when_loaded"]) == (1, 1) for r in results)


def test_two_studies_on_one_folder(tmp_path, make_plan, start_study):
    plan = make_plan(runner={"callable": f"{FILE}:run", "options": {"sleep": 0.1}})
    process = start_study(tmp_path / "study", plan)
    process.stdout.readline()
    study = Study.open(tmp_path / "study", plan)
    with pytest.raises(StudyError, match=f"in use by process {process.pid}"):
        study.run(preload=())
    assert study.status().total == 6  # looking is allowed


def test_importing_and_running_loads_no_torch_or_scipy(tmp_path, make_plan):
    plan = json.dumps(make_plan(seeds=(0, 1), arms=("default", "new"), runner=command()).to_dict())
    code = (
        "import json, sys\nfrom kappaone.studies import *\nimport kappaone.studies as s\n"
        f"study = s.Study.create({str(tmp_path / 's')!r}, s.Plan.from_dict(json.loads({plan!r})))\n"
        "study.run(preload=()); study.status()\n"
        "print([m for m in ('torch', 'scipy', 'statsmodels') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@needs_proc
@pytest.mark.parametrize("how", ["callable", "command"])
def test_long_runs_do_not_outlive_a_killed_study(tmp_path, make_plan, start_study, how):
    options = {"sleep": 5.0}
    runner = command(**options) if how == "command" else {"callable": f"{FILE}:run", "options": options}
    folder = tmp_path / "study"
    process = start_study(folder, make_plan(runner=runner))
    process.stdout.readline()
    started = time.monotonic()
    while len(alive(folder / "runs")) < 2 and time.monotonic() < started + 20:
        time.sleep(0.05)
    time.sleep(0.3)
    assert alive(folder / "runs")
    process.kill()
    started = time.monotonic()
    while alive(folder) and time.monotonic() < started + 4:
        time.sleep(0.05)
    assert alive(folder) == []


@needs_proc
def test_an_interrupt_ends_the_runs_at_once_and_releases_the_folder(tmp_path, make_plan):
    plan = make_plan(runner={"callable": f"{FILE}:waits", "options": {}})
    study = Study.create(tmp_path / "study", plan)

    def interrupt(done, total, left):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study.run(preload=(), progress=interrupt)
    assert alive(tmp_path / "study") == []
    assert study.status().ok == 1
    with study._store.lock():  # free again
        pass
