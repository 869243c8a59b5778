import math

import mpmath
import pytest
import torch

from kappaone.conditioning import (
    AttentionJacobian,
    attention_bound,
    condition_number,
    kappa_plus_lambda,
    kronecker_jacobian,
)
from kappaone.conditioning.bound import lambda_extremes
from kappaone.errors import MeasureError

from .oracles import F64, jacrev_jacobian, problem


def paper_attention(X, W_Q, W_K, W_V, scale):
    """The paper's A(X) with its own convention: weights multiply from the right."""
    return torch.softmax(scale * X @ W_Q @ W_K.T @ X.T, dim=1) @ X @ W_V


@pytest.mark.parametrize("scale", [1.0, 0.4])
def test_prop_3_1_against_finite_differences(scale):
    X, _, blocks, _ = problem(6, 10, 4, std=0.3)
    weights = [w.T.contiguous() for w in blocks]
    J = kronecker_jacobian(X, *weights, scale=scale)
    h, column = 1e-4, 0
    for index, W in enumerate(weights):
        for a in range(W.shape[1]):  # vec stacks columns
            for r in range(W.shape[0]):
                values = []
                for step in (-2, -1, 1, 2):
                    moved = [w.clone() for w in weights]
                    moved[index][r, a] += step * h
                    values.append(paper_attention(X, *moved, scale).T.flatten())
                slope = (8 * (values[2] - values[1]) - (values[3] - values[0])) / (12 * h)
                torch.testing.assert_close(J[:, column], slope, atol=2e-10, rtol=1e-8)
                column += 1
    assert column == J.shape[1]


def test_prop_3_1_is_our_operator_in_another_order():
    X, _, weights, _ = problem(5, 7, 3, std=0.4)
    kron = kronecker_jacobian(X, *(w.T for w in weights), scale=0.5)
    ours = AttentionJacobian.from_weights(X, *weights, scale=0.5)
    # vec stacks columns of A (N, d) and of W (D, d): W's columns are our rows, so only A is transposed.
    rows = torch.arange(15).reshape(5, 3).T.flatten()
    torch.testing.assert_close(ours.to_dense()[rows], kron, atol=1e-13, rtol=0.0)


@pytest.mark.parametrize("sharpness", [0.01, 1.0, 6.0, 20.0])
@pytest.mark.parametrize("causal", [False, True])
def test_lambda_extremes_to_fifty_digits(sharpness, causal):
    """Relative accuracy where a double-precision eigensolver has none: mpmath diagonalizes the blocks."""
    N = 6
    logits = sharpness * torch.randn(N, N, dtype=F64, generator=torch.Generator().manual_seed(2))
    if causal:
        logits = logits.masked_fill(torch.ones(N, N).triu(1).bool(), -math.inf)
    P = torch.softmax(logits, dim=1)
    top, bottom = lambda_extremes(P)
    with mpmath.workdps(60):
        for i in range(N):
            p = [mpmath.mpf(float(x)) for x in P[i] if x > 0]
            if len(p) == 1:
                assert math.isnan(top[i])
                assert math.isnan(bottom[i])
                continue
            total = sum(p)
            p = [x / total for x in p]
            block = mpmath.matrix(len(p))
            for a in range(len(p)):
                for b in range(len(p)):
                    block[a, b] = (p[a] if a == b else 0) - p[a] * p[b]
            values = sorted(mpmath.eigsy(block, eigvals_only=True))
            assert float(top[i]) == pytest.approx(float(values[-1]), rel=1e-11)
            assert float(bottom[i]) == pytest.approx(float(values[1]), rel=1e-11)


def test_lambda_extremes_with_equal_entries():
    P = torch.tensor([[0.25, 0.25, 0.25, 0.25], [0.1, 0.1, 0.4, 0.4], [0.5, 0.5, 0.0, 0.0]], dtype=F64)
    top, bottom = lambda_extremes(P)
    for i in range(3):
        p = P[i][P[i] > 0]
        values = torch.linalg.eigvalsh(torch.diag(p) - torch.outer(p, p))
        assert float(top[i]) == pytest.approx(float(values[-1]), rel=1e-12)
        assert float(bottom[i]) == pytest.approx(float(values[1]), rel=1e-12)
    assert kappa_plus_lambda(P) == pytest.approx(float(top.max() / bottom.min()))


def test_what_is_no_matrix_of_probabilities_is_refused():
    with pytest.raises(MeasureError, match="rows of probabilities"):
        kappa_plus_lambda(torch.ones(3, 3))


