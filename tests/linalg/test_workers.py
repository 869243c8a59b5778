"""The pool: order, one thread each, and the thread count afterwards, whoever else runs meanwhile."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from kappaone.linalg.workers import ordered, single_threaded


@pytest.fixture(autouse=True)
def _three_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def test_tasks_see_one_thread_and_come_in_order() -> None:
    assert list(ordered([torch.get_num_threads] * 5)) == [1] * 5
    assert list(ordered([lambda i=i: i for i in range(20)])) == list(range(20))  # type: ignore[misc]
    assert torch.get_num_threads() == 3


def test_two_callers_at_once_leave_the_thread_count_as_it_was() -> None:
    started = threading.Event()

    def slow() -> None:
        started.set()
        time.sleep(0.05)

    def other() -> None:
        started.wait()
        list(ordered([lambda: time.sleep(0.05)] * 6))

    thread = threading.Thread(target=other)
    thread.start()
    list(ordered([slow] * 6))
    thread.join()
    found: list[int] = []
    fresh = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
    fresh.start()
    fresh.join()
    assert (torch.get_num_threads(), found) == (3, [3])


def test_nested_calls_do_not_wait_for_themselves() -> None:
    assert list(ordered([lambda: list(ordered([lambda: 1, lambda: 2]))])) == [[1, 2]]
    with single_threaded(), single_threaded():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 3


def test_an_error_and_an_unfinished_run_put_it_back() -> None:
    def fail() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        list(ordered([fail]))
    run = ordered([lambda: 1] * 10)
    assert next(run) == 1
    run.close()
    assert torch.get_num_threads() == 3
