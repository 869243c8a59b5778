"""Frobenius norms that do not depend on how a matrix is cut: the squares are summed exactly, in whole numbers.

A float64 sum has other last bits in another order, and shards are summed in as many orders as there are ways to cut a
weight. A norm that scales weights must not differ between 1 and 4 ranks, so squares are summed as integers here: each
square, rounded to float64 once, is a whole multiple of 2^-1126.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

_UNIT = 1126  # the smallest square that float64 can hold is a multiple of 2^-1126
_BITS = 32
LIMBS = 71  # 2,272 bits: the largest square times 2^90 entries; the last limb counts what is not finite
_CHUNK = 1 << 24  # entries whose halves, below 2^27 each, sum exactly in float64

Limbs = NDArray[np.int64]


def squares(values: NDArray[np.float64]) -> Limbs:
    """The exact sum of the squares of all entries, as digits to base 2^32, lowest first.

    Sums of such digits over up to 2^31 processes are exact too.

    Args:
        values: any shape, float64.

    Returns:
        (LIMBS,) digits; the last one counts the entries whose square is not finite, which are left out of the sum.

    Examples:
        >>> norm_of(squares(np.array([3.0, 4.0])))
        5.0
        >>> x = np.random.default_rng(0).standard_normal(1001)
        >>> norm_of(squares(x[:300]) + squares(x[300:])) == norm_of(squares(x))
        True
    """
    out = np.zeros(LIMBS, np.int64)
    total = 0
    flat = values.reshape(-1)
    for start in range(0, flat.size, _CHUNK):
        with np.errstate(over="ignore", invalid="ignore"):
            y = flat[start : start + _CHUNK] ** 2
        finite = np.isfinite(y)
        if not finite.all():
            out[-1] += int(y.size - finite.sum())
            y = y[finite]
        y = y[y > 0]
        if not y.size:
            continue
        mantissa, exponent = np.frexp(y)
        whole = np.ldexp(mantissa, 53).astype(np.int64)
        lowest = int(exponent.min())
        place = exponent - lowest
        high = np.bincount(place, (whole >> 27).astype(np.float64))
        low = np.bincount(place, (whole & ((1 << 27) - 1)).astype(np.float64))
        for step, (upper, lower) in enumerate(zip(high, low, strict=True)):
            total += ((int(upper) << 27) + int(lower)) << (lowest + step - 53 + _UNIT)
    for place_at in range(LIMBS - 1):
        out[place_at] = total >> (_BITS * place_at) & ((1 << _BITS) - 1)
    return out


def norm_of(limbs: Limbs) -> float:
    """The square root of such a sum, rounded once or twice at the end; NaN where an entry was not finite.

    Examples:
        >>> norm_of(squares(np.zeros((2, 2)))), norm_of(squares(np.array([np.inf])))
        (0.0, nan)
    """
    if limbs[-1]:
        return math.nan
    total = sum(int(digit) << (_BITS * place) for place, digit in enumerate(limbs[:-1]))
    if total == 0:
        return 0.0
    # At least 64 bits of root, and an even shift so that the unit's root is a power of two.
    shift = max(0, 128 - total.bit_length())
    shift += (shift + _UNIT) % 2
    root = math.isqrt(total << shift)
    extra = max(0, root.bit_length() - 64)
    return math.ldexp(float(root >> extra), extra - (shift + _UNIT) // 2)


def exact_norm(values: NDArray[np.float64]) -> float:
    """Frobenius norm of a matrix, the same whatever the order or the partition of its entries.

    Examples:
        >>> exact_norm(np.array([[3.0, 0.0], [0.0, 4.0]]))
        5.0
    """
    return norm_of(squares(values))
