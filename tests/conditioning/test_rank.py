import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaone.conditioning import AttentionJacobian, generic_rank
from kappaone.conditioning.rank import token_rank

from .oracles import F64, causal_mask, jacrev_jacobian, problem


def numerical_rank(J: torch.Tensor) -> int:
    values = torch.linalg.svdvals(J)
    return int((values > 1e-11 * values[0]).sum())


@pytest.mark.parametrize(("norm", "r", "c"), [("none", 8, 0), ("plain", 7, 0), ("affine", 8, 1)])
def test_papers_formula_where_tokens_are_many(norm, r, c):
    """min(N d, 3 r d - d^2 - d c) of the paper's notes, by hand."""
    X, _, weights, _ = problem(30, 8, 2, norm=norm)
    J = AttentionJacobian.from_weights(X, *weights)
    assert generic_rank(J) == 3 * r * 2 - 4 - 2 * c == numerical_rank(jacrev_jacobian(X, X, *weights, scale=2**-0.5))


@settings(max_examples=120, deadline=None)
@given(
    N=st.integers(1, 12),
    M=st.none() | st.integers(1, 12),
    D=st.integers(2, 7),
    D_kv=st.integers(1, 7),
    d=st.integers(1, 4),
    d_v=st.integers(1, 5),
    norm=st.sampled_from(["none", "plain", "affine"]),
    biased=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_count_never_falls_short_of_the_numerical_rank(N, M, D, D_kv, d, d_v, norm, biased, seed):
    """The count is an upper limit always; that it is reached is tested with fixed, well-spread draws below."""
    X, Y, weights, biases = problem(N, D, d, d_v=d_v, M=M, D_kv=D_kv, norm=norm, biased=biased, seed=seed, std=0.5)
    J = AttentionJacobian.from_weights(X, *weights, X_kv=None if Y is X else Y, biases=biases, scale=1.0)
    assert numerical_rank(jacrev_jacobian(X, Y, *weights, biases=biases)) <= generic_rank(J)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "shape", [(3, 8, 2, 2), (6, 5, 2, 3), (9, 4, 2, 2), (14, 5, 2, 2), (10, 3, 3, 4), (2, 6, 4, 1)]
)
@pytest.mark.parametrize("norm", ["none", "plain", "affine"])
def test_count_is_reached(shape, norm, causal, biased):
    N, D, d, d_v = shape
    X, _, weights, biases = problem(N, D, d, d_v=d_v, norm=norm, biased=biased, seed=5, std=0.6)
    mask = causal_mask(N) if causal else None
    J = AttentionJacobian.from_weights(X, *weights, biases=biases, scale=1.0, mask=mask)
    assert generic_rank(J) == numerical_rank(jacrev_jacobian(X, X, *weights, biases=biases, mask=mask))


def test_token_rank_sees_through_single_precision():
    X, *_ = problem(20, 8, 2)
    normed = torch.nn.functional.layer_norm(X.float(), (8,))
    assert token_rank(normed.to(F64), torch.finfo(torch.float32).eps) == 7
