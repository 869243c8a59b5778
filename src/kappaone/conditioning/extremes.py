"""kappa(J), exactly for moderate sizes: both ends of the attention Jacobian's spectrum, with an error estimate.

Four methods, chosen by shape and size and checked by residuals:

* "product": with as many value dimensions as keys, d_v >= M, and full row rank, sigma_min(J) = sigma_min(P X_kv): an
  SVD of a tokens x tokens matrix. J J^T = (P X_kv X_kv^T P^T) (x) I + (parts from W_Q and W_K, which are positive
  semidefinite) gives sigma_min(J) >= sigma_min(P X_kv); and some a != 0 has V a constant over the M keys, so that
  L_i V a = 0, M_i^T a = 0 and B_i^T a = 0 for every query i: at u (x) a, u the last left singular vector of P X_kv,
  nothing but the first part is left, and the two are equal.
* "gram": the structured Gram matrix G = J J^T gives, by Cholesky, a preconditioner for its small end; block iteration
  (locally optimal, preconditioned) finds the vectors of both ends, and every Rayleigh-Ritz step is a small SVD of
  J^T U, every residual a product with J. So the error is O(kappa u), u the unit roundoff, where eigenvalues of G would
  err by kappa^2 u. That no singular value lies below the reported one is checked by a shifted Cholesky factorization
  (Sylvester's law of inertia), with the measured rounding error of G as margin.
* "qr": where "gram" cannot vouch for its result (kappa beyond about 1e7): the same iteration with the triangular factor
  of a QR factorization of J^T, formed in its reduced coordinates. About five times slower. Its random start is the
  only reason to trust that no singular value lies below.
* "dense": LAPACK gives all singular values of J in its reduced coordinates. For small sizes and for a generic rank
  below the number of rows.

Anything that cannot be computed to this standard has a status that says so, never a number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from kappaone.conditioning.jacobian import AttentionJacobian
from kappaone.conditioning.rank import generic_rank
from kappaone.linalg.spectra import singular_values

JacobianStatus = Literal["ok", "rank_deficient", "bounded", "zero_operator", "too_large", "not_supported", "nonfinite"]

Method = Literal["product", "gram", "qr", "dense", "none"]

UNIT = torch.finfo(torch.float64).eps / 2
DENSE_ROWS = 384  # below, LAPACK on the dense J takes a fraction of a second
DENSE_DEFICIENT = 2048  # rows up to which all singular values are computed (half a minute on one core)
DENSE_BYTES = 1_200_000_000  # the dense J and its factor at most
BLOCK = 4
LANCZOS = 400  # most steps for the largest singular value; 20 to 200 are usual
_NAN = math.nan


@dataclass(frozen=True)
class JacobianCondition:
    """kappa of one head's attention Jacobian.

    Attributes:
        status: "ok": full row rank, kappa = sigma_1 / sigma_rows. "rank_deficient": the generic rank r is below the
            number of rows, kappa = sigma_1 / sigma_r. "bounded": sigma_r is lost in rounding; `condition_number` is a
            lower bound. "zero_operator", "nonfinite", "too_large", "not_supported": no number; see `note`.
        condition_number: kappa, or NaN.
        sigma_max: largest singular value, or NaN.
        sigma_min: the r-th singular value, or NaN.
        rows: N d_v.
        columns: number of weights.
        generic_rank: r, or 0 where it was not needed.
        numerical_rank: singular values above max(shape) eps sigma_1 of the reduced J; an upper limit where `method`
            is "qr" and the status "bounded".
        relative_error: estimated relative error of kappa, from residuals and kappa times the unit roundoff; or NaN.
        method: "product", "gram", "qr", "dense" or "none".
        note: what else a reader must know.
    """

    status: JacobianStatus
    rows: int
    columns: int
    condition_number: float = _NAN
    sigma_max: float = _NAN
    sigma_min: float = _NAN
    generic_rank: int = 0
    numerical_rank: int = 0
    relative_error: float = _NAN
    method: Method = "none"
    note: str = ""

    def kappa_text(self) -> str:
        """Kappa for people: "4.5e+05", ">= 1.4e+12", or the status."""
        if self.status == "bounded":
            return f">= {self.condition_number:.2g}"
        return f"{self.condition_number:.3g}" if math.isfinite(self.condition_number) else self.status

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be NaN."""
        return dict(vars(self))


