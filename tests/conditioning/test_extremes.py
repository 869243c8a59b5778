import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kappaone.conditioning import AttentionJacobian, condition_number, extremes

from .oracles import EPS, F64, causal_mask, jacrev_jacobian, problem


def make(case, *, scale=1.0, mask=None):
    X, Y, weights, biases = problem(**case)
    J = AttentionJacobian.from_weights(X, *weights, X_kv=None if Y is X else Y, biases=biases, scale=scale, mask=mask)
    return J, jacrev_jacobian(X, Y, *weights, biases=biases, scale=scale, mask=mask)


def check(result, dense, rank=None):
    values = torch.linalg.svdvals(dense)
    kappa = float(values[0] / values[(rank or len(dense)) - 1])
    # C kappa eps, C = 50 sqrt(rows): both sides err by backward errors of that kind.
    tolerance = 50 * math.sqrt(len(dense)) * EPS * kappa
    assert abs(result.condition_number / kappa - 1) < tolerance, (result, kappa)
    assert abs(result.sigma_max / float(values[0]) - 1) < 50 * math.sqrt(len(dense)) * EPS
    assert result.relative_error < 10 * tolerance


@pytest.mark.parametrize(
    "case",
    [
        {"N": 6, "D": 10, "d": 4},
        {"N": 6, "D": 10, "d": 4, "biased": True},
        {"N": 6, "D": 10, "d": 4, "norm": "affine"},
        {"N": 8, "D": 12, "d": 4, "std": 0.02},
    ],
)
@pytest.mark.parametrize("causal", [False, True])
def test_kappa_is_that_of_the_automatic_jacobian(case, causal):
    J, dense = make(case, mask=causal_mask(case["N"]) if causal else None)
    result = condition_number(J)
    assert result.status == "ok"
    assert result.generic_rank == result.rows == len(dense)
    check(result, dense)


def test_cross_attention():
    J, dense = make({"N": 5, "D": 10, "d": 3, "d_v": 4, "M": 7, "D_kv": 8})
    result = condition_number(J)
    assert result.status == "ok"
    check(result, dense)


@settings(max_examples=30, deadline=None)
@given(
    N=st.integers(1, 7),
    D=st.integers(7, 10),
    d=st.integers(1, 4),
    std=st.floats(0.02, 1.0),
    seed=st.integers(0, 10**6),
)
def test_random_shapes(N, D, d, std, seed):
    J, dense = make({"N": N, "D": D, "d": d, "std": std, "seed": seed})
    result = condition_number(J)
    if result.status == "ok":
        check(result, dense)
    else:
        assert result.status == "bounded"
        assert float(torch.linalg.cond(dense)) > 0.01 * result.condition_number


@pytest.mark.parametrize("std", [0.2, 0.03, 0.003])
@pytest.mark.parametrize("method", ["_by_gram", "_by_factor"])
def test_iterations_agree_with_lapack(method, std):
    """The methods for large sizes, at a size where LAPACK on the automatic Jacobian can judge them."""
    J, dense = make({"N": 16, "D": 40, "d": 8, "std": std, "norm": "plain"}, scale=8**-0.5)
    extra = () if method == "_by_gram" else ("",)
    result = getattr(extremes, method)(J.reduced(), J.columns, *extra)
    assert result is not None
    assert result.method == {"_by_gram": "gram", "_by_factor": "qr"}[method]
    check(result, dense)


def nearly_parallel(N=10, D=24, d=5, spread=1e-4, seed=0):
    """Tokens that differ little: kappa about 1e9 and more."""
    g = torch.Generator().manual_seed(seed)
    X = torch.randn(1, D, dtype=F64, generator=g) + spread * torch.randn(N, D, dtype=F64, generator=g)
    weights = [torch.randn(d, D, dtype=F64, generator=g) * D**-0.5 for _ in range(3)]
    return X, weights


