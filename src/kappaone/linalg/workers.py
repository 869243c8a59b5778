"""A private pool in which each task computes on one BLAS thread.

Blocked factorizations give other bits for other thread counts. Here the *tasks* run in parallel, each on a single
thread, so that every block has the same bits for 1, 2 or 64 threads, and the cores are still in use.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


def ordered(tasks: Iterable[Callable[[], T]], *, ahead: int = 2) -> Iterator[T]:
    """Run tasks in parallel, one thread each, and yield their results in order.

    There are as many workers as torch has threads (`torch.get_num_threads()`).

    Args:
        tasks: argument-free functions; taken from the iterable only as they are needed.
        ahead: tasks in flight per worker, which bounds the memory held by results that wait.

    Yields:
        The result of each task, in the order of the tasks.

    Examples:
        >>> list(ordered([lambda: 1, lambda: 2]))
        [1, 2]
    """
    threads = torch.get_num_threads()
    # The caller too, while it takes results: its thread team would fight with the workers for the cores.
    torch.set_num_threads(1)
    pool = ThreadPoolExecutor(threads, "kappaone", initializer=torch.set_num_threads, initargs=(1,))
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
        # The workers' setting is per thread for OpenMP but process-wide for some BLAS libraries: put it back.
        torch.set_num_threads(threads)