def test_bound_is_infinite_and_its_parts_are_those_of_the_theorem():
    X, _, weights, _ = problem(6, 10, 4, std=0.4)
    J = AttentionJacobian.from_weights(X, *weights)
    bound = attention_bound(J, *weights)
    cond = [float(torch.linalg.cond(m)) for m in (X, J.P, *weights)]
    blocks = [torch.diag(p) - torch.outer(p, p) for p in J.P]
    assert min(float(torch.linalg.svdvals(b)[-1]) for b in blocks) < 1e-16  # why it is infinite
    values = torch.cat([torch.linalg.svdvals(b)[:-1] for b in blocks])
    plus = float(values.max() / values.min())
    expected = cond[0] ** 3 * plus * cond[4] * (cond[2] + cond[3]) + cond[0] * cond[1]
    assert bound.value == math.inf
    assert "all-ones vector" in bound.why_infinite
    assert "heuristic" in bound.b_plus_label
    assert bound.b_plus == pytest.approx(expected, rel=1e-9)
    assert sum(bound.log_shares.values()) == pytest.approx(1.0)


def test_shares_are_the_elasticities_of_b_plus():
    X, _, weights, _ = problem(6, 10, 4, std=0.4)
    b = attention_bound(AttentionJacobian.from_weights(X, *weights), *weights)

    def b_plus(X=1.0, Lambda=1.0, V=1.0, Q=1.0, P=1.0):
        x = b.kappa_X * X
        weight = b.kappa_W_V * V * (b.kappa_W_Q * Q + b.kappa_W_K)
        return x**3 * b.kappa_plus_Lambda * Lambda * weight + x * b.kappa_P * P

    h = 1e-6
    for name, key in [("X", "X"), ("Lambda", "Lambda"), ("V", "W_V"), ("Q", "W_Q"), ("P", "P")]:
        slope = (math.log(b_plus(**{name: 1 + h})) - math.log(b_plus(**{name: 1 - h}))) / (2 * h)
        assert b.shares[key] == pytest.approx(slope, abs=1e-7)


def test_b_plus_is_no_bound():
    """The counterexample: W_V = lambda I moves kappa(J) by two orders and B+ not at all."""
    N = 8
    g = torch.Generator().manual_seed(0)

    def orthogonal():
        return torch.linalg.qr(torch.randn(N, N, dtype=F64, generator=g)).Q

    X, W_Q, W_K = orthogonal() * math.sqrt(N), orthogonal(), orthogonal()
    kappas, bounds = [], []
    for scale in (1.0, 10.0, 100.0):
        W_V = scale * torch.eye(N, dtype=F64)
        J = AttentionJacobian.from_weights(X, W_Q, W_K, W_V)
        dense = jacrev_jacobian(X, X, W_Q, W_K, W_V, scale=N**-0.5)
        kappas.append(condition_number(J).condition_number)
        assert kappas[-1] == pytest.approx(float(torch.linalg.cond(dense)), rel=1e-9)
        bounds.append(attention_bound(J, W_Q, W_K, W_V).b_plus)
    assert bounds == pytest.approx([bounds[0]] * 3, rel=1e-9)
    assert kappas[2] > 50 * kappas[0]
    assert kappas[2] > bounds[2]


@pytest.mark.parametrize("ratio", [1.0, 0.3, 1e-9, 1e-40, 1e-200])
def test_lambda_of_two_entries(ratio):
    """One nonzero eigenvalue, (p1^2 + p2^2 with the sign) = 2 p1 p2 / (p1 + p2), in full relative accuracy."""
    p = torch.tensor([1.0, ratio], dtype=F64) / (1.0 + ratio)
    top, bottom = lambda_extremes(p[None])
    expected = 2 * float(p[0]) * float(p[1]) / float(p.sum())
    assert float(top) == pytest.approx(expected, rel=1e-14, abs=0.0)
    assert float(bottom) == pytest.approx(expected, rel=1e-14, abs=0.0)


def test_lambda_extremes_of_very_sharp_and_very_flat_rows():
    """Entries from 1 down to what a double cannot hold, coincident ones, and differences of 1e-9: it settles."""
    g = torch.Generator().manual_seed(7)
    for sharpness in (1e-9, 30.0, 300.0, 3000.0):
        P = torch.softmax(sharpness * torch.randn(40, 60, dtype=F64, generator=g), dim=1)
        top, bottom = lambda_extremes(P)
        p = P.sort(dim=1).values
        several = (P > 0).sum(dim=1) > 1
        assert bool(torch.isnan(top[~several]).all())
        least = torch.where(P > 0, P, math.inf).amin(dim=1)
        assert bool((top[several] <= p[several, -1]).all())
        assert bool((top[several] >= p[several, -2] * (1 - 1e-15)).all())
        assert bool((bottom[several] >= least[several] * (1 - 1e-15)).all())
