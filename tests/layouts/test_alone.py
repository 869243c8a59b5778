"""Copies of reference code whose words are right and whose numbers are not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from kappaone.layouts import survey
from tests.layouts import copied


class Scaled(copied.NanoGPT):
    """muP's factor 1 / head_dim."""

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0 / k.size(-1))
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Swapped(copied.NanoGPT):
    """Keys ask and queries answer."""

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(k, q, v, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C)))


class Mixed(copied.NanoGPT):
    """Heads are not put side by side again before the output projection."""

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.resid_dropout(self.c_proj(y.contiguous().view(B, T, C)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_original_is_described(dtype):
    torch.manual_seed(0)
    found = survey(nn.Sequential(copied.NanoGPT()).to(dtype))
    assert len(found.layouts) == 1 and not found.refused


@pytest.mark.parametrize("kind", [Scaled, Swapped, Mixed])
def test_a_copy_that_behaves_otherwise_is_refused_with_what_it_does(kind):
    torch.manual_seed(0)
    model = nn.Sequential(kind())
    state = torch.get_rng_state()
    found = survey(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert not found.layouts
    assert "behaves otherwise" in found.refused[0].why


def test_what_cannot_be_tried_is_described_by_its_code():
    with torch.device("meta"):
        model = nn.Sequential(copied.NanoGPT())
    assert len(survey(model).layouts) == 1
