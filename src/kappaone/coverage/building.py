"""Build other libraries' models quietly: global random states kept, warnings and log lines off the terminal."""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import numpy
import torch

from kappaone.randomness import python_random_kept


@contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Nothing on the terminal, and Python's, numpy's and torch's CPU random states as before.

    Errors pass. Log levels and streams are put back.

    Args:
        loggers: names of the loggers to silence, such as "timm".

    Examples:
        >>> before = torch.get_rng_state()
        >>> with quiet("timm"):
        ...     print("library talk", torch.rand(1))
        >>> torch.equal(before, torch.get_rng_state())
        True
    """
    levels = {name: logging.getLogger(name).level for name in loggers}
    state = numpy.random.get_state()  # noqa: NPY002  (the library may draw from the global one; it is put back)
    try:
        for name in loggers:
            logging.getLogger(name).setLevel(logging.CRITICAL)
        with (
            python_random_kept(),
            torch.random.fork_rng(devices=[]),
            warnings.catch_warnings(),
            redirect_stdout(io.StringIO()),
            redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        numpy.random.set_state(state)  # noqa: NPY002
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        sys.stdout.flush()
