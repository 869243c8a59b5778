"""Run what a plan still lacks, a few runs at a time, each in its own process.

Processes come from a fork server that has torch loaded (it takes seconds once, not once a run); where the platform has
none, they are spawned. Runs go seed by seed. A run that fails is tried again; a run that was interrupted leaves
nothing.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from kappaone.errors import StudyError
from kappaone.studies.callables import check_name
from kappaone.studies.child import CHILDREN_LOCK, Job, error_path, run_child, thread_environment, versions
from kappaone.studies.store import RunResult, Store, write_json

Progress = Callable[[int, int, "float | None"], None]

ORPHAN_WAIT = 30.0
_starting = threading.Lock()


def run_missing(
    store: Store,
    *,
    workers: int = 2,
    retries: int = 1,
    threads: int = 1,
    preload: Sequence[str] = ("torch",),
    progress: Progress | None = None,
) -> None:
    """Make every run of the plan that has no result yet; failed runs are made again.

    The caller holds the store's lock.

    Args:
        store: the study's folder.
        workers: runs at a time.
        retries: how often a run that fails is tried again before it is recorded as failed.
        threads: threads of each run (numerical libraries).
        preload: modules that the fork server loads once, for runs that are callables; the study's own process does not.
        progress: called with (runs done, runs in all, seconds left or None) at the start and after every run.

    Raises:
        StudyError: numbers out of range, a callable that does not exist, processes of an earlier start that do not end,
            or a study in which nothing works: when as many runs as there are arms have failed and none has succeeded.
    """
    for name, value, least in (("workers", workers, 1), ("retries", retries, 0), ("threads", threads, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise StudyError(f"{name} is {value!r}; expected a whole number of at least {least}", f"correct {name}")
    if "callable" in store.plan.runner:
        check_name(store.plan.runner["callable"])
    _wait_for_orphans(store.folder)

    jobs = store.jobs()
    finished = {job: r for job in jobs if (r := store.result(*job)) is not None and r.status != "failed"}
    queue = deque((job, 1) for job in jobs if job not in finished)
    seconds = [r.seconds for r in finished.values()]
    done, failures = len(finished), 0

    def tell() -> None:
        if progress is not None:
            progress(done, len(jobs), estimate_seconds(seconds, len(jobs) - done, workers))

    tell()
    context = _context(preload if "callable" in store.plan.runner else ())
    active: dict[int, tuple[BaseProcess, tuple[str, int], int, float]] = {}
    try:
        while queue or active:
            while queue and len(active) < workers:
                job, attempt = queue.popleft()
                process = _start(context, _job(store, *job, attempt, threads))
                active[process.sentinel] = (process, job, attempt, time.monotonic())
            ready = set(multiprocessing.connection.wait(list(active)))
            for sentinel in [s for s in active if s in ready]:
                process, job, attempt, started = active.pop(sentinel)
                process.join()
                result = store.result(*job)
                if result is None:
                    detail = _why(store.run_folder(*job), attempt, process.exitcode)
                    if attempt <= retries:
                        queue.appendleft((job, attempt + 1))
                        continue
                    result = RunResult("failed", {}, round(time.monotonic() - started, 3), detail, versions())
                    write_json(store.run_folder(*job) / "result.json", result.to_dict())
                    failures += 1
                else:
                    seconds.append(result.seconds)
                done += 1
                tell()
                if not seconds and failures >= len(store.plan.arms):
                    raise StudyError(
                        f"nothing works: {failures} runs failed and none succeeded; the last one: {result.detail}",
                        f"read error-*.txt and log.txt in {store.run_folder(*job)}, then run the study again",
                    )
    finally:
        for process, *_ in active.values():
            _kill(process)


def _job(store: Store, arm: str, seed: int, attempt: int, threads: int) -> Job:
    plan = store.plan
    folder = store.prepare(arm, seed, keep_errors=attempt > 1)
    judged = {plan.metric} | ({plan.target.metric} if plan.target else set())
    return Job(
        folder=str(folder),
        study=str(store.folder),
        runner=plan.runner,
        metric=plan.metric,
        judged=tuple(sorted(judged)),
        attempt=attempt,
        threads=threads,
        environment=dict(os.environ),
    )


def _context(preload: Sequence[str]) -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    # by name: the study's own process never imports torch. Without effect if the program has a fork server already.
    context.set_forkserver_preload(["kappaone.studies.child", *preload])
    return context


def _start(context: BaseContext, job: Job) -> BaseProcess:
    name = Path(job.folder).name
    process: BaseProcess = context.Process(target=run_child, args=(job,), name=name)  # type: ignore[attr-defined]
    with _starting, _thread_variables(job.threads), _main_left_alone():
        process.start()
    return process


@contextmanager
def _thread_variables(threads: int) -> Iterator[None]:
    """The fork server inherits them before it loads anything; the study's own environment is put back at once."""
    wanted = thread_environment(threads)
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Keep the child from importing the user's script, which would start the study in it a second time.

    multiprocessing reads `__spec__` and `__file__` of `__main__` while it starts a process, to import it there. Runs
    are found by name, so no child needs it, and scripts need no `if __name__ == "__main__"`.
    """
    main = sys.modules["__main__"]
    hidden: dict[str, Any] = {name: vars(main)[name] for name in ("__spec__", "__file__") if name in vars(main)}
    main.__spec__ = None
    vars(main).pop("__file__", None)
    try:
        yield
    finally:
        vars(main).update(hidden)


def _why(folder: Path, attempt: int, code: int | None) -> str:
    path = error_path(folder, attempt)
    try:
        return path.read_text(encoding="utf-8").splitlines()[0]  # the child puts the error itself on the first line
    except FileNotFoundError:  # it could not: it was killed
        pass
    if code is not None and code < 0:
        ended = f"the run's process was ended by signal {signal.Signals(-code).name} (out of memory?)"
    else:
        ended = f"the run's process ended with status {code} and left no result"
    path.write_text(ended + "\n", encoding="utf-8")
    return ended


def _kill(process: BaseProcess) -> None:
    if process.pid is not None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except (
            AttributeError,
            ProcessLookupError,
            PermissionError,
        ):  # no groups here, or not yet its own group, or gone
            process.kill()
    process.join(10)


def _wait_for_orphans(folder: Path, limit: float = ORPHAN_WAIT) -> None:
    """Runs of a killed study end within moments; none may still write when its folder is wiped."""
    if sys.platform == "win32":
        return
    import fcntl

    deadline = time.monotonic() + limit
    handle = os.open(folder / CHILDREN_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StudyError(
                        f"processes of an earlier start of {folder} are still running after {limit:g} seconds",
                        "end them, then run the study again",
                    ) from None
                time.sleep(0.05)
    finally:
        os.close(handle)


def estimate_seconds(seconds: Sequence[float], left: int, workers: int) -> float | None:
    """Time that `left` runs take, from the finished ones; None before the first has finished.

    Examples:
        >>> estimate_seconds([10.0, 20.0], 4, 2)
        30.0
    """
    return sum(seconds) / len(seconds) * left / min(workers, max(left, 1)) if seconds else None
