"""The probe on layers whose rows speak softly or not at all: each of these was misread once."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kappaone.errors import MeasureError
from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.probe import verify


def _encoder() -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(32, 4, 48, batch_first=True).eval()


@pytest.mark.parametrize("size", [0.1, 0.003])
def test_weak_queries_and_keys_are_not_called_values(size: float) -> None:
    model = _encoder()
    with torch.no_grad():
        model.self_attn.in_proj_weight[:64] *= size
    report = verify(model, find_attention(model), size**0.5 * torch.randn(2, 8, 32), rows_per_head=None)
    assert report.ok, str(report)


def test_a_last_token_of_zeros_hides_no_key() -> None:
    model = _encoder()
    tokens = torch.randn(2, 8, 32)
    tokens[:, -3:] = 0
    report = verify(model, find_attention(model), tokens, rows_per_head=None)
    assert report.ok, str(report)


def test_heads_that_are_really_several_are_seen() -> None:
    model = _encoder()
    spec = AttentionSpec(match="self_attn", heads=2, fused="in_proj_weight", o="out_proj")
    report = verify(model, find_attention(model, layouts=[spec]), torch.randn(2, 8, 32))
    assert {v.expected_role for v in report.wrong} == {"q", "k"}, str(report)


def test_nan_and_empty_examples_are_named_as_such() -> None:
    model = _encoder()
    with pytest.raises(MeasureError, match="NaN or infinite"):
        verify(model, find_attention(model), torch.full((2, 8, 32), float("nan")))
    with pytest.raises(MeasureError, match="no tokens"):
        verify(model, find_attention(model), torch.randn(0, 8, 32))


def test_under_another_default_device() -> None:
    model = _encoder()
    tokens = torch.randn(2, 8, 32)
    with torch.device("meta"):
        assert verify(model, find_attention(model), tokens).ok


def test_a_token_whose_softmax_is_saturated_does_not_make_key_rows_query_rows() -> None:
    torch.manual_seed(0)
    model = nn.MultiheadAttention(16, 2, batch_first=True).double()
    tokens = torch.randn(1, 6, 16).double()
    tokens[:, 4] *= 3000  # the largest, so that it is asked first; it attends to one token, whatever the others do
    layers = find_attention(model)
    assert verify(model, layers, (tokens, tokens, tokens)).ok
    swapped = [replace(layers[0], q=layers[0].k, k=layers[0].q)]
    assert not verify(model, swapped, (tokens, tokens, tokens)).ok
