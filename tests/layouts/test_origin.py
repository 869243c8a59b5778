"""Copies, subclasses and patches that keep a library's attributes and do something else are not described by it."""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from kappaone.layouts import find_attention, survey
from kappaone.layouts.origin import foreign_code
from kappaone.layouts.propose import Proposal, propose

Attention = timm.layers.Attention


class _Interleaved(Attention):
    """q, k, v of head 0, then of head 1, ... under timm's names."""

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, self.num_heads, 3, self.head_dim).permute(3, 0, 2, 1, 4)
        out: Tensor = self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C))
        return out


class _HandsOver(Attention):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        return super().forward(x, attn_mask=attn_mask, is_causal=is_causal)


class _NoForward(Attention):
    pass


def _vit(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, embed_dim=16, num_heads=2)
    model.blocks[0].attn.__class__ = kind
    return model


def test_a_subclass_with_another_order_is_refused_and_found_by_behaviour() -> None:
    model = _vit(_Interleaved)
    found = survey(model)
    assert not found.layouts
    assert "looks like timm.vit, but runs other code than timm's: forward of " in found.refused[0].why
    (proposal,) = propose(model, torch.randn(1, 3, 32, 32))
    assert isinstance(proposal, Proposal) and proposal.spec is not None
    assert proposal.spec.order == "head(q k v)"


@pytest.mark.parametrize("kind", [_NoForward, _HandsOver])
def test_subclasses_that_run_the_library_are_described(kind: type[nn.Module]) -> None:
    assert find_attention(_vit(kind))[0].source == "timm.vit"


def test_a_patched_instance_is_refused_and_a_wrapped_one_is_not() -> None:
    model = _vit(Attention)
    attention = model.blocks[0].attn
    own = attention.forward

    @functools.wraps(own)
    def timed(*args: Any, **kwargs: Any) -> Tensor:
        return own(*args, **kwargs)

    attention.forward = timed  # as Accelerate's hooks do
    assert find_attention(model)[0].source == "timm.vit"
    attention.forward = MethodType(_Interleaved.forward, attention)
    assert not survey(model).layouts


def test_an_overridden_helper_is_refused() -> None:
    class Helped(Attention):
        def shaped(self, x: Tensor) -> Tensor:
            return x

        forward = Attention.forward

    class Longer(transformers.models.t5.modeling_t5.T5Attention):
        def compute_bias(self, *args: Any, **kwargs: Any) -> Tensor:
            return torch.zeros(1)

    assert foreign_code(_vit(Helped).blocks[0].attn, "timm") is None  # nobody calls it
    config = transformers.T5Config(d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8, vocab_size=9)
    assert foreign_code(Longer(config, layer_idx=0), "transformers").startswith("compute_bias of ")


def test_the_forward_of_compiled_and_parametrized_modules_is_the_librarys() -> None:
    model = _vit(Attention)
    nn.utils.parametrizations.weight_norm(model.blocks[0].attn.qkv)
    model.blocks[0].attn.compile()
    assert find_attention(torch.compile(model))[0].source == "timm.vit"


def test_multihead_attention_with_a_forward_of_its_own_is_refused() -> None:
    class Mine(nn.MultiheadAttention):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, **_: Any) -> Any:
            B, N, C = query.shape
            made = F.linear(query, self.in_proj_weight).reshape(B, N, self.num_heads, 3, self.head_dim)
            q, k, v = made.permute(3, 0, 2, 1, 4)
            return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(B, N, C)), None

    found = survey(nn.Sequential(Mine(8, 2, batch_first=True)))
    assert not found.layouts
    assert found.refused[0].why.startswith("looks like torch.mha")
