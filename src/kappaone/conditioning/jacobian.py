"""The Jacobian of one attention head with respect to its weights, through its structure.

A = softmax(scale q k^T + mask) v with q = X_q W_Q^T (+ bias), k = X_kv W_K^T (+ bias), v = X_kv W_V^T (+ bias), where the
W are blocks of the house's convention (head_dim, width): outputs are rows. With L_i = diag(p_i) - p_i p_i^T for row i
of the probabilities,

    dA_i = M_i dW_Q x_i  +  B_i dW_K^T q_i  +  dW_V X_kv^T p_i,    M_i = scale V^T L_i K,    B_i = scale V^T L_i X_kv,

so the Gram matrix J J^T has the blocks (x_i.x_j) M_i M_j^T + (q_i.q_j) B_i B_j^T + (P X_kv X_kv^T P^T)_ij I. Source:
paper, section 3 (Prop. 3.1), in the form of a product with the row-wise softmax derivative instead of Kronecker
matrices. Biases are constants here, already inside q, k and v.

One head is one query head with its own W_Q and the W_K, W_V of its key/value head. Under grouped-query attention
these two are shared by the group; the Jacobian of a whole group couples its heads and is not this one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from kappaone.errors import MeasureError


def float64(tensor: Tensor) -> Tensor:
    """A detached float64 tensor on the same device, or on the CPU where the device has no float64 (MPS)."""
    data = tensor.detach()
    return (data.cpu() if data.device.type == "mps" else data).to(torch.float64)


@dataclass(frozen=True, eq=False)
class AttentionJacobian:
    """J = d vec(A) / d (W_Q, W_K, W_V) of one head as a linear operator; all tensors float64, on one device.

    Rows: vec(A), A of shape (N, d_v), row by row: index i d_v + a. Columns: the entries of W_Q (d, D_q), then W_K
    (d, D_kv), then W_V (d_v, D_kv), each row by row, as `tensor.flatten()` gives them. (The paper stacks columns;
    this permutes rows and columns of J and leaves its singular values.)

    Attributes:
        X_q: tokens that the queries read, (N, D_q).
        X_kv: tokens that keys and values read, (M, D_kv).
        q: queries as they enter the softmax, before the scale, biases included, (N, d).
        k: keys, (M, d).
        v: values, (M, d_v).
        P: attention probabilities, (N, M); 0 where masked.
        scale: the factor on q.k.
        data_eps: relative precision of the data from which this was made (machine epsilon of the model's dtype):
            what is smaller, relative to the largest singular value of X, counts as zero in the rank of X.

    Examples:
        >>> import torch
        >>> g = torch.Generator().manual_seed(0)
        >>> X, W = torch.randn(5, 8, generator=g), torch.randn(3, 2, 8, generator=g) / 3
        >>> J = AttentionJacobian.from_weights(X, *W, causal=True)
        >>> J.shape
        (10, 48)
        >>> torch.allclose(J.to_dense() @ J.to_dense().T, J.gram())
        True
    """

    X_q: Tensor
    X_kv: Tensor
    q: Tensor
    k: Tensor
    v: Tensor
    P: Tensor
    scale: float
    data_eps: float = field(default=torch.finfo(torch.float64).eps)

    def __post_init__(self) -> None:
        N, M = self.P.shape if self.P.ndim == 2 else (-1, -1)
        expected = {
            "X_q": (N, self.X_q.shape[-1]),
            "X_kv": (M, self.X_kv.shape[-1]),
            "q": (N, self.q.shape[-1]),
            "k": (M, self.q.shape[-1]),
            "v": (M, self.v.shape[-1]),
        }
        for name, shape in expected.items():
            found = getattr(self, name)
            if tuple(found.shape) != shape or found.dtype != torch.float64:
                raise MeasureError(
                    f"{name} must be float64 of shape {shape} for probabilities of shape {tuple(self.P.shape)}; found "
                    f"{found.dtype} {tuple(found.shape)}",
                    "build it with AttentionJacobian.from_heads or .from_weights",
                )

    @classmethod
    def from_heads(
        cls,
        X_q: Tensor,
        X_kv: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        scale: float,
        mask: Tensor | None = None,
        data_eps: float | None = None,
    ) -> AttentionJacobian:
        """From what enters the softmax of one head.

        Args:
            X_q: tokens of the queries, (N, D_q), any floating dtype.
            X_kv: tokens of keys and values, (M, D_kv).
            q: queries (N, d), linear (or affine) in X_q.
            k: keys (M, d), linear (or affine) in X_kv.
            v: values (M, d_v), linear (or affine) in X_kv.
            scale: the factor on q.k.
            mask: additive, broadcastable to (N, M), -inf where masked; or None.
            data_eps: see the class; machine epsilon of X_q's dtype if None. Half-precision data are taken as exact.

        Raises:
            MeasureError: if a query has all keys masked (its softmax is not defined), or shapes do not fit.
        """
        eps = torch.finfo(X_q.dtype).eps if data_eps is None else data_eps
        if eps > torch.finfo(torch.float32).eps:
            eps = torch.finfo(torch.float64).eps  # half precision: no rank could be told from noise; taken as exact
        same = X_kv is X_q
        X_q, X_kv, q, k, v = (float64(t) for t in (X_q, X_kv, q, k, v))
        X_kv = X_q if same else X_kv
        logits = scale * (q @ k.mT)
        if mask is not None:
            logits = logits + float64(mask).to(logits.device).broadcast_to(logits.shape)
            empty = (logits == -math.inf).all(dim=-1)
            if bool(empty.any()):
                raise MeasureError(
                    f"{int(empty.sum())} of {len(empty)} queries have every key masked: their softmax is not defined",
                    "leave these rows out of X_q, q and mask",
                )
        return cls(X_q, X_kv, q, k, v, torch.softmax(logits, dim=-1), float(scale), eps)

    @classmethod
    def from_weights(
        cls,
        X: Tensor,
        W_Q: Tensor,
        W_K: Tensor,
        W_V: Tensor,
        *,
        X_kv: Tensor | None = None,
        biases: tuple[Tensor | None, Tensor | None, Tensor | None] = (None, None, None),
        scale: float | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        data_eps: float | None = None,
    ) -> AttentionJacobian:
        """From tokens and one head's weight blocks, outputs as rows.

        Args:
            X: tokens of the queries, (N, D_q).
            W_Q: (d, D_q); the transpose of the paper's.
            W_K: (d, D_kv).
            W_V: (d_v, D_kv).
            X_kv: tokens of keys and values, (M, D_kv); X if None.
            biases: of q (d,), k (d,) and v (d_v,), or None.
            scale: factor on q.k; 1/sqrt(d) if None. The paper's own formulas have 1.
            mask: additive, broadcastable to (N, M).
            causal: mask key j for query i where j > i, on top of `mask`.
            data_eps: machine epsilon of X's dtype if None.
        """
        keys = X if X_kv is None else X_kv
        eps = torch.finfo(X.dtype).eps if data_eps is None else data_eps
        q, k, v = (
            float64(tokens) @ float64(W).mT + (0.0 if bias is None else float64(bias))
            for tokens, W, bias in zip((X, keys, keys), (W_Q, W_K, W_V), biases, strict=True)
        )
        if causal:
            future = torch.full((len(q), len(k)), -math.inf, dtype=torch.float64, device=q.device).triu(1)
            mask = future if mask is None else float64(mask).to(q.device) + future
        used = 1.0 / math.sqrt(W_Q.shape[0]) if scale is None else scale
        return cls.from_heads(X, keys, q, k, v, scale=used, mask=mask, data_eps=eps)

    @property
    def rows(self) -> int:
        """N d_v, the number of outputs."""
        return self.P.shape[0] * self.v.shape[1]

    @property
    def columns(self) -> int:
        """Number of weights, d D_q + d D_kv + d_v D_kv."""
        return self.q.shape[1] * (self.X_q.shape[1] + self.X_kv.shape[1]) + self.v.shape[1] * self.X_kv.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self.rows, self.columns

    def is_finite(self) -> bool:
        """Whether all the data are finite."""
        return all(bool(torch.isfinite(t).all()) for t in (self.X_q, self.X_kv, self.q, self.k, self.v, self.P))

    def _centred(self) -> tuple[Tensor, Tensor]:
        # Each row of dP sums to zero, and softmax does not see a row's mean: a constant in k or v drops out. Taken out
        # first, it does not enter the sums; what it cost in rounding k and v themselves is lost already.
        return self.k - self.k.mean(dim=0), self.v - self.v.mean(dim=0)

    def matvec(self, directions: Tensor) -> Tensor:
        """J times weight directions.

        Args:
            directions: (columns,) or (columns, t), float64.

        Returns:
            (rows,) or (rows, t).
        """
        self._expect(directions, self.columns, "columns")
        flat = directions if directions.ndim == 2 else directions[:, None]
        d, D_q, D_kv = self.q.shape[1], self.X_q.shape[1], self.X_kv.shape[1]
        dW_Q, dW_K, dW_V = torch.split(flat, [d * D_q, d * D_kv, self.v.shape[1] * D_kv])
        t = flat.shape[1]
        k, v = self._centred()
        # (d, D, t) -> (t, D, d): one batched product for each direction.
        dq = self.X_q @ dW_Q.reshape(d, D_q, t).permute(2, 1, 0)  # (t, N, d)
        dk = self.X_kv @ dW_K.reshape(d, D_kv, t).permute(2, 1, 0)  # (t, M, d)
        dv = self.X_kv @ dW_V.reshape(-1, D_kv, t).permute(2, 1, 0)  # (t, M, d_v)
        dS = self.scale * (dq @ k.mT + self.q @ dk.mT)  # (t, N, M)
        dP = self.P * (dS - (self.P * dS).sum(dim=-1, keepdim=True))
        out = (dP @ v + self.P @ dv).permute(1, 2, 0).reshape(self.rows, t)
        return out if directions.ndim == 2 else out[:, 0]

    def rmatvec(self, outputs: Tensor) -> Tensor:
        """J^T times output directions.

        Args:
            outputs: (rows,) or (rows, t), float64.

        Returns:
            (columns,) or (columns, t).
        """
        self._expect(outputs, self.rows, "rows")
        flat = outputs if outputs.ndim == 2 else outputs[:, None]
        t = flat.shape[1]
        k, v = self._centred()
        G = flat.reshape(self.P.shape[0], self.v.shape[1], t).permute(2, 0, 1)  # (t, N, d_v)
        dP = G @ v.mT  # (t, N, M)
        dS = self.scale * self.P * (dP - (self.P * dP).sum(dim=-1, keepdim=True))
        W_Q = (dS @ k).mT @ self.X_q  # (t, d, D_q)
        W_K = (dS.mT @ self.q).mT @ self.X_kv  # (t, d, D_kv)
        W_V = (self.P.mT @ G).mT @ self.X_kv  # (t, d_v, D_kv)
        out = torch.cat([part.reshape(t, -1) for part in (W_Q, W_K, W_V)], dim=1).mT
        return out if outputs.ndim == 2 else out[:, 0]

    def row_factors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The blocks of the closed form, by query.

        Returns:
            M (N, d_v, d), B (N, d_v, D_kv) and P X_kv (N, D_kv), as in the module's formula.
        """
        k, v = self._centred()
        # L_i = (I - 1 p_i^T)^T diag(p_i) (I - 1 p_i^T): centred by row, nothing cancels.
        vc = v[None] - (self.P @ v)[:, None]  # (N, M, d_v)
        weighted = (self.scale * self.P[:, :, None] * vc).mT  # (N, d_v, M)
        kc = k[None] - (self.P @ k)[:, None]
        PX = self.P @ self.X_kv
        M = weighted @ kc
        # sum_m weighted = 0, so centring X by its mean changes nothing but the rounding.
        B = (weighted.reshape(-1, weighted.shape[-1]) @ (self.X_kv - self.X_kv.mean(dim=0))).reshape(
            len(self.P), -1, self.X_kv.shape[1]
        )
        return M, B, PX

    def gram(self) -> Tensor:
        """J J^T, (rows, rows), by the closed form: no column of J is ever formed."""
        M, B, PX = self.row_factors()
        N, d_v = self.P.shape[0], self.v.shape[1]
        # 4-D views (N, d_v, N, d_v); in place, because at the sizes of interest one copy is 100 MB.
        flat = M.reshape(N * d_v, -1)
        gram = (flat @ flat.mT).view(N, d_v, N, d_v)
        gram.mul_((self.X_q @ self.X_q.mT)[:, None, :, None])
        flat = B.reshape(N * d_v, -1)
        part = (flat @ flat.mT).view(N, d_v, N, d_v)
        gram.addcmul_(part, (self.q @ self.q.mT)[:, None, :, None])
        gram.diagonal(dim1=1, dim2=3).add_((PX @ PX.mT)[:, :, None])
        result = gram.view(N * d_v, N * d_v)
        return result.add_(result.mT.clone()).mul_(0.5)

    def to_dense(self) -> Tensor:
        """J itself, (rows, columns), from the closed form. For small sizes: it holds rows x columns doubles."""
        M, B, PX = self.row_factors()
        N, d_v = self.P.shape[0], self.v.shape[1]
        from_q = torch.einsum("nvd,nx->nvdx", M, self.X_q).reshape(N * d_v, -1)
        from_k = torch.einsum("nd,nvx->nvdx", self.q, B).reshape(N * d_v, -1)
        eye = torch.eye(d_v, dtype=torch.float64, device=PX.device)
        from_v = torch.einsum("vw,nx->nvwx", eye, PX).reshape(N * d_v, -1)
        return torch.cat([from_q, from_k, from_v], dim=1)

    def reduced(self) -> AttentionJacobian:
        """The same operator up to an orthogonal change of the weights: the widths shrink to at most the tokens.

        J sees X only through products with weights, so X = R Q^T with orthonormal Q (width, r) may be replaced by its
        triangular factor R (tokens, r), r = min(tokens, width): the nonzero singular values and the left singular
        vectors stay. For 50 tokens of width 768 this is 15 times fewer columns.
        """
        X_q = _narrow(self.X_q)
        return replace(self, X_q=X_q, X_kv=X_q if self.X_kv is self.X_q else _narrow(self.X_kv))

    def _expect(self, vectors: Tensor, length: int, what: str) -> None:
        if vectors.ndim not in (1, 2) or vectors.shape[0] != length or vectors.dtype != torch.float64:
            raise MeasureError(
                f"expected float64 vectors of length {length} (the {what} of J), one or as columns; found "
                f"{vectors.dtype} {tuple(vectors.shape)}",
                "see J.shape for (rows, columns)",
            )


def _narrow(X: Tensor) -> Tensor:
    return X if X.shape[1] <= X.shape[0] else torch.linalg.qr(X.mT, mode="r").R.mT.contiguous()
