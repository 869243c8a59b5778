import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaone.conditioning import AttentionJacobian
from kappaone.errors import MeasureError

from .oracles import EPS, F64, causal_mask, jacrev_jacobian, problem

CASES = {
    "plain": {},
    "biased": {"biased": True},
    "value_dim": {"d_v": 5},
    "more_tokens_than_width": {"N": 13},
    "cross": {"M": 9, "D_kv": 5},
    "layer_norm": {"norm": "plain"},
    "layer_norm_affine": {"norm": "affine"},
}


def both(case, mask=None, scale=0.7):
    options = {"N": 6, "D": 8, "d": 3, "std": 0.5} | case
    X_q, X_kv, weights, biases = problem(**options)
    given_kv = None if X_kv is X_q else X_kv
    J = AttentionJacobian.from_weights(X_q, *weights, X_kv=given_kv, biases=biases, scale=scale, mask=mask)
    return J, jacrev_jacobian(X_q, X_kv, *weights, biases=biases, scale=scale, mask=mask)


@pytest.mark.parametrize("name", CASES)
def test_operator_is_the_automatic_jacobian(name):
    J, expected = both(CASES[name])
    tolerance = {"atol": 100 * EPS * float(torch.linalg.matrix_norm(expected, 2)), "rtol": 0.0}
    assert J.shape == expected.shape
    torch.testing.assert_close(J.to_dense(), expected, **tolerance)
    torch.testing.assert_close(J.matvec(torch.eye(J.columns, dtype=F64)), expected, **tolerance)
    torch.testing.assert_close(J.rmatvec(torch.eye(J.rows, dtype=F64)), expected.T, **tolerance)
    scale = float(torch.linalg.matrix_norm(expected, 2))
    torch.testing.assert_close(J.gram(), expected @ expected.T, atol=100 * EPS * scale**2, rtol=0.0)


@pytest.mark.parametrize("name", ["plain", "biased", "more_tokens_than_width"])
@pytest.mark.parametrize("kind", ["causal", "additive", "padding"])
def test_masks(name, kind):
    N = CASES[name].get("N", 6)
    if kind == "causal":
        mask = causal_mask(N)
    elif kind == "additive":
        mask = torch.randn(N, N, dtype=F64, generator=torch.Generator().manual_seed(7))
    else:
        mask = torch.zeros(N, N, dtype=F64)
        mask[:, -2:] = -math.inf
    J, expected = both(CASES[name], mask)
    torch.testing.assert_close(J.to_dense(), expected, atol=1e-13, rtol=0.0)
    torch.testing.assert_close(J.matvec(torch.eye(J.columns, dtype=F64)), expected, atol=1e-13, rtol=0.0)


def test_causal_flag_is_the_causal_mask():
    X, _, weights, _ = problem(5, 6, 2)
    a = AttentionJacobian.from_weights(X, *weights, causal=True)
    b = AttentionJacobian.from_weights(X, *weights, mask=causal_mask(5))
    assert torch.equal(a.P, b.P)


def test_finite_differences():
    """A second oracle that knows nothing of derivatives."""
    X, _, weights, _ = problem(5, 6, 2, std=0.6)
    J = AttentionJacobian.from_weights(X, *weights, scale=0.9)
    direction = [torch.randn(w.shape, dtype=F64, generator=torch.Generator().manual_seed(3)) for w in weights]

    def output(t):
        moved = [w + t * e for w, e in zip(weights, direction, strict=True)]
        P = torch.softmax(0.9 * (X @ moved[0].T) @ (X @ moved[1].T).T, dim=1)
        return P @ X @ moved[2].T

    h = 1e-4
    expected = (8 * (output(h) - output(-h)) - (output(2 * h) - output(-2 * h))) / (12 * h)
    found = J.matvec(torch.cat([e.flatten() for e in direction])).reshape(expected.shape)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-9)


@settings(max_examples=40, deadline=None)
@given(
    N=st.integers(1, 7),
    M=st.none() | st.integers(1, 7),
    D=st.integers(1, 7),
    D_kv=st.integers(1, 6),
    d=st.integers(1, 4),
    d_v=st.integers(1, 4),
    biased=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_random_shapes(N, M, D, D_kv, d, d_v, biased, seed):
    case = {"N": N, "M": M, "D": D, "D_kv": D_kv, "d": d, "d_v": d_v, "biased": biased, "seed": seed, "std": 0.7}
    J, expected = both(case)
    size = max(1.0, float(torch.linalg.matrix_norm(expected, 2)))
    torch.testing.assert_close(J.to_dense(), expected, atol=200 * EPS * size, rtol=0.0)
    torch.testing.assert_close(J.gram(), expected @ expected.T, atol=200 * EPS * size**2, rtol=0.0)
    v = torch.randn(J.rows, 3, dtype=F64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(J.rmatvec(v), expected.T @ v, atol=1000 * EPS * size, rtol=0.0)
    assert torch.allclose(J.rmatvec(v[:, 0]), J.rmatvec(v)[:, 0], rtol=0, atol=1000 * EPS * size)


def test_reduced_keeps_the_singular_values():
    J, expected = both({"D": 30})
    reduced = J.reduced()
    assert reduced.columns == 3 * 6 * 3
    values = torch.linalg.svdvals(reduced.to_dense())
    torch.testing.assert_close(values[: J.rows], torch.linalg.svdvals(expected), atol=1e-13, rtol=0.0)


def test_a_large_value_bias_changes_nothing_but_the_rounding_of_v():
    X, _, weights, _ = problem(6, 8, 3)
    plain = AttentionJacobian.from_weights(X, *weights)
    bias = torch.full((3,), 1e6, dtype=F64)
    shifted = AttentionJacobian.from_weights(X, *weights, biases=(None, None, bias))
    torch.testing.assert_close(shifted.gram(), plain.gram(), atol=1e-8, rtol=0.0)
    eye = torch.eye(plain.columns, dtype=F64)
    torch.testing.assert_close(shifted.matvec(eye), plain.matvec(eye), atol=1e-8, rtol=0.0)


def test_inputs_and_random_state_are_untouched():
    X, _, weights, _ = problem(4, 6, 2)
    copies = [t.clone() for t in (X, *weights)]
    state = torch.get_rng_state()
    J = AttentionJacobian.from_weights(X, *weights)
    J.gram(), J.to_dense(), J.reduced()
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(copies, (X, *weights), strict=True))


def test_a_fully_masked_query_is_refused():
    X, _, weights, _ = problem(4, 6, 2)
    mask = torch.zeros(4, 4, dtype=F64)
    mask[2] = -math.inf
    with pytest.raises(MeasureError, match="1 of 4 queries have every key masked"):
        AttentionJacobian.from_weights(X, *weights, mask=mask)


def test_wrong_vectors_and_shapes_are_refused():
    X, _, weights, _ = problem(4, 6, 2)
    J = AttentionJacobian.from_weights(X, *weights)
    with pytest.raises(MeasureError, match="length 36"):
        J.matvec(torch.zeros(5, dtype=F64))
    with pytest.raises(MeasureError, match="float64"):
        J.rmatvec(torch.zeros(8))
    with pytest.raises(MeasureError, match="q must be"):
        AttentionJacobian(J.X_q, J.X_kv, J.q[:2], J.k, J.v, J.P, 1.0)
