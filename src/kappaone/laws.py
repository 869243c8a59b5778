"""Laws by which libraries draw weights, and the test whether given weights follow one.

The test serves two ends: `default(redraw)` needs the law itself, and weights that follow none of a library's laws
were loaded or trained, and are not overwritten unless the user says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Law:
    """Independent entries of mean zero.

    Attributes:
        kind: "normal" or "uniform".
        std: standard deviation of an entry.
        origin: where the library says so, for people.
        bound: entries at exactly +-bound are artefacts of the library's sampler and are not looked at. (timm draws by
            erfinv of a uniform number, which in float32 is -inf once in 2^24 draws and then clamped to the bound, 100
            standard deviations out; in bfloat16 once in 500.)
    """

    kind: Literal["normal", "uniform"]
    std: float
    origin: str
    bound: float | None = None

    def draw(self, rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Numbers of this law.

        Examples:
            >>> Law("uniform", 1.0, "").draw(np.random.default_rng(0), (2, 3)).shape
            (2, 3)
        """
        if self.kind == "normal":
            return self.std * rng.standard_normal(shape)
        return 3**0.5 * self.std * (2 * rng.random(shape) - 1)

    def fits(self, values: NDArray[np.float64], *, sigmas: float = 6.0) -> bool:
        """Whether mean, standard deviation and kurtosis are those of this law, within `sigmas` standard errors.

        A half percent is allowed beyond that, for truncation far out and for rounding to 16-bit dtypes.

        Examples:
            >>> x = np.random.default_rng(0).standard_normal(4096)
            >>> Law("normal", 1.0, "").fits(x), Law("normal", 1.1, "").fits(x), Law("uniform", 1.0, "").fits(x)
            (True, False, False)
        """
        if self.bound is not None:
            values = values[np.abs(values) != self.bound]
        n, std = values.size, float(values.std()) if values.size else 0.0
        kurtosis = 3.0 if self.kind == "normal" else 1.8
        if n < 2 or std == 0:
            return False
        std_error = self.std * ((kurtosis - 1) / (4 * n)) ** 0.5
        found = float(np.mean((values - values.mean()) ** 4)) / std**4
        # The sample kurtosis of normal numbers has variance 24/n; of uniform ones less.
        return bool(
            abs(float(values.mean())) <= sigmas * self.std / n**0.5 + 0.005 * self.std
            and abs(std - self.std) <= sigmas * std_error + 0.005 * self.std
            and abs(found - kurtosis) <= sigmas * (24 / n) ** 0.5 + 0.05
        )


def fitting(laws: Sequence[Law], values: NDArray[np.float64]) -> Law | None:
    """The first law that the values follow, or None."""
    return next((law for law in laws if law.fits(values)), None)


def moments(values: NDArray[np.float64]) -> str:
    """Standard deviation and kurtosis in words, for error messages."""
    std = float(values.std())
    kurtosis = float(np.mean((values - values.mean()) ** 4)) / std**4 if std else float("nan")
    return f"std {std:.4g}, kurtosis {kurtosis:.3g}"
