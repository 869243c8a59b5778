"""Keyed random streams: the numbers of a block depend on its key and on nothing else.

A key is (seed, parameter name without wrapper prefixes, role, head, purpose). Two blocks never share a stream, and a
block gets the same numbers whatever the order of parameters, the wrapper, the number of ranks or of threads, and
whatever else was drawn before. No global state is read or moved. The generator is NumPy's SFC64, whose 256 bits of
state are filled from a 128-bit hash of the key; it draws normal numbers a third faster than Philox, and the draws are
half of the time of an initialization.

`STREAM_VERSION` is part of every key and of every report: a change of the numbers is a change of the version.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kappaone.errors import SpecError

STREAM_VERSION = 1

Array = NDArray[np.float64]


def check_seed(seed: int) -> int:
    """Return the seed if it is an integer in [0, 2**64).

    Raises:
        SpecError: otherwise.

    Examples:
        >>> check_seed(7)
        7
    """
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or not 0 <= int(seed) < 2**64:
        raise SpecError(f"seed is {seed!r}; expected an integer from 0 to 2**64 - 1", "pass for instance seed=0")
    return int(seed)


def generator(seed: int, *labels: str | int | None) -> np.random.Generator:
    """A generator keyed by a seed and any labels; equal keys give equal numbers.

    Examples:
        >>> a, b = generator(0, "blocks.0.qkv.weight", "q", 3), generator(0, "blocks.0.qkv.weight", "q", 3)
        >>> bool((a.standard_normal(4) == b.standard_normal(4)).all())
        True
    """
    digest = hashlib.blake2b(digest_size=16, person=b"kappaone")
    for label in (STREAM_VERSION, check_seed(seed), *labels):
        # The type and the length go in first, so that ("a", "bc") and ("ab", "c"), or 1 and "1", differ.
        text = str(label).encode()
        digest.update(f"{type(label).__name__ if label is not None else '-'}:{len(text)}:".encode() + text)
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(int.from_bytes(digest.digest(), "little"))))


@dataclass(frozen=True)
class LayerStream:
    """The streams of one attention layer.

    Attributes:
        seed: the user's seed.
        parameters: for each role, the parameter name that keys it (with the caller's `prefix`).
    """

    seed: int
    parameters: dict[str, str]

    def of(self, role: str, head: int | None = None, purpose: str = "") -> np.random.Generator:
        """Generator of one role and head; `head=None` is the stream of the role as a whole."""
        return generator(self.seed, self.parameters[role], role, -1 if head is None else int(head), purpose)

    def normal(self, shape: tuple[int, ...], role: str, head: int | None = None, purpose: str = "") -> Array:
        """Standard normal float64 numbers of one role and head."""
        return self.of(role, head, purpose).standard_normal(shape)
