"""Slow, obvious oracles in float64: plain attention, its Jacobian by automatic differentiation, LAPACK's values."""

import math

import torch
from torch import Tensor

F64 = torch.float64
EPS = torch.finfo(F64).eps


def naive_attention(X_q, X_kv, W_Q, W_K, W_V, *, biases=(None, None, None), scale=1.0, mask=None) -> Tensor:
    """Attention of one head, written out with loops over queries."""
    q, k, v = X_q @ W_Q.T, X_kv @ W_K.T, X_kv @ W_V.T
    q, k, v = (t if b is None else t + b for t, b in zip((q, k, v), biases, strict=True))
    rows = []
    for i in range(len(X_q)):
        logits = scale * (k @ q[i])
        if mask is not None:
            logits = logits + mask[i]
        weights = torch.exp(logits - logits.max())
        rows.append((weights / weights.sum()) @ v)
    return torch.stack(rows)


def jacrev_jacobian(X_q, X_kv, W_Q, W_K, W_V, **options) -> Tensor:
    """(N d_v, weights) Jacobian of `naive_attention` by reverse-mode automatic differentiation."""

    def attention(*weights):
        return naive_attention(X_q, X_kv, *weights, **options)

    parts = torch.func.jacrev(attention, argnums=(0, 1, 2))(W_Q, W_K, W_V)
    return torch.cat([part.flatten(0, 1).flatten(1) for part in parts], dim=1)


def causal_mask(N: int) -> Tensor:
    mask = torch.zeros(N, N, dtype=F64)
    for i in range(N):
        for j in range(i + 1, N):
            mask[i, j] = -math.inf
    return mask


def problem(N, D, d, *, d_v=None, M=None, D_kv=None, std=None, seed=0, norm="none", biased=False):
    """Tokens, weights, biases and scale of one head; everything float64."""
    g = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, dtype=F64, generator=g)

    def tokens(n, width):
        X = normal(n, width)
        if norm != "none" and width > 2:
            X = (X - X.mean(1, keepdim=True)) / X.std(1, keepdim=True, unbiased=False)
        if norm == "affine":
            X = X * (0.5 + torch.rand(width, dtype=F64, generator=g)) + 0.3 * normal(width)
        return X

    d_v = d if d_v is None else d_v
    X_q = tokens(N, D)
    X_kv = X_q if M is None else tokens(M, D if D_kv is None else D_kv)
    width = X_kv.shape[1]
    std = D**-0.5 if std is None else std
    weights = normal(d, D) * std, normal(d, width) * std, normal(d_v, width) * std
    biases = (normal(d), normal(d), normal(d_v)) if biased else (None, None, None)
    return X_q, X_kv, weights, biases
