"""Keep the caller's random state where a library would move it."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def python_random_kept() -> Iterator[None]:
    """Put Python's global random state back afterwards; rich draws from it when it is first imported.

    Examples:
        >>> random.seed(0)
        >>> with python_random_kept():
        ...     _ = random.random()
        >>> random.random() == random.Random(0).random()
        True
    """
    state = random.getstate()
    try:
        yield
    finally:
        random.setstate(state)