def test_gram_declines_where_it_cannot_resolve_and_the_factor_takes_over(monkeypatch):
    X, weights = nearly_parallel(spread=3e-3)
    J = AttentionJacobian.from_weights(X, *weights, scale=1.0)
    dense = jacrev_jacobian(X, X, *weights)
    values = torch.linalg.svdvals(dense)
    kappa = float(values[0] / values[-1])
    assert 1e7 < kappa < 1e12
    assert extremes._by_gram(J.reduced(), J.columns) is None
    monkeypatch.setattr(extremes, "DENSE_ROWS", 10)
    result = condition_number(J)
    assert (result.status, result.method) == ("ok", "qr")
    assert abs(result.condition_number / kappa - 1) < 100 * EPS * kappa * math.sqrt(len(dense))
    assert "Gram" in result.note


def test_beyond_double_precision_is_a_lower_bound():
    X, weights = nearly_parallel(spread=0.0)
    X[1:] = X[0]
    J = AttentionJacobian.from_weights(X[:3], *weights, scale=1.0)
    J = replace(J, X_q=J.X_q + 1e-18, X_kv=J.X_kv + 1e-18)
    result = condition_number(J)
    assert result.status in ("bounded", "rank_deficient")
    assert result.numerical_rank <= 5


def test_zero_weights_are_bounded_not_infinite():
    X, _, _, _ = problem(6, 8, 2)
    zero, some = torch.zeros(2, 8, dtype=F64), torch.ones(2, 8, dtype=F64)
    result = condition_number(AttentionJacobian.from_weights(X, zero, zero, some))
    assert result.status == "bounded"
    assert result.condition_number > 1e12
    assert result.numerical_rank == 2 < result.generic_rank
    assert result.kappa_text().startswith(">= ")


@pytest.mark.parametrize("norm", ["none", "plain", "affine"])
def test_beyond_full_rank_kappa_is_over_the_generic_rank(norm):
    J, dense = make({"N": 30, "D": 8, "d": 2, "norm": norm})
    result = condition_number(J)
    rank = int((torch.linalg.svdvals(dense) > 1e-11 * torch.linalg.svdvals(dense)[0]).sum())
    assert (result.status, result.generic_rank) == ("rank_deficient", rank)
    check(result, dense, rank)


def test_a_mask_that_the_count_does_not_know_is_measured():
    """Two queries that see the same single key: their rows of J are equal."""
    X, _, weights, _ = problem(5, 12, 3)
    mask = torch.zeros(5, 5, dtype=F64)
    mask[:2, 1:] = -math.inf
    result = condition_number(AttentionJacobian.from_weights(X, *weights, mask=mask))
    assert result.status == "bounded"
    assert result.numerical_rank == 12


def test_statuses():
    J, _ = make({"N": 4, "D": 6, "d": 2})
    assert condition_number(J, max_rows=7).status == "too_large"
    assert "8 rows; the limit is 7" in condition_number(J, max_rows=7).note
    assert condition_number(replace(J, q=J.q * math.nan)).status == "nonfinite"
    zero = torch.zeros_like(J.X_q)
    assert condition_number(replace(J, X_q=zero, X_kv=zero)).status == "zero_operator"
    assert math.isnan(condition_number(replace(J, X_q=zero, X_kv=zero)).condition_number)


def test_single_precision_tokens_do_not_turn_noise_into_rank():
    """Layer norm in float32: the rows sum to zero only to 1e-7, and N > D needs the generic rank of D - 1."""
    X, _, weights, _ = problem(30, 8, 2)
    normed = torch.nn.functional.layer_norm(X.float(), (8,))
    result = condition_number(AttentionJacobian.from_weights(normed, *weights))
    exact = X - X.mean(1, keepdim=True)
    exact = exact / (exact.square().mean(1, keepdim=True) + 1e-5).sqrt()
    reference = condition_number(AttentionJacobian.from_weights(exact, *weights))
    assert result.generic_rank == reference.generic_rank == 3 * 7 * 2 - 4
    assert result.condition_number == pytest.approx(reference.condition_number, rel=1e-4)