def condition_number(J: AttentionJacobian, *, max_rows: int = 4096) -> JacobianCondition:
    """Condition number of the attention Jacobian over its generic rank.

    Source: paper, section 3 (the quantity that Theorem 3.1 bounds). The paper assumes full row rank; beyond it kappa
    is sigma_1 / sigma_r with r the generic rank (`generic_rank`), so that it does not depend on a tolerance.

    Args:
        J: the Jacobian of one head.
        max_rows: limit on N d_v; above it the status is "too_large". Memory is about 5 max_rows^2 doubles.

    Returns:
        A `JacobianCondition`. Nothing is raised for a matrix that has no condition number.

    Examples:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> X, W = torch.randn(6, 8, generator=g), torch.randn(3, 4, 8, generator=g) / 8**0.5
        >>> J = AttentionJacobian.from_weights(X, *W)
        >>> result, dense = condition_number(J), torch.linalg.svdvals(J.to_dense())
        >>> result.status, bool(abs(result.sigma_min / dense[-1] - 1) < 1e-12)
        ('ok', True)
    """
    rows, columns = J.shape
    if not J.is_finite():
        return JacobianCondition("nonfinite", rows, columns, note="tokens, q, k, v or probabilities hold NaN or inf")
    if rows > max_rows:
        return JacobianCondition("too_large", rows, columns, note=f"N d_v = {rows} rows; the limit is {max_rows}")
    reduced = J.reduced()
    if not bool(_row_norms_squared(reduced).any()):
        return JacobianCondition("zero_operator", rows, columns, sigma_max=0.0, sigma_min=0.0, note="J is zero")
    rank = generic_rank(reduced)
    note = ""
    if rows > DENSE_ROWS and rank == rows and J.v.shape[1] >= J.v.shape[0]:
        found = _by_product(reduced, columns)
        if found is not None:
            return found
    if rows > DENSE_ROWS and rank == rows:
        found = _by_gram(reduced, columns)
        if found is not None:
            return found
        note = "kappa squared times the unit roundoff is near 1: the Gram matrix does not resolve sigma_min"
    if rank < rows and min(reduced.shape) > DENSE_DEFICIENT:
        limit = f"generic rank {rank} of {rows} rows needs all singular values; the limit is {DENSE_DEFICIENT} rows"
        return JacobianCondition("too_large", rows, columns, generic_rank=rank, note=limit)
    need = 3 * 8 * reduced.rows * reduced.columns
    if need > DENSE_BYTES:
        limit = f"forming J takes {need / 1e9:.1f} GB; the limit is {DENSE_BYTES / 1e9:.1f} GB"
        return JacobianCondition(
            "too_large", rows, columns, generic_rank=rank, note=f"{note}; {limit}" if note else limit
        )
    if rows > DENSE_ROWS and rank == rows:
        found = _by_factor(reduced, columns, note)
        if found is not None:
            return found
    return _by_dense(reduced, columns, rank, note)


def _row_norms_squared(J: AttentionJacobian) -> Tensor:
    """The diagonal of J J^T, (N, d_v)."""
    M, B, PX = J.row_factors()
    from_q = M.square().sum(dim=2) * J.X_q.square().sum(dim=1)[:, None]
    from_k = B.square().sum(dim=2) * J.q.square().sum(dim=1)[:, None]
    return from_q + from_k + PX.square().sum(dim=1)[:, None]


