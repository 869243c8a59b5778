"""Examine architectures in processes of their own, one thread each: a crash or a hang costs one row, not the run.

`concurrent.futures` gives up all its tasks when one process dies, and cannot end a task that hangs; here a dead or late
process is replaced and the rest goes on. Tasks and answers travel as JSON.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, cast

Task = Literal["survey", "probe"]
LIBRARIES = ("timm", "transformers")
# Seconds that a process may take to start on a busy machine, and what it says then.
_START = 600.0
_READY = {"ready": True}


@dataclass
class _Worker:
    process: BaseProcess
    pipe: Connection
    name: str
    since: float
    ready: bool = False


def work(
    library: str, task: Task, names: Sequence[str], *, jobs: int = 1, limit: float = 300.0
) -> Iterator[tuple[str, dict[str, Any] | str]]:
    """Do one task for each architecture.

    Args:
        library: "timm" or "transformers".
        task: "survey" (a row from the meta device) or "probe" (verdicts on a small instance).
        names: architectures.
        jobs: processes.
        limit: seconds for one architecture, the start of a process aside; then the process is ended.

    Yields:
        The name and the answer, as plain data, in the order of completion; words where the process died or was late.
    """
    context = multiprocessing.get_context("spawn")
    waiting = list(reversed(names))
    workers: list[_Worker] = []

    def start() -> _Worker:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(library, theirs), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(process, ours, "", 0.0)
        give(worker)
        return worker

    def give(worker: _Worker) -> None:
        worker.name, worker.since = waiting.pop(), time.monotonic()
        worker.pipe.send_bytes(json.dumps([task, worker.name]).encode())

    try:
        for _ in range(min(jobs, len(names))):
            workers.append(start())
        while workers:
            ready = wait([worker.pipe for worker in workers], timeout=1.0)
            for worker in list(workers):
                allowed = limit if worker.ready else _START
                if worker.pipe not in ready and time.monotonic() - worker.since <= allowed:
                    continue
                answer = _answer(worker) if worker.pipe in ready else f"took more than {allowed:.0f} s"
                if answer == _READY:
                    worker.ready, worker.since = True, time.monotonic()
                    continue
                name = worker.name
                if isinstance(answer, str):
                    _end(worker)
                    workers.remove(worker)
                    if waiting:
                        workers.append(start())
                elif waiting:
                    give(worker)
                else:
                    _end(worker)
                    workers.remove(worker)
                yield name, answer
    finally:
        for worker in workers:
            _end(worker)


def zoo(library: str) -> Any:
    """The zoo of a library: a module (`kappaone.coverage.rows.Zoo`), ours or one given by its dotted name."""
    return importlib.import_module(f"kappaone.coverage.{library}_zoo" if library in LIBRARIES else library)


def _answer(worker: _Worker) -> dict[str, Any] | str:
    try:
        return cast(dict[str, Any], json.loads(worker.pipe.recv_bytes()))
    except (EOFError, OSError):
        worker.process.join(5)
        code = worker.process.exitcode
        died = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        return f"its process died ({died})"


def _end(worker: _Worker) -> None:
    worker.pipe.close()
    worker.process.terminate()
    worker.process.join(5)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()


def _serve(library: str, pipe: Connection) -> None:
    """What a process does: answer until the other end closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the whole group; the parent decides
    import torch

    from kappaone.coverage.rows import examine, probed

    torch.set_num_threads(1)
    animals = zoo(library)
    tasks: dict[str, Callable[[str], dict[str, Any]]] = {
        "survey": lambda name: examine(animals, name).to_dict(),
        "probe": lambda name: {key: dict(vars(verdict)) for key, verdict in probed(animals, name).items()},
    }
    pipe.send_bytes(json.dumps(_READY).encode())
    while True:
        try:
            task, name = json.loads(pipe.recv_bytes())
        except (EOFError, OSError, KeyboardInterrupt):
            return
        pipe.send_bytes(json.dumps(tasks[task](name)).encode())
