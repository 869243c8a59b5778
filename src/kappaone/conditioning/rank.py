"""The generic rank of the attention Jacobian: what its null spaces leave, counted, never a tolerance on J.

The paper's Theorem 3.1 assumes full row rank. What limits the rank, whatever the weights:

* The logits see W_Q and W_K only through C = W_Q^T W_K, a matrix of rank at most d between the r dimensions that the
  tokens span: W_Q -> M W_Q, W_K -> M^{-T} W_K changes nothing.
* A constant added to a row of logits changes no softmax row: d null directions if the all-ones vector is in the column
  space of X_kv (always when there are no more tokens than the width; with a layer norm's affine part, u = 1/gamma).
* A row of probabilities over m unmasked keys has m - 1 degrees of freedom, and P X_kv stays in the tokens' span.

For self-attention with more tokens than r > d this is min(N d, 3 r d - d^2 - d c), c = 1 if some nonzero direction is
constant over the tokens. The count also covers few tokens, cross attention, d_v != d and a query bias that is not
in the span of the tokens. Checked in the tests against the numerical rank over random shapes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kappaone.conditioning.jacobian import AttentionJacobian


def token_rank(X: Tensor, data_eps: float) -> int:
    """Numerical rank of tokens known to a relative precision of data_eps.

    Args:
        X: (tokens, width), float64.
        data_eps: machine epsilon of the dtype in which X was computed. A layer norm without affine part makes every
            row sum to zero only up to that.

    Returns:
        Number of singular values above max(8 data_eps, max(tokens, width) eps) sigma_max, eps of float64. Rounding of
        independent entries perturbs singular values by less than data_eps sigma_max; 8 is a margin.
    """
    values = torch.linalg.svdvals(X)
    return int((values > _tolerance(X, data_eps) * values[0]).sum())


def _tolerance(X: Tensor, data_eps: float) -> float:
    return max(8 * data_eps, max(X.shape) * torch.finfo(torch.float64).eps)


def _in_column_space(columns: Tensor, X: Tensor, data_eps: float) -> bool:
    """Whether each column lies in the column space of X, to the precision of the data."""
    left, values, _ = torch.linalg.svd(X, full_matrices=False)
    left = left[:, values > _tolerance(X, data_eps) * values[0]]
    outside = torch.linalg.matrix_norm(columns - left @ (left.mT @ columns))
    return bool(float(outside) <= 32 * max(X.shape) ** 0.5 * data_eps * float(torch.linalg.matrix_norm(columns)))


def generic_rank(J: AttentionJacobian) -> int:
    """Rank of J for generic weights and tokens of these shapes, this mask and this rank of X.

    Args:
        J: the Jacobian (reduced or not: the count is the same).

    Returns:
        The generic rank, at most the number of rows.

    Examples:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> X, W = torch.randn(40, 8, generator=g), torch.randn(3, 2, 8, generator=g)
        >>> generic_rank(AttentionJacobian.from_weights(X, *W))  # 3 * 8 * 2 - 2 * 2, below 40 * 2 rows
        44
    """
    (N, d), d_v = J.q.shape, J.v.shape[1]
    seen = (J.P > 0).any(dim=0)  # a key that every query masks is no token of this problem
    X_kv = J.X_kv[seen]
    M = len(X_kv)
    r_q = token_rank(J.X_q, J.data_eps)
    r_kv = token_rank(X_kv, J.data_eps)
    if r_kv == 0:
        return 0
    if r_q == 0 or not _in_column_space(J.q, J.X_q, J.data_eps):
        r_q += 1  # a query bias acts as a further token coordinate that is 1 everywhere
    ones = torch.ones(M, 1, dtype=torch.float64, device=J.X_kv.device)
    c = int(_in_column_space(ones, X_kv, J.data_eps))
    # The logits are X_q C X_kv^T with C = W_Q^T W_K: a matrix (r_q, r_kv) of rank at most d ...
    rank = min(d, r_q, r_kv)
    logits = rank * (r_q + r_kv - rank)
    # ... of which the softmax does not see a constant per row.
    logits -= c * (r_q if rank == r_kv else rank)
    # P X_kv moves by these, within the simplex over the unmasked keys of each row.
    freedoms = ((J.P > 0).sum(dim=1) - 1).clamp_min(0)
    mixed = min(N, r_kv)  # rank of P X_kv
    if d_v < r_kv:
        softmax = min(logits, int(freedoms.clamp_max(d_v).sum()))
        return min(N * d_v, softmax + mixed * d_v)
    softmax = min(logits, int(freedoms.clamp_max(r_kv - c).sum()))
    inside = min(N * (r_kv - c), softmax + mixed * (r_kv - c))
    return min(N * d_v, inside + mixed * (d_v - r_kv + c))