def _by_dense(J: AttentionJacobian, columns: int, rank: int, note: str) -> JacobianCondition:
    dense = J.to_dense()
    if (
        dense.shape[1] > 1.2 * dense.shape[0]
    ):  # the triangular factor of J^T has the same values, in a third of the time
        dense = torch.linalg.qr(dense.mT, mode="r").R
    values = singular_values(dense)
    if len(values) < J.rows:  # fewer weights than outputs, after the reduction
        values = torch.cat([values, values.new_zeros(J.rows - len(values))])
    top = float(values[0])
    floor = max(J.shape) * 2 * UNIT
    measured = int((values > floor * top).sum())
    beyond = int((values > max(floor, max(J.shape) * J.data_eps) * top).sum())
    if beyond > rank:
        # The count is about generic weights; should a special mask or weight escape it, the measurement decides.
        note = f"{note}; " if note else ""
        note += f"the measured rank {beyond} exceeds the generic count {rank} and is used"
        rank = beyond
    if measured < rank:
        lost = f"numerical rank {measured} of generic rank {rank}: kappa is a lower bound"
        return JacobianCondition(
            "bounded",
            J.rows,
            columns,
            1 / floor,
            top,
            float(values[rank - 1]),
            rank,
            measured,
            _NAN,
            "dense",
            f"{note}; {lost}" if note else lost,
        )
    kappa = top / float(values[rank - 1])
    error = 4 * math.sqrt(J.rows) * UNIT * kappa
    status: JacobianStatus = "ok" if rank == J.rows else "rank_deficient"
    return JacobianCondition(
        status, J.rows, columns, kappa, top, float(values[rank - 1]), rank, measured, error, "dense", note
    )


def _by_product(J: AttentionJacobian, columns: int) -> JacobianCondition | None:
    """Both ends for d_v >= M and full row rank, or None where sigma_min is lost in rounding.

    The SVD of P X_kv errs by a few u sigma_max(P X_kv), and so does forming the product: kappa u relatively, as
    everywhere here.
    """
    values = singular_values(J.P @ J.X_kv)
    top = _top(J)
    sigma = float(values[-1])
    if len(values) < J.P.shape[0] or sigma <= 2 * max(J.shape) * UNIT * top.sigma:
        return None
    error = 4 * math.sqrt(len(values)) * UNIT * float(values[0]) / sigma
    return _result(J, columns, top, _End(sigma, error), "product", "")


def _by_gram(J: AttentionJacobian, columns: int) -> JacobianCondition | None:
    """Both ends through the Gram matrix, or None where it cannot vouch for the small one."""
    gram = J.gram()
    factor, failed = torch.linalg.cholesky_ex(gram)
    if int(failed):
        return None
    top = _top(J, gram)
    margin = 4 * _gram_error(J, gram) + 16 * UNIT * top.sigma**2
    bottom = _bottom(J, factor, top.sigma)
    del factor
    # No singular value below: gram - shift I is positive definite, with what rounding can hide as margin.
    shift = (1 - 1e-3) * bottom.sigma**2 - margin
    if not shift > 0.5 * bottom.sigma**2:
        return None
    gram.diagonal().sub_(shift)
    if int(torch.linalg.cholesky_ex(gram).info):
        return None
    return _result(J, columns, top, bottom, "gram", "")


def _by_factor(J: AttentionJacobian, columns: int, note: str) -> JacobianCondition | None:
    """Both ends through the triangular factor of J^T, whose error is kappa u; None where even that is not enough."""
    factor = torch.linalg.qr(J.to_dense().mT, mode="r").R.mT.contiguous()
    if not bool((factor.diagonal() != 0).all()):
        return None  # exactly singular: the triangular solves would divide by zero
    top = _top(J, factor @ factor.mT)
    # The largest singular values of the inverse factor: relatively accurate, with the triangular solves' kappa u.
    inverse = _iterate(
        lambda U: torch.linalg.solve_triangular(factor, U, upper=False),
        lambda W: torch.linalg.solve_triangular(factor.mT, W, upper=True),
        _start(J, BLOCK),
        None,
        goal=1e-13,
        limit=100,
    )
    bottom = _End(1 / inverse.sigma, inverse.relative_error)
    floor = 2 * max(J.shape) * UNIT
    if bottom.sigma <= floor * top.sigma:
        lost = "sigma_min is lost in rounding: kappa is a lower bound"
        return JacobianCondition(
            "bounded",
            J.rows,
            columns,
            1 / floor,
            top.sigma,
            bottom.sigma,
            J.rows,
            J.rows - 1,
            _NAN,
            "qr",
            lost,
        )
    return _result(J, columns, top, bottom, "qr", note)


