"""Semi-orthogonal sampling: orthonormal, Haar, and the same matrix as QR with fixed signs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaone.linalg.stiefel import semi_orthogonal


@given(st.integers(1, 24), st.integers(1, 24), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_orthonormal_to_rounding(rows, columns, seed):
    W = semi_orthogonal(np.random.default_rng(seed).standard_normal((rows, columns)))
    small = W @ W.T if rows <= columns else W.T @ W
    assert W.shape == (rows, columns)
    assert np.abs(small - np.eye(min(rows, columns))).max() < 1e-12


@pytest.mark.parametrize("shape", [(8, 64), (60, 64), (64, 64), (64, 8)])
def test_is_the_qr_factor_with_positive_diagonal(shape):
    G = np.random.default_rng(1).standard_normal(shape)
    wide = G if shape[0] <= shape[1] else G.T
    Q, R = np.linalg.qr(wide.T)
    expected = (Q * np.sign(np.diag(R))).T
    expected = expected if shape[0] <= shape[1] else expected.T
    assert np.allclose(semi_orthogonal(G), expected, atol=1e-9)


def test_haar_moments_by_simulation():
    """E w_ij^2 = 1/D and E w_ij^4 = 3 / (D (D + 2)) for Haar rows; a biased sign or scale would show."""
    D, draws = 6, 4000
    rng = np.random.default_rng(0)
    W = np.stack([semi_orthogonal(rng.standard_normal((2, D))) for _ in range(draws)])
    assert abs(W.mean()) < 4 / np.sqrt(draws * 2 * D * D)
    assert np.allclose((W**2).mean(0), 1 / D, atol=0.012)
    assert abs((W**4).mean() - 3 / (D * (D + 2))) < 0.002
    # Different rows are orthogonal in every draw, but their entries are uncorrelated over draws.
    assert np.abs(np.einsum("nij,nkl->ijkl", W, W)[0, 0, 1, 1] / draws) < 0.02
