"""Minimum detectable effect: the true mean difference that a study of this size and noise would have found."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from kappaone.errors import StudyError
from kappaone.studies._extras import scipy_special

#: The normal density is integrated up to here.
TAIL = 9.0


@dataclass(frozen=True)
class Detectable:
    """A minimum detectable effect.

    Attributes:
        value: smallest true mean difference that is detected with the stated power, in the metric's unit.
        low: the same if the noise is at the lower end of its 95 % interval.
        high: the same at its upper end.
        n: seeds.
        sd: standard deviation of the paired difference that was used.
    """

    value: float
    low: float
    high: float
    n: int
    sd: float


def t_test_power(effect: float, n: int, level: float) -> float:
    """Chance that a paired t test finds a true mean difference.

    Args:
        effect: true mean difference over its standard deviation.
        n: seeds.
        level: two-sided error of the test.

    Returns:
        The power, that is the tail of the noncentral t distribution with n - 1 degrees of freedom.
    """
    special = scipy_special()
    critical, shift = float(special.stdtrit(n - 1, 1 - level / 2)), effect * math.sqrt(n)
    # |T| > c means that the spread is below (n - 1) (z + shift)^2 / c^2: averaged over the normal z, which stays accurate
    # where library noncentral t distributions give NaN (few seeds, large effects)
    nodes, weights = _legendre()
    power = 0.0
    for sign in (1.0, -1.0):
        low = max(-TAIL, -sign * shift)
        half = (TAIL - low) / 2
        if half <= 0:
            continue
        z = low + half * (nodes + 1)
        density = np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)
        power += half * float(
            weights @ (density * special.chdtr(n - 1, (n - 1) * ((z + sign * shift) / critical) ** 2))
        )
    return min(power, 1.0)


@cache
def _legendre() -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    nodes, weights = np.polynomial.legendre.leggauss(400)
    return nodes, weights


def minimum_detectable(n: int, sd: float, level: float, *, power: float = 0.8) -> Detectable:
    """Smallest true mean difference whose simultaneous interval excludes 0 with probability `power`.

    Args:
        n: seeds.
        sd: standard deviation of a seed's paired difference, in the metric's unit.
        level: two-sided error of the interval, from `simultaneous_level`.
        power: wanted probability.

    Returns:
        The effect, with the range that the 95 % chi-square interval of `sd` gives.

    Raises:
        StudyError: fewer than two seeds, or a negative sd.

    Examples:
        >>> round(minimum_detectable(8, 1.0, 0.05).value, 3)
        1.156
    """
    if n < 2 or not sd >= 0:
        raise StudyError(
            f"{n} seeds with standard deviation {sd}; expected at least two seeds, sd >= 0", "run more seeds"
        )
    from scipy.optimize import brentq

    high = 1.0
    while t_test_power(high, n, level) < power:
        high *= 2
    effect = float(brentq(lambda e: t_test_power(e, n, level) - power, 0.0, high, xtol=1e-10))
    special = scipy_special()
    # chdtri inverts the upper tail
    shrink = math.sqrt((n - 1) / float(special.chdtri(n - 1, 0.025)))
    stretch = math.sqrt((n - 1) / float(special.chdtri(n - 1, 0.975)))
    return Detectable(effect * sd, effect * sd * shrink, effect * sd * stretch, n, sd)
