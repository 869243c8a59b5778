"""Attention as people copy it from reference implementations, written anew in their style."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class NanoGPT(nn.Module):
    """nanoGPT's way: one Linear `c_attn`, split into q, k, v."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attn_dropout, self.resid_dropout = nn.Dropout(0.1), nn.Dropout(0.1)
        self.n_head, self.n_embd = heads, width

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: Tensor = self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))
        return out


class NanoGPTSwapped(NanoGPT):
    """The same attributes and shapes, and another order."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        k, q, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        out: Tensor = self.c_proj(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        )
        return out


class NanoGPTInterleaved(NanoGPT):
    """The same attributes and shapes, and head_dim outermost."""

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, C // self.n_head, self.n_head).permute(0, 3, 1, 2) for t in (q, k, v))
        out: Tensor = self.c_proj(F.scaled_dot_product_attention(q, k, v).permute(0, 2, 3, 1).reshape(B, T, C))
        return out


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.size(-1),))


def apply_rotary_emb(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat([first * cos + second * sin, second * cos - first * sin], -1)


class NanoChat(nn.Module):
    """nanochat's way: grouped keys and values, rotary, QK-norm without weights, and c_proj at zero."""

    def __init__(self, width: int = 16, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.n_head, self.n_kv_head, self.n_embd, self.head_dim = heads, kv_heads, width, width // heads
        self.c_q = nn.Linear(width, width, bias=False)
        self.c_k = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.c_v = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        nn.init.zeros_(self.c_proj.weight)

    def forward(self, x: Tensor) -> Tensor:
        B, T, _ = x.size()
        q = self.c_q(x).view(B, T, self.n_head, self.head_dim)
        k = self.c_k(x).view(B, T, self.n_kv_head, self.head_dim)
        v = self.c_v(x).view(B, T, self.n_kv_head, self.head_dim)
        angle = torch.ones(1, T, 1, self.head_dim // 2, dtype=x.dtype) * 0.3
        q, k = apply_rotary_emb(q, angle, angle), apply_rotary_emb(k, angle, angle)
        q, k = norm(q), norm(k)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out: Tensor = self.c_proj(y.transpose(1, 2).contiguous().view(B, T, -1))
        return out


class Llama(nn.Module):
    """Meta's way: wq, wk, wv, wo; each key/value head serves consecutive query heads."""

    def __init__(self, width: int = 16, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.n_rep = heads // kv_heads
        self.wq = nn.Linear(width, width, bias=False)
        self.wk = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(width, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        xq = self.wq(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        keys = self.wk(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        values = self.wv(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2)
        keys, values = (torch.repeat_interleave(t, repeats=self.n_rep, dim=1) for t in (keys, values))
        out: Tensor = self.wo(F.scaled_dot_product_attention(xq, keys, values).transpose(1, 2).reshape(b, n, -1))
        return out


class LlamaModulo(Llama):
    """The same, but key/value heads repeat as a whole, so that query head h reads head h mod kv_heads."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        xq = self.wq(x).view(b, n, self.n_heads, self.head_dim).transpose(1, 2)
        keys = self.wk(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2).repeat(1, self.n_rep, 1, 1)
        values = self.wv(x).view(b, n, self.n_kv_heads, self.head_dim).transpose(1, 2).repeat(1, self.n_rep, 1, 1)
        out: Tensor = self.wo(F.scaled_dot_product_attention(xq, keys, values).transpose(1, 2).reshape(b, n, -1))
        return out


class FusedGroups(nn.Module):
    """torchtitan's fused linear: each key/value group's queries, key and value lie together."""

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.wqkv = nn.Linear(width, (heads + 2 * kv_heads) * head_dim, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        group = self.n_heads // self.n_kv_heads
        y = self.wqkv(x).unflatten(-1, (self.n_kv_heads, group + 2, self.head_dim))
        return y[..., :group, :].flatten(-3, -2), y[..., group, :], y[..., group + 1, :]


class Titan(nn.Module):
    """torchtitan's way: the projections in `qkv_linear`."""

    def __init__(self, width: int = 16, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.head_dim = heads, kv_heads, width // heads
        self.qkv_linear = FusedGroups(width, heads, kv_heads, self.head_dim)
        self.wo = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        xq, xk, xv = (t.transpose(1, 2) for t in self.qkv_linear(x))
        out = F.scaled_dot_product_attention(xq, xk, xv, enable_gqa=True)
        projected: Tensor = self.wo(out.transpose(1, 2).contiguous().view(b, n, -1))
        return projected


def rearrange(x: Tensor, pattern: str, h: int = 1) -> Tensor:
    """einops in small: the two patterns that the copy below uses."""
    if pattern == "b n (h d) -> b h n d":
        return x.unflatten(-1, (h, -1)).transpose(1, 2)
    if pattern == "b n (d h) -> b h n d":
        return x.unflatten(-1, (-1, h)).permute(0, 3, 1, 2)
    return x.transpose(1, 2).flatten(-2)


class Lucid(nn.Module):
    """vit-pytorch's plain attention, as it is copied."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.norm, self.attend, self.dropout = nn.LayerNorm(width), nn.Softmax(dim=-1), nn.Dropout(0.1)
        self.to_qkv = nn.Linear(width, 3 * width, bias=False)
        self.to_out = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in qkv)
        attn = self.dropout(self.attend(q @ k.mT * self.scale))
        out: Tensor = self.to_out(rearrange(attn @ v, "b h n d -> b n (h d)"))
        return out


class LucidInterleaved(Lucid):
    """The same attributes and shapes, and head_dim outermost."""

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (rearrange(t, "b n (d h) -> b h n d", h=self.heads) for t in qkv)
        attn = self.attend(q @ k.mT * self.scale)
        out: Tensor = self.to_out((attn @ v).permute(0, 2, 3, 1).flatten(-2))
        return out


class LucidSwapped(Lucid):
    """The same attributes, shapes and patterns, and the chunks in another order."""

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        k, v, q = (rearrange(t, "b n (h d) -> b h n d", h=self.heads) for t in qkv)
        attn = self.dropout(self.attend(q @ k.mT * self.scale))
        out: Tensor = self.to_out(rearrange(attn @ v, "b h n d -> b n (h d)"))
        return out
