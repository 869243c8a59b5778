"""Semi-orthogonal matrices by the Haar measure, in float64, from Gaussian ones.

The polar factor of a Gaussian matrix (the paper's route), QR with the signs of R's diagonal fixed, and Cholesky-QR
all give the Haar measure on the Stiefel manifold; the last two are the same matrix up to rounding. Cholesky-QR is
the cheapest, and its departure from orthogonality is about kappa(G)^2 u: we use it where the shape keeps kappa(G)
below 6 (at most half as many rows as columns), and QR otherwise.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def semi_orthogonal(gaussian: Array) -> Array:
    """The semi-orthogonal factor of a Gaussian matrix, distributed by the Haar measure.

    Args:
        gaussian: (rows, columns) independent standard normal numbers, float64.

    Returns:
        Same shape; W W^T = I if rows <= columns, W^T W = I otherwise (to about 1e-14).

    Source: "Conditioned Initialization for Attention", section on the method (W_Q and W_K); Saxe et al. 2013.

    Examples:
        >>> W = semi_orthogonal(np.random.default_rng(0).standard_normal((3, 8)))
        >>> bool(np.allclose(W @ W.T, np.eye(3), atol=1e-13))
        True
    """
    import torch  # not at the top: naming and listing schemes must not wait for torch

    rows, columns = gaussian.shape
    if rows > columns:
        return np.ascontiguousarray(semi_orthogonal(np.ascontiguousarray(gaussian.T)).T)
    matrix = torch.from_numpy(np.ascontiguousarray(gaussian))
    if 2 * rows <= columns:
        lower = torch.linalg.cholesky(matrix @ matrix.T)
        # Inverting the small factor and multiplying once is twice as fast as a wide triangular solve, and as accurate
        # here, where kappa(lower) < 6.
        inverse = torch.linalg.solve_triangular(lower, torch.eye(rows, dtype=torch.float64), upper=False)
        return np.asarray((inverse @ matrix).numpy())
    q, r = torch.linalg.qr(matrix.T)
    return np.asarray((q * r.diagonal().sign()).T.contiguous().numpy())
