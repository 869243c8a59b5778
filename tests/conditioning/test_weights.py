import numpy as np
import pytest
import torch
from torch import nn

from kappaone.conditioning import weight_spectra
from kappaone.errors import MeasureError
from kappaone.layouts import AttentionSpec, find_attention


class Grouped(nn.Module):
    """Two key/value heads for four query heads."""

    kappaone_attention = AttentionSpec(heads=4, kv_heads=2, q="wq", k="wk", v="wv", o="wo")

    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv = nn.Linear(12, 12), nn.Linear(12, 6), nn.Linear(12, 6)
        self.wo = nn.Linear(12, 12)


def compare(spectrum, matrix):
    values = np.linalg.svd(matrix.detach().double().numpy(), compute_uv=False)
    assert spectrum.sigma_max == pytest.approx(values[0], rel=1e-12)
    assert spectrum.sigma_min == pytest.approx(values[-1], rel=1e-9)
    assert spectrum.condition_number == pytest.approx(values[0] / values[-1], rel=1e-9)
    assert spectrum.frobenius_norm == pytest.approx(np.linalg.norm(matrix.detach().double().numpy()), rel=1e-12)
    assert spectrum.stable_rank == pytest.approx((values**2).sum() / values[0] ** 2, rel=1e-12)


def test_levels_against_numpy():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(12, 3)
    found = weight_spectra(layer, find_attention(layer)[0])
    W = layer.in_proj_weight
    assert found.one_parameter
    compare(found.fused, W)
    for place, role in enumerate("qkv"):
        compare(found.roles[role].stacked, W[12 * place : 12 * place + 12])
        for head in range(3):
            start = 12 * place + 4 * head
            compare(found.roles[role].heads[head], W[start : start + 4])
    compare(found.roles["o"].stacked, layer.out_proj.weight)
    for head in range(3):
        compare(found.roles["o"].heads[head], layer.out_proj.weight[:, 4 * head : 4 * head + 4])


def test_grouped_heads_and_separate_parameters():
    torch.manual_seed(0)
    model = Grouped()
    found = weight_spectra(model, find_attention(model)[0])
    assert [len(found.roles[r].heads) for r in "qkvo"] == [4, 2, 2, 4]
    assert not found.one_parameter
    compare(found.fused, torch.cat([model.wq.weight, model.wk.weight, model.wv.weight]))
    compare(found.roles["k"].heads[1], model.wk.weight[3:])


def test_different_widths_have_no_fused_spectrum():
    layer = nn.MultiheadAttention(8, 2, kdim=6, vdim=6)
    assert weight_spectra(layer, find_attention(layer)[0]).fused is None


def test_statuses_of_blocks():
    layer = nn.MultiheadAttention(8, 2)
    with torch.no_grad():
        layer.in_proj_weight[:4] = 0
        layer.in_proj_weight[4:8] = 1
        layer.in_proj_weight[8, 0] = float("nan")
    found = weight_spectra(layer, find_attention(layer)[0])
    assert [s.status for s in found.roles["q"].heads] == ["zero", "rank_deficient"]
    assert found.roles["q"].heads[1].rank == 1
    assert found.roles["q"].heads[1].condition_number == pytest.approx(1 / (8 * 2.0**-52))
    assert [s.status for s in found.roles["k"].heads] == ["nonfinite", "ok"]


def test_half_precision_is_measured_in_float64_and_left_alone():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2).to(torch.bfloat16)
    found = weight_spectra(layer, find_attention(layer)[0])
    compare(found.fused, layer.in_proj_weight)
    assert layer.in_proj_weight.dtype == torch.bfloat16


def test_meta_weights_are_refused_by_name():
    with torch.device("meta"):
        layer = nn.MultiheadAttention(8, 2)
    with pytest.raises(MeasureError, match=r"in_proj_weight.*meta device"):
        weight_spectra(layer, find_attention(layer)[0])
