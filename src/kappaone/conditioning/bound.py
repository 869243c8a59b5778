"""Theorem 3.1's bound on kappa(J) and its parts, labelled for what they are.

The theorem (paper, section 3): kappa(J) <= kappa(X)^3 kappa(Lambda(P)) kappa(W_V) (kappa(W_Q) + kappa(W_K)) +
kappa(X) kappa(P). Every block of Lambda(P), diag(p_i) - p_i p_i^T, maps the all-ones vector to zero. So
kappa(Lambda(P)), and with it the bound, is infinite for every initialization. With kappa+, the smallest nonzero
singular value in place of the smallest, the number is finite, but kappa(AB) <= kappa(A) kappa(B) does not hold for
such factors: B+ is a heuristic, and kappa(J) can exceed it (kept as a test).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kappaone.conditioning.jacobian import AttentionJacobian, float64
from kappaone.errors import MeasureError
from kappaone.linalg.spectra import Spectrum, spectrum

WHY_INFINITE = "every block of Lambda(P) maps the all-ones vector to zero, so kappa(Lambda(P)) is infinite"
# The iteration for the eigenvalues of Lambda(P): convergence is quadratic, so after a step of 1e-11 nothing is left.
SETTLED = 1e-11
STEPS = 100  # about 5 are taken
TINIEST = 1e-300  # quotients of two entries must stay inside double precision
HEURISTIC = "a heuristic, not a bound: kappa(J) can exceed it"


@dataclass(frozen=True)
class AttentionBound:
    """The bound of Theorem 3.1 for one head.

    Attributes:
        value: the theorem's right-hand side: infinity, always; `why_infinite` says why.
        b_plus: the same with kappa+(Lambda) and, for rank-deficient tokens, kappa+(X): `b_plus_label`. NaN where a
            factor has no number.
        kappa_X: of the tokens that the queries read, over their numerical rank.
        kappa_X_kv: of the tokens that keys and values read; the same as kappa_X in self-attention.
        kappa_P: of the attention probabilities; if its status is "rank_deficient" a lower bound, and so is B+.
        kappa_plus_Lambda: largest over smallest nonzero singular value over all row blocks.
        kappa_W_Q: of the head's W_Q.
        kappa_W_K: of its key head's W_K.
        kappa_W_V: of its value head's W_V.
        logits_term: the first summand of B+, through the softmax.
        value_term: the second summand, kappa(X_kv) kappa(P): it holds no weight.
        shares: for each factor, d log B+ / d log(factor): by how many percent B+ falls where that factor falls by
            one percent. "X" counts all its powers.
        log_shares: for each factor of the logits term, its part of log(logits_term); they sum to 1.
        statuses: the status of each matrix's kappa.
        why_infinite: the reason.
        b_plus_label: what B+ is.
    """

    value: float
    b_plus: float
    kappa_X: float
    kappa_X_kv: float
    kappa_P: float
    kappa_plus_Lambda: float
    kappa_W_Q: float
    kappa_W_K: float
    kappa_W_V: float
    logits_term: float
    value_term: float
    shares: dict[str, float]
    log_shares: dict[str, float]
    statuses: dict[str, str]
    why_infinite: str = WHY_INFINITE
    b_plus_label: str = HEURISTIC

    def to_dict(self) -> dict[str, Any]:
        """Plain form; floats may be inf or NaN."""
        return dict(vars(self))


def kappa_plus(matrix: Tensor, data_eps: float = 0.0) -> tuple[float, int]:
    """Largest over smallest nonzero singular value, and the numerical rank.

    Args:
        matrix: (rows, columns).
        data_eps: relative precision of the data (see `AttentionJacobian`); singular values below
            max(8 data_eps, max(shape) eps) sigma_max count as zero.

    Returns:
        kappa+ (NaN for a zero matrix) and the rank.
    """
    values = torch.linalg.svdvals(float64(matrix))
    eps = torch.finfo(torch.float64).eps
    nonzero = values[values > max(8 * data_eps, max(matrix.shape) * eps) * values[0]]
    return (float(nonzero[0] / nonzero[-1]) if len(nonzero) else math.nan), len(nonzero)


def lambda_extremes(P: Tensor) -> tuple[Tensor, Tensor]:
    """Largest and smallest nonzero eigenvalue of diag(p) - p p^T for each row p of P.

    The nonzero eigenvalues are the roots of sum_j p_j / (p_j - lambda) = 0, one between each two neighbours among the
    sorted entries (a rank-one update of a diagonal matrix). Only the outermost two are computed, all rows at once, with
    relative accuracy where a dense eigensolver would lose everything below eps.

    Args:
        P: (N, M), rows sum to 1, entries >= 0; zero entries (masked keys) add only zero eigenvalues, entries below
            1e-300 count as 1e-300.

    Returns:
        Two (N,) tensors, NaN for rows with a single nonzero entry, whose block is zero.

    Examples:
        >>> top, bottom = lambda_extremes(torch.full((1, 4), 0.25, dtype=torch.float64))
        >>> round(float(top[0]), 12), round(float(bottom[0]), 12)
        (0.25, 0.25)
    """
    p = float64(P).sort(dim=1).values  # ascending, zeros first
    p = torch.where(p > 0, p.clamp_min(TINIEST), 0.0)
    N, M = p.shape
    count = (p > 0).sum(dim=1)
    several = count >= 2
    top, bottom = p.new_full((2, N), math.nan)
    if not bool(several.any()):
        return top, bottom
    p, first = p[several], (M - count[several])[:, None]  # index of the smallest nonzero entry
    low, second = p.gather(1, first), p.gather(1, first + 1)
    above = torch.arange(M, device=p.device) > first
    t, _ = _outer_root(low, torch.where(above, p, 0.0), torch.where(above, p - second, 0.0), second - low)
    bottom[several] = (low + t * (second - low))[:, 0]
    high, next_ = p[:, -1:], p[:, -2:-1]
    _, u = _outer_root(high, p[:, :-1], next_ - p[:, :-1], high - next_)
    top[several] = (next_ + u * (high - next_))[:, 0]  # from the lower end: the root may be close to it
    return top, bottom


def _outer_root(outer: Tensor, others: Tensor, beyond: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """The root between an outermost pole and its neighbour, as fractions of the gap from one and from the other.

    With t the distance from the outermost pole and u = 1 - t that from its neighbour, in gaps, and E_j the distance of
    pole j beyond the neighbour, the equation is outer / t = sum_j p_j / (E_j + u). Each step replaces the right side
    by r + s / u with its value and slope at the last u and solves the quadratic: the classic iteration for such
    equations (Bunch, Nielsen, Sorensen 1978), exact where two poles decide, otherwise quadratic. r, s, t and u are
    sums, products and quotients of numbers >= 0, so nothing cancels however small they are.

    Args:
        outer: (n, 1) weight of the outermost pole.
        others: (n, m) weights of the other poles, 0 for none.
        beyond: (n, m) distance of each other pole from the neighbour, >= 0, and 0 for the neighbour.
        gap: (n, 1) distance of the outermost two poles; 0 where they coincide.

    Returns:
        t and u, each (n, 1).
    """
    unit = gap.clamp_min(1e-310)  # where two poles coincide all others are infinitely far away, in gaps
    # The weights' common factor is free; the nearest pole's weight sets it, so that squares do not underflow.
    size = torch.maximum(outer, torch.where(beyond == 0, others, 0.0).amax(dim=1, keepdim=True))
    a, w, E = outer / size, others / size, (beyond / unit).clamp_max(1e300)
    t = u = torch.full_like(outer, 0.5)
    for _ in range(STEPS):
        ratio = w / (E + u)
        r = (ratio * (E / (E + u))).sum(dim=1, keepdim=True)
        s = (ratio * (u / (E + u)) * u).sum(dim=1, keepdim=True)
        root = ((a - r).square() + s * (2 * (a + r) + s)).sqrt()
        both = a + r + s + root
        # root - (a - r) without cancellation where a > r.
        rest = torch.where(a > r, s * (2 * (a + r) + s) / (root + (a - r).abs()), root + (r - a)) + s
        t_next, u_next = 2 * a / both, rest / both
        done = bool(((t_next - t).abs() <= SETTLED * t_next).all() and ((u_next - u).abs() <= SETTLED * u_next).all())
        t, u = t_next, u_next
        if done:
            break
    else:
        raise MeasureError(
            f"the extreme eigenvalues of diag(p) - p p^T did not settle in {STEPS} steps",
            "report the row of probabilities with which this happens",
        )
    return t, u


def kappa_plus_lambda(P: Tensor) -> float:
    """kappa+ of Lambda(P): largest over smallest nonzero eigenvalue over the blocks diag(p_i) - p_i p_i^T.

    Args:
        P: (N, M) attention probabilities.

    Returns:
        kappa+, or NaN if every row attends to a single key (Lambda(P) is zero).

    Raises:
        MeasureError: if P is not a matrix of probabilities.
    """
    if P.ndim != 2 or bool((P < 0).any()) or not torch.allclose(P.sum(dim=1), P.new_ones(len(P)), atol=1e-3):
        raise MeasureError(
            f"expected rows of probabilities (N, M); found shape {tuple(P.shape)}, entries from {float(P.min()):.3g}, row "
            f"sums from {float(P.sum(-1).min()):.3g} to {float(P.sum(-1).max()):.3g}",
            "pass softmax(logits, dim=-1) of one head",
        )
    top, bottom = lambda_extremes(P)
    there = ~torch.isnan(top)
    return float(top[there].max() / bottom[there].min()) if bool(there.any()) else math.nan


def attention_bound(J: AttentionJacobian, W_Q: Tensor, W_K: Tensor, W_V: Tensor) -> AttentionBound:
    """Theorem 3.1's bound for one head, with its parts. The bound is infinite; B+ is a heuristic.

    With different tokens for queries and keys the factors are those of Prop. 3.1: kappa(X_q) kappa(X_kv)^2 and
    kappa(X_kv) kappa(P).

    Args:
        J: the head's Jacobian, from which X and P are taken.
        W_Q: (d, D_q) block of the head.
        W_K: (d, D_kv) block of its key head.
        W_V: (d_v, D_kv) block of its value head.

    Returns:
        The parts.

    Examples:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> X, W = torch.randn(6, 8, generator=g), torch.randn(3, 4, 8, generator=g) / 8**0.5
        >>> bound = attention_bound(AttentionJacobian.from_weights(X, *W), *W)
        >>> bound.value, bound.b_plus_label
        (inf, 'a heuristic, not a bound: kappa(J) can exceed it')
    """
    X_q = kappa_plus(J.X_q, J.data_eps)
    X_kv = X_q if J.X_kv is J.X_q else kappa_plus(J.X_kv, J.data_eps)
    weights = spectrum(W_Q), spectrum(W_K), spectrum(W_V)
    return bound_from_parts((J.X_q, J.X_kv), (X_q, X_kv), weights, spectrum(J.P), kappa_plus_lambda(J.P))


def bound_from_parts(
    tokens: tuple[Tensor, Tensor],
    ranks: tuple[tuple[float, int], tuple[float, int]],
    weights: tuple[Spectrum, Spectrum, Spectrum],
    P: Spectrum,
    L: float,
) -> AttentionBound:
    """`attention_bound` from parts measured before.

    Args:
        tokens: those that the queries read and those that keys and values read; one tensor in self-attention.
        ranks: kappa+ and rank of each (`kappa_plus`).
        weights: spectra of W_Q, W_K and W_V.
        P: spectrum of the probabilities.
        L: kappa+ of Lambda(P) (`kappa_plus_lambda`).
    """
    (q, k, v), ((X, rank), (Y, rank_kv)) = weights, ranks
    both = q.condition_number + k.condition_number
    logits_term = X * Y**2 * L * v.condition_number * both
    value_term = Y * P.condition_number
    total = logits_term + value_term
    a, b = logits_term / total, value_term / total
    same = tokens[0] is tokens[1]
    shares = {
        "X": 3 * a + b if same else a,
        "X_kv": 0.0 if same else 2 * a + b,
        "Lambda": a,
        "W_V": a,
        "W_Q": a * q.condition_number / both,
        "W_K": a * k.condition_number / both,
        "P": b,
    }
    logs = {
        "X": math.log(X * Y**2),
        "Lambda": math.log(L),
        "W_V": math.log(v.condition_number),
        "W_Q + W_K": math.log(both),
    }
    whole = sum(logs.values())
    statuses = {
        "X": "ok" if rank == min(tokens[0].shape) else f"rank {rank} of {min(tokens[0].shape)}: kappa+",
        "X_kv": "ok" if rank_kv == min(tokens[1].shape) else f"rank {rank_kv} of {min(tokens[1].shape)}: kappa+",
        "P": P.status,
        "Lambda": "singular: kappa+" if L == L else "zero",
        "W_Q": q.status,
        "W_K": k.status,
        "W_V": v.status,
    }
    return AttentionBound(
        value=math.inf,
        b_plus=total,
        kappa_X=X,
        kappa_X_kv=Y,
        kappa_P=P.condition_number,
        kappa_plus_Lambda=L,
        kappa_W_Q=q.condition_number,
        kappa_W_K=k.condition_number,
        kappa_W_V=v.condition_number,
        logits_term=logits_term,
        value_term=value_term,
        shares=shares,
        log_shares={name: part / whole if whole else math.nan for name, part in logs.items()},
        statuses=statuses,
    )


def kronecker_jacobian(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, *, scale: float = 1.0) -> Tensor:
    """Prop. 3.1's explicit matrices, in the paper's own convention, for small sizes: tests and teaching.

    [(W_V^T X^T (x) I_N) Lambda(P) (X W_K (x) X),  (W_V^T X^T (x) I_N) Lambda(P) (X (x) X W_Q) T,  I_d (x) P X], with vec
    stacking columns, T vec(W) = vec(W^T), and Lambda(P) the N^2 x N^2 operator whose part for row i is
    diag(p_i) - p_i p_i^T. The first two carry the factor `scale`.

    Args:
        X: (N, D) tokens.
        W_Q: (D, d), multiplying tokens from the right: the transpose of a block of this package.
        W_K: (D, d).
        W_V: (D, d_v).
        scale: factor on the logits; the paper's formulas have 1.

    Returns:
        (N d_v, 2 D d + D d_v): d vec(A) / d (vec W_Q, vec W_K, vec W_V).
    """
    X, W_Q, W_K, W_V = (float64(t) for t in (X, W_Q, W_K, W_V))
    N, D = X.shape
    d = W_Q.shape[1]
    P = torch.softmax(scale * (X @ W_Q) @ (X @ W_K).mT, dim=-1)
    blocks = torch.diag_embed(P) - P[:, :, None] * P[:, None, :]  # (row i, m, n)
    # vec stacks columns: entry (i, m) of an N x N matrix is at m N + i.
    eye = torch.eye(N, dtype=torch.float64, device=X.device)
    Lambda = torch.einsum("imn,ij->minj", blocks, eye).reshape(N * N, N * N)
    left = scale * torch.kron((X @ W_V).mT.contiguous(), eye) @ Lambda
    order = torch.arange(D * d, device=X.device).reshape(D, d).mT.reshape(-1)  # position of vec(W^T) in vec(W)
    T = torch.zeros(D * d, D * d, dtype=torch.float64, device=X.device)
    # vec(W)[a D + r] = W[r, a]; vec(W^T)[r d + a] = W[r, a].
    T[order, torch.arange(D * d, device=X.device)] = 1.0
    from_q = left @ torch.kron(X @ W_K, X)
    from_k = left @ torch.kron(X, X @ W_Q) @ T
    from_v = torch.kron(torch.eye(W_V.shape[1], dtype=torch.float64, device=X.device), P @ X)
    return torch.cat([from_q, from_k, from_v], dim=1)
