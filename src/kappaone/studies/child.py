"""What happens inside one run's process: it lives and dies with the study, runs, and records how it ended.

The process leads its own process group, so that it and whatever it starts can be ended together. It ignores Ctrl-C (the
study decides) and watches a pipe whose other end only the study holds: when the study is gone, however it went, the
whole group is killed.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kappaone.errors import StudyError
from kappaone.studies.callables import load
from kappaone.studies.metrics import encode_record, last_values, non_finite, read_metrics
from kappaone.studies.plan import fill_command
from kappaone.studies.store import RunResult, write_atomic, write_json

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
REPORTED_LIBRARIES = ("torch", "numpy", "timm", "transformers", "accelerate")
CHILDREN_LOCK = ".children"


@dataclass(frozen=True)
class Job:
    """One attempt at one run, as it is handed to its process.

    Attributes:
        folder: the run's folder; its spec.json is written.
        study: the study's folder.
        runner: the plan's runner.
        metric: the primary metric; a run that ends without it has failed.
        judged: metrics that must stay finite.
        attempt: number of the attempt, from 1.
        threads: threads for numerical libraries.
        environment: the study's environment, which a fork server that was started earlier does not know.
    """

    folder: str
    study: str
    runner: Mapping[str, Any]
    metric: str
    judged: tuple[str, ...]
    attempt: int
    threads: int
    environment: Mapping[str, str]


def run_child(job: Job) -> None:
    """Entry of a run's process: ends with status 0 and a result.json, or with 1 and an error-<attempt>.txt."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_the_study()
    folder = Path(job.folder)
    os.environ.clear()
    os.environ.update(job.environment)
    os.environ.update(thread_environment(job.threads))
    held = _hold_children_lock(Path(job.study))
    _redirect_output(folder / "log.txt")
    started = time.monotonic()
    try:
        spec = json.loads((folder / "spec.json").read_text(encoding="utf-8"))
        own = _run_command(job, spec, held) if "command" in job.runner else _run_callable(job, spec)
        result = _judge(job, folder, own, time.monotonic() - started)
        write_json(folder / "result.json", result.to_dict())
    except BaseException as error:  # SystemExit included: a run that leaves early has not ended well
        first = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        write_atomic(error_path(folder, job.attempt), first + "\n\n" + "".join(traceback.format_exception(error)))
        sys.stdout.flush()
        sys.stderr.flush()
        # not sys.exit: threads of a failed run must not keep the process
        os._exit(1)


def thread_environment(threads: int) -> dict[str, str]:
    """Variables that limit the numerical libraries to so many threads; set before these are loaded."""
    return {name: str(threads) for name in THREAD_VARIABLES}


def error_path(folder: Path, attempt: int) -> Path:
    """Where a failed attempt keeps its traceback."""
    return folder / f"error-{attempt}.txt"


def _run_callable(job: Job, spec: dict[str, Any]) -> dict[str, Any]:
    # the fork server has torch loaded already, too late for the variables; torch is only spoken to, never imported
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(job.threads)
    function = load(job.runner["callable"])
    with open(Path(job.folder) / "metrics.jsonl", "a", encoding="utf-8") as file:

        def emit(record: dict[str, Any]) -> None:
            file.write(encode_record(record) + "\n")
            file.flush()

        returned = function(spec, emit)
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        raise StudyError(
            f"the run returned {returned!r}; expected a dict of metrics or None", "return {'metric': number}"
        )
    line = json.loads(encode_record({"step": 0, **{k: v for k, v in returned.items() if k != "step"}}))
    return {"metrics": {k: float(v) for k, v in line.items() if k != "step"}}


def _run_command(job: Job, spec: dict[str, Any], held: int | None) -> dict[str, Any]:
    folder = Path(job.folder)
    values = {
        "arm": spec["arm"],
        "seed": str(spec["seed"]),
        "out": job.folder,
        "spec": str(folder / "spec.json"),
    }
    command = fill_command(job.runner["command"], values)
    # the command holds the children's lock too: it may outlive this process by a moment
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=() if held is None else (held,))
    code = process.wait()
    if code != 0:
        ended = f"status {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        tail = "\n".join(log[-40:])
        raise StudyError(f"the command {command!r} ended with {ended}; the end of its output:\n{tail}", "see log.txt")
    path = folder / "result.json"
    if not path.exists():
        return {}
    data = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    if not isinstance(data, dict) or data.get("status") not in ("ok", "diverged"):
        raise StudyError(f"the command's result.json says {data!r}; expected status 'ok' or 'diverged'", "see log.txt")
    metrics = json.loads(encode_record_of_result(data.get("metrics", {})))
    metrics.pop("step")
    return {"status": data["status"], "metrics": {k: float(v) for k, v in metrics.items()}}


def encode_record_of_result(metrics: Mapping[str, Any]) -> str:
    """A command's own metrics, checked like a record; its "NaN" and "Infinity" strings are taken as numbers."""
    from kappaone.studies.metrics import decode_number

    return encode_record({"step": 0, **{k: decode_number(v, f"result.json, {k!r}") for k, v in metrics.items()}})


def _judge(job: Job, folder: Path, own: Mapping[str, Any], seconds: float) -> RunResult:
    metrics = last_values(read_metrics(folder / "metrics.jsonl", finished=True)) | dict(own.get("metrics", {}))
    bad = non_finite(metrics, job.judged)
    diverged = bool(bad) or own.get("status") == "diverged"
    if not diverged and job.metric not in metrics:
        raise StudyError(
            f"the run ended without the primary metric {job.metric!r}; it recorded {sorted(metrics)}",
            "emit or return it, or name another metric in the plan",
        )
    detail = f"not finite at the end: {', '.join(bad)}" if bad else ("the run says so" if diverged else "")
    return RunResult(
        status="diverged" if diverged else "ok",
        metrics=metrics,
        seconds=round(seconds, 3),
        detail=detail,
        versions=versions(),
        finished=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    )


def versions() -> dict[str, str]:
    """Versions of Python, kappaone, and the numerical libraries that this process has loaded."""
    found = {"python": platform.python_version()}
    for name in ("kappaone", *(n for n in REPORTED_LIBRARIES if n in sys.modules)):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # a source tree on the path
            found[name] = str(getattr(sys.modules.get(name), "__version__", "unknown"))
    return found


def _die_with_the_study() -> None:
    import multiprocessing
    import multiprocessing.connection

    parent = multiprocessing.parent_process()
    if parent is None:  # called directly, not as a process of a study
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        if hasattr(os, "killpg"):
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os._exit(1)

    threading.Thread(target=watch, name="watch-the-study", daemon=True).start()


def _hold_children_lock(study: Path) -> int | None:
    """Share a lock for as long as this process lives: the next start of the study waits until none is left."""
    if sys.platform == "win32":
        return None
    import fcntl

    handle = os.open(study / CHILDREN_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def _redirect_output(path: Path) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
