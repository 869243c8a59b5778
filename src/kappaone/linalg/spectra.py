"""Singular value extremes of small matrices, with a status where a bare number would mislead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

SpectrumStatus = Literal["ok", "rank_deficient", "zero", "nonfinite"]


@dataclass(frozen=True)
class Spectrum:
    """Extremes of the singular values of one matrix.

    Attributes:
        sigma_max: largest singular value.
        sigma_min: smallest of the min(rows, columns) singular values.
        condition_number: their ratio; where `status` is "rank_deficient" it is only a lower bound, 1/(n eps).
        frobenius_norm: root of the sum of squares.
        stable_rank: (frobenius_norm / sigma_max)^2.
        rank: numerical rank, singular values above n eps sigma_max.
        status: "ok", or why the condition number is not a plain number.
    """

    sigma_max: float
    sigma_min: float
    condition_number: float
    frobenius_norm: float
    stable_rank: float
    rank: int
    status: SpectrumStatus = "ok"

    def kappa_text(self) -> str:
        """The condition number as a person should read it.

        Examples:
            >>> spectrum(torch.eye(2)).kappa_text(), spectrum(torch.ones(2, 2)).kappa_text()
            ('1', '>= 2e+15')
        """
        if self.status == "ok":
            return f"{self.condition_number:.4g}"
        return f">= {self.condition_number:.0e}" if self.status == "rank_deficient" else self.status

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        return dict(vars(self))


def singular_values(matrix: Tensor) -> Tensor:
    """Singular values in float64, falling back where the SVD does not converge.

    The divide-and-conquer SVD can fail on repeated or widely spread singular values, which is what we have
    (pytorch#28293). The fallback is the symmetric eigenvalue problem of [[0, W], [W^T, 0]], whose eigenvalues are
    the singular values with both signs: as accurate as an SVD, slower.

    Args:
        matrix: (rows, columns), finite.

    Returns:
        min(rows, columns) values, descending.
    """
    matrix = matrix.detach().to("cpu", torch.float64)
    values: Tensor
    if matrix.shape[0] < matrix.shape[1]:
        matrix = matrix.T  # LAPACK reads columns: tall is several times faster than wide
    try:
        values = torch.linalg.svdvals(matrix)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]  # not in its __all__
        rows, columns = matrix.shape
        both = torch.zeros(rows + columns, rows + columns, dtype=torch.float64)
        both[:rows, rows:] = matrix
        both[rows:, :rows] = matrix.T
        values = torch.linalg.eigvalsh(both).flip(0)[: min(rows, columns)].clamp(min=0)
    return values


def spectrum(matrix: Tensor) -> Spectrum:
    """Singular value extremes of one matrix, computed in float64.

    Examples:
        >>> spectrum(torch.diag(torch.tensor([4.0, 2.0]))).condition_number
        2.0
    """
    if not bool(torch.isfinite(matrix).all()):
        nan = float("nan")
        return Spectrum(nan, nan, nan, nan, nan, 0, "nonfinite")
    values = singular_values(matrix)
    top, bottom = float(values[0]), float(values[-1])
    norm = float(torch.linalg.vector_norm(values))
    if top == 0:
        return Spectrum(0.0, 0.0, float("nan"), 0.0, float("nan"), 0, "zero")
    limit = 1 / (max(matrix.shape) * torch.finfo(torch.float64).eps)
    rank = int((values * limit > top).sum())
    deficient = rank < len(values)
    return Spectrum(
        top,
        bottom,
        limit if deficient else top / bottom,
        norm,
        (norm / top) ** 2,
        rank,
        "rank_deficient" if deficient else "ok",
    )
