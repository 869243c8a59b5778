"""Singular value extremes and their statuses, against exact constructions."""

import numpy as np
import pytest
import torch

from kappaone.linalg import spectra
from kappaone.linalg.lowrank import split
from kappaone.linalg.spectra import singular_values, spectrum
from kappaone.linalg.workers import ordered


def _with_values(values, columns, seed=0):
    rng = np.random.default_rng(seed)
    rows = len(values)
    U = np.linalg.qr(rng.standard_normal((rows, rows)))[0]
    V = np.linalg.qr(rng.standard_normal((columns, rows)))[0]
    return torch.from_numpy((U * values) @ V.T)


def test_known_singular_values():
    values = np.geomspace(100, 0.01, 6)
    found = spectrum(_with_values(values, 9))
    assert found.status == "ok"
    assert found.condition_number == pytest.approx(1e4, rel=1e-10)
    assert found.frobenius_norm == pytest.approx(np.linalg.norm(values), rel=1e-12)
    assert found.stable_rank == pytest.approx((values**2).sum() / values.max() ** 2, rel=1e-12)


def test_statuses():
    assert spectrum(torch.zeros(2, 3)).status == "zero"
    assert spectrum(torch.full((2, 3), float("nan"))).status == "nonfinite"
    deficient = spectrum(_with_values([1.0, 1.0, 0.0], 5))
    assert (deficient.status, deficient.rank) == ("rank_deficient", 2)
    assert deficient.kappa_text().startswith(">=")


def test_fallback_where_the_svd_does_not_converge(monkeypatch):
    """pytorch#28293: the divide-and-conquer SVD can fail; the symmetric embedding must give the same numbers."""
    matrix = _with_values(np.geomspace(10, 1e-3, 5), 7)
    expected = singular_values(matrix)

    def fail(*_):
        raise torch.linalg.LinAlgError("did not converge")

    monkeypatch.setattr(spectra.torch.linalg, "svdvals", fail)
    assert torch.allclose(singular_values(matrix), expected, rtol=1e-9)
    assert torch.allclose(singular_values(matrix.T), expected, rtol=1e-9)


def test_split_is_the_best_low_rank_approximation():
    T = np.random.default_rng(0).standard_normal((9, 7)) + np.eye(9, 7)
    U, S, Vt = np.linalg.svd(T)
    L, R = split(T, 3)
    assert np.allclose(L @ R, (U[:, :3] * S[:3]) @ Vt[:3])
    assert np.allclose(np.linalg.norm(L, axis=0), np.linalg.norm(R, axis=1))


def test_ordered_keeps_order_raises_and_restores_the_thread_count():
    threads = torch.get_num_threads()
    assert list(ordered((lambda i=i: i * i) for i in range(50))) == [i * i for i in range(50)]
    with pytest.raises(ZeroDivisionError):
        list(ordered([lambda: 1, lambda: 1 // 0, lambda: 2]))
    assert torch.get_num_threads() == threads