def test_random_state_stays_and_results_repeat(monkeypatch):
    monkeypatch.setattr(extremes, "DENSE_ROWS", 4)
    J, _ = make({"N": 8, "D": 12, "d": 3})
    state = torch.get_rng_state()
    first, second = condition_number(J), condition_number(J)
    assert first == second
    assert first.method == "gram"
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.slow
def test_many_rows_against_lanczos():
    """N = 80, D = 768, d = 40 (3,200 rows): ARPACK on the inverse of the dense Gram matrix, refined by |J^T u|."""
    linalg = pytest.importorskip("scipy.sparse.linalg")
    import scipy.linalg

    X, _, weights, _ = problem(80, 768, 40, std=0.02, norm="plain")
    J = AttentionJacobian.from_weights(X, *weights)
    result = condition_number(J)
    assert (result.status, result.method) == ("ok", "gram")
    dense = J.reduced().to_dense().numpy()
    top = linalg.svds(dense, k=1, return_singular_vectors=False, random_state=0)[0]
    factor = scipy.linalg.qr(dense.T, mode="r", check_finite=False, overwrite_a=True)[0][:3200]
    solve = scipy.linalg.solve_triangular
    inverse = linalg.LinearOperator(
        (3200, 3200), matvec=lambda b: solve(factor, solve(factor, b, trans="T")), dtype=float
    )
    bottom = linalg.eigsh(inverse, k=1, which="LM", return_eigenvectors=False, v0=factor[0] * 0 + 1.0)[0] ** -0.5
    kappa = top / bottom
    assert abs(result.condition_number / kappa - 1) < 50 * math.sqrt(3200) * EPS * kappa


@pytest.mark.parametrize("std", [0.5, 0.05])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [{"N": 6, "D": 10, "d": 6}, {"N": 5, "D": 9, "d": 3, "d_v": 8, "biased": True}])
def test_as_many_value_dimensions_as_keys(monkeypatch, shape, causal, std):
    """sigma_min(J) = sigma_min(P X): against the automatic Jacobian."""
    monkeypatch.setattr(extremes, "DENSE_ROWS", 4)
    J, dense = make({**shape, "std": std}, mask=causal_mask(shape["N"]) if causal else None)
    result = condition_number(J)
    assert (result.status, result.method) == ("ok", "product")
    check(result, dense)


def test_as_many_value_dimensions_as_keys_in_cross_attention(monkeypatch):
    monkeypatch.setattr(extremes, "DENSE_ROWS", 4)
    J, dense = make({"N": 5, "D": 10, "d": 3, "d_v": 7, "M": 7, "D_kv": 8})
    result = condition_number(J)
    assert (result.status, result.method) == ("ok", "product")
    check(result, dense)


def test_one_value_dimension_fewer_is_not_enough(monkeypatch):
    """With d_v = M - 1 the smallest singular value lies above that of P X, and the method must not be used."""
    J, dense = make({"N": 6, "D": 10, "d": 5, "std": 0.5})
    below = float(torch.linalg.svdvals(J.P @ J.X_kv)[-1])
    assert float(torch.linalg.svdvals(dense)[-1]) > 1.001 * below
    monkeypatch.setattr(extremes, "DENSE_ROWS", 4)
    result = condition_number(J)
    assert result.method == "gram"
    check(result, dense)


@pytest.mark.slow
def test_the_product_agrees_with_the_triangular_factor_at_vit_b32_size():
    X, _, weights, _ = problem(50, 768, 64, std=0.02, norm="plain")
    J = AttentionJacobian.from_weights(X, *weights)
    result, other = condition_number(J), extremes._by_factor(J.reduced(), J.columns, "")
    assert (result.method, other.method) == ("product", "qr")
    assert abs(result.condition_number / other.condition_number - 1) < 1000 * EPS * result.condition_number


@pytest.mark.parametrize("steps", [400, 2])
def test_largest_singular_value_in_a_cluster(monkeypatch, steps):
    """Nearly uniform attention: the d_v largest values agree to 1e-9. Two steps are too few: the Gram matrix decides."""
    J, dense = make({"N": 12, "D": 40, "d": 8, "std": 1e-4}, scale=8**-0.5)
    values = torch.linalg.svdvals(dense)
    assert float(values[7] / values[0]) > 1 - 1e-9
    monkeypatch.setattr(extremes, "LANCZOS", steps)
    asked = []
    monkeypatch.setattr(AttentionJacobian, "gram", lambda J, gram=AttentionJacobian.gram: (asked.append(1), gram(J))[1])
    top = extremes._top(J.reduced())
    assert abs(top.sigma / float(values[0]) - 1) < 50 * EPS * math.sqrt(len(dense))
    assert bool(asked) == (steps == 2)
