"""A private pool in which each task computes on one BLAS thread.

Blocked factorizations give other bits for other thread counts. Here the *tasks* run in parallel, each on a single
thread, so that every block has the same bits for 1, 2 or 64 threads, and the cores are still in use.

The number of threads is one setting for the whole process (of BLAS, and of what new threads start with), so two
callers at once would undo each other's: the later one would read the other's 1, and leave it behind for good. They
take turns instead; both want all cores anyway.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

T = TypeVar("T")

_TURN = threading.Lock()
_INSIDE = threading.local()


@contextmanager
def single_threaded() -> Iterator[int]:
    """One thread in torch and BLAS meanwhile; gives the number that there was. Callers in other threads wait.

    Examples:
        >>> with single_threaded() as before:
        ...     torch.get_num_threads()
        1
        >>> torch.get_num_threads() == before
        True
    """
    if getattr(_INSIDE, "count", 0):  # in the same thread, or in a worker: the setting is in place
        yield _INSIDE.count
        return
    with _TURN:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        _INSIDE.count = threads
        try:
            yield threads
        finally:
            _INSIDE.count = 0
            # Per thread for OpenMP but process-wide for some BLAS libraries: put it back.
            torch.set_num_threads(threads)


def ordered(tasks: Iterable[Callable[[], T]], *, ahead: int = 2) -> Iterator[T]:
    """Run tasks in parallel, one thread each, and yield their results in order.

    There are as many workers as torch has threads (`torch.get_num_threads()`). Exhaust the iterator or close it:
    until then other threads that call this wait.

    Args:
        tasks: argument-free functions; taken from the iterable only as they are needed.
        ahead: tasks in flight per worker, which bounds the memory held by results that wait.

    Yields:
        The result of each task, in the order of the tasks.

    Examples:
        >>> list(ordered([lambda: 1, lambda: 2]))
        [1, 2]
    """
    # The caller computes on one thread too, while it takes results: its team would fight with the workers for cores.
    with single_threaded() as threads:
        pool = ThreadPoolExecutor(threads, "kappaone", initializer=_start_worker)
        waiting: deque[Future[T]] = deque()
        try:
            for task in tasks:
                waiting.append(pool.submit(task))
                if len(waiting) > ahead * threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    torch.set_num_threads(1)
    _INSIDE.count = 1