def _result(
    J: AttentionJacobian, columns: int, top: _End, bottom: _End, method: Method, note: str
) -> JacobianCondition | None:
    if not bottom.sigma > 0:
        return None
    kappa = top.sigma / bottom.sigma
    error = bottom.relative_error + top.relative_error + 4 * UNIT * kappa
    if not error <= max(1e-10, 1000 * UNIT * kappa):
        return None
    return JacobianCondition("ok", J.rows, columns, kappa, top.sigma, bottom.sigma, J.rows, J.rows, error, method, note)


def _start(J: AttentionJacobian, width: int) -> Tensor:
    # A private generator with a fixed seed: equal results for equal input, and no global state moves.
    generator = torch.Generator().manual_seed(20260)
    block = torch.randn(J.rows, width, dtype=torch.float64, generator=generator)
    start: Tensor = torch.linalg.qr(block.to(J.P.device)).Q
    return start


def _gram_error(J: AttentionJacobian, gram: Tensor) -> float:
    """Measured norm of gram - J J^T, by power iteration on a random block."""
    block = _start(J, BLOCK)
    norm = 0.0
    for _ in range(4):
        image = gram @ block - J.matvec(J.rmatvec(block))
        norm = max(norm, float(torch.linalg.matrix_norm(image, 2)))
        if norm == 0.0:
            break
        block = torch.linalg.qr(image).Q
    return norm


@dataclass(frozen=True)
class _End:
    sigma: float
    relative_error: float  # of sigma, from the residual


def _top(J: AttentionJacobian, gram: Tensor | None = None) -> _End:
    """Largest singular value, to about 1e-13.

    Near-uniform attention makes the d_v largest singular values nearly equal (P X (x) I has them d_v-fold). A Krylov
    space from one vector sees such a cluster as few values, where block iteration would have to resolve all of it.
    What does not settle within LANCZOS steps is left to all eigenvalues of the Gram matrix.
    """
    found = _lanczos(J, goal=1e-13, limit=min(LANCZOS, *J.shape))
    if found.relative_error <= 1e-13:
        return found
    gram = J.gram() if gram is None else gram
    return _End(math.sqrt(float(torch.linalg.eigvalsh(gram)[-1])), 4 * math.sqrt(J.rows) * UNIT)


def _lanczos(J: AttentionJacobian, *, goal: float, limit: int) -> _End:
    """Largest singular value by Golub-Kahan bidiagonalization with full reorthogonalization.

    After k steps J^T U = V L^T and J V = U L + beta u_next e_k^T with a bidiagonal L (k, k), so that for a singular
    triplet (p, sigma, q) of L the vectors U p and V q fit J^T exactly, and J but for a residual of norm beta |q_k|.
    """
    U = torch.empty(J.rows, limit + 1, dtype=torch.float64, device=J.P.device)
    V = torch.empty(J.columns, limit, dtype=torch.float64, device=J.P.device)
    L = torch.zeros(limit + 1, limit, dtype=torch.float64)
    U[:, 0] = _start(J, 1)[:, 0]
    best = _End(_NAN, math.inf)
    for k in range(limit):
        v = J.rmatvec(U[:, k])
        for _ in range(2):  # once is not enough when the vector is short
            v -= V[:, :k] @ (V[:, :k].mT @ v)
        L[k, k] = alpha = float(torch.linalg.vector_norm(v))
        if alpha == 0.0:
            break
        V[:, k] = v / alpha
        u = J.matvec(V[:, k])
        for _ in range(2):
            u -= U[:, : k + 1] @ (U[:, : k + 1].mT @ u)
        L[k + 1, k] = beta = float(torch.linalg.vector_norm(u))
        if k % 8 == 7 or k == limit - 1 or beta == 0.0:
            _, sigma, right = torch.linalg.svd(L[: k + 1, : k + 1])
            top = float(sigma[0])
            best = _End(top, 0.5 * beta * abs(float(right[0, -1])) / top)
            if best.relative_error <= goal:
                break
        U[:, k + 1] = u / beta
    return best


