"""The exact check: sign-flip max-T over all contrasts at once (Westfall and Young's single step, with sign flips).

If no arm differs from another, a seed's differences are as likely with all their signs turned: whatever their
distribution, as long as it is symmetric. All contrasts of a seed are flipped together, which keeps their dependence as
it is. Of every sign vector the largest |t| over the contrasts is taken; a contrast's p is the share of sign vectors
whose largest |t| reaches the contrast's own. The family-wise error is at most alpha, exactly, without normality. The
smallest p there can be is 2 / 2^n, so fewer than six seeds cannot reject at .05.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

EXACT_UP_TO = 16
MONTE_CARLO_DRAWS = 100_000
MONTE_CARLO_SEED = 20260710


@dataclass(frozen=True)
class SignFlip:
    """Result of the check.

    Attributes:
        p: p-value of each contrast, adjusted for the family; NaN for a contrast without any difference.
        n: seeds that were flipped.
        smallest_p: the smallest p that could have come out.
        exact: all 2^n sign vectors were used; otherwise that many random ones, the observed one added.
        vectors: sign vectors used.
    """

    p: Array
    n: int
    smallest_p: float
    exact: bool
    vectors: int


def sign_flip_max_t(
    differences: Array,
    *,
    exact_up_to: int = EXACT_UP_TO,
    draws: int = MONTE_CARLO_DRAWS,
    seed: int = MONTE_CARLO_SEED,
) -> SignFlip:
    """Two-sided, studentised sign-flip max-T test of every contrast.

    Args:
        differences: shape (seeds, contrasts), NaN where a seed has none. A contrast's t uses its own seeds.
        exact_up_to: number of seeds up to which all sign vectors are enumerated.
        draws: random sign vectors beyond that.
        seed: of the Monte Carlo's own generator.

    Examples:
        >>> result = sign_flip_max_t(np.array([[1.0], [2.0], [1.5], [0.5], [2.5], [1.0]]))
        >>> result.p.tolist(), result.smallest_p
        ([0.03125], 0.03125)
    """
    present = np.isfinite(differences)
    used = present.any(axis=1)
    present = present[used]
    d = np.where(present, differences[used], 0.0)
    n = len(d)
    count = present.sum(axis=0)
    if n == 0:
        return SignFlip(np.full(differences.shape[1], np.nan), 0, 1.0, True, 1)
    exact = n <= exact_up_to
    if exact:
        # the first sign stays +: a vector and its opposite have the same |t|, so half of them stand for all
        half = 2 ** (n - 1)
        bits = (np.arange(half)[:, None] >> np.arange(n)[None, :]) & 1
        signs = 1.0 - 2.0 * np.roll(bits, 1, axis=1)
        vectors, smallest = 2**n, 2.0 / 2**n
    else:
        generator = np.random.Generator(np.random.PCG64(seed))
        flips = 1.0 - 2.0 * generator.integers(0, 2, size=(draws, n))
        signs = np.concatenate([np.ones((1, n)), flips])  # the observed vector counts: p is never 0
        vectors, smallest = draws + 1, 1.0 / (draws + 1)
    squares = (d**2).sum(axis=0)
    observed = _t_squared(d.sum(axis=0)[None, :], squares, count)[0]
    largest = np.concatenate(
        [
            _t_squared(part @ d, squares, count).max(axis=1)
            for part in np.array_split(signs, max(1, len(signs) * n // 2**21))
        ]
    )
    # ties are equalities up to rounding and must count; inf equals inf
    reached = largest[:, None] >= np.where(np.isinf(observed), observed, observed * (1 - 1e-9))[None, :]
    p = np.where(count > 0, reached.mean(axis=0), np.nan)
    return SignFlip(p, n, smallest, exact, vectors)


def _t_squared(sums: Array, squares: Array, count: npt.NDArray[np.int_]) -> Array:
    """t^2 from a contrast's signed sum; a flip leaves its sum of squares as it is.

    With r^2 = sum^2 / (n sum of squares): t^2 = (n - 1) r^2 / (1 - r^2). All differences 0 gives 0 (no evidence at
    all); all differences equal, and not 0, gives infinity, which only these signs and their opposites reach.
    """
    scale = np.where(squares > 0, squares * np.maximum(count, 1), 1.0)
    r2 = np.minimum(sums**2 / scale, 1.0)
    rest = 1.0 - r2
    infinite = rest < 1e-13
    t2 = np.maximum(count - 1, 0) * r2 / np.where(infinite, 1.0, rest)
    result: Array = np.where(infinite & (count > 1), np.inf, t2)
    return result