def _bottom(J: AttentionJacobian, factor: Tensor, sigma_max: float) -> _End:
    """Smallest singular value, by iteration preconditioned with a lower triangular factor of about J J^T."""
    start = _start(J, BLOCK)
    for _ in range(2):
        start = torch.linalg.qr(torch.cholesky_solve(start, factor)).Q
    return _iterate(J.rmatvec, J.matvec, start, factor, goal=2 * UNIT * sigma_max, limit=60)


def _iterate(
    transposed: Callable[[Tensor], Tensor],
    forward: Callable[[Tensor], Tensor],
    block: Tensor,
    factor: Tensor | None,
    *,
    goal: float,
    limit: int,
) -> _End:
    """Largest (no factor) or smallest (factor) singular value of an operator J by locally optimal block iteration.

    Args:
        transposed: U -> J^T U.
        forward: W -> J W.
        block: (rows, width), orthonormal start.
        factor: lower triangular, factor factor^T about J J^T: the preconditioner of the small end; None for the large.
        goal: stop at this error of sigma: relative for the largest, absolute for the smallest.
        limit: most steps.
    """
    width = block.shape[1]
    basis = block
    patience = 12 if factor is None else 4
    best = _End(_NAN, math.inf)
    stale = 0
    for _ in range(limit):
        # Rayleigh-Ritz by an SVD of J^T (basis), never of its Gram matrix: sigma keeps its relative digits.
        left, values, right = torch.linalg.svd(transposed(basis), full_matrices=False)
        if factor is not None:
            left, values, right = left.flip(1), values.flip(0), right.flip(0)
        w, sigma, mix = left[:, :width], values[:width], right[:width].mT
        if float(sigma[0]) == 0.0:
            return _End(0.0, math.inf)
        u = basis @ mix
        residual = forward(w) - u * sigma  # (rows, width)
        found = _End(float(sigma[0]), _ritz_error(float(sigma[0]), residual[:, :1], factor))
        stale = 0 if found.relative_error < 0.5 * best.relative_error else stale + 1
        if found.relative_error < best.relative_error:
            best = found
        if best.relative_error <= (goal if factor is None else goal / best.sigma) or stale >= patience:
            break
        step = residual if factor is None else torch.cholesky_solve(residual, factor)
        # What the new vectors owe to the part of the basis that is not the old block: the conjugate direction.
        previous = basis[:, width:] @ mix[width:]
        basis = torch.linalg.qr(torch.cat([u, _unit(step), _unit(previous)], dim=1)).Q
    return best


def _ritz_error(sigma: float, residual: Tensor, factor: Tensor | None) -> float:
    """Bound on the relative distance of sigma to a singular value, from the residual J w - sigma u, w = J^T u / sigma.

    With G = J J^T, lambda = sigma^2 and r = G u - lambda u = sigma (J w - sigma u), some eigenvalue lambda_k has
    |lambda_k - lambda| <= |r|, and |lambda_k - lambda| <= sqrt(lambda_k) |r| in the norm of G^-1 (expand u in
    eigenvectors). The second is the one for the small end: rounding in J^T u is u sigma_1 in every direction, which J
    turns into a residual of relative size kappa^2 u along the large ones, where it does no harm and the norm of
    G^-1 gives it little weight; what remains is kappa u. Half of either for sigma itself.
    """
    if factor is None:
        return 0.5 * float(torch.linalg.vector_norm(residual)) / sigma
    dual = torch.linalg.solve_triangular(factor, residual, upper=False)
    return 0.5 * float(torch.linalg.vector_norm(dual))


def _unit(columns: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(columns, dim=0)
    kept: Tensor = columns[:, norms > 0] / norms[norms > 0]
    return kept
