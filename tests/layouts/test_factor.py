"""The factor on q.k: told from the logits, for fused kernels and eager softmax, masks or none."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError
from kappaone.layouts import AttentionSpec, find_attention
from kappaone.layouts.probe import verify
from tests.conformance.rows import MODELS

CASES = {case.name: case for case in MODELS}


@pytest.mark.parametrize("name", ["timm ViT", "GPT-2", "GPT-2, eager", "BERT"])
def test_the_factor_of_real_models_is_confirmed_and_another_is_not(name):
    model, example = CASES[name].model(), CASES[name].input()
    layouts = find_attention(model)
    report = verify(model, layouts, example)
    assert report.ok and len(report.factors) == 2
    assert [item.seen for item in report.factors] == pytest.approx([layout.scale for layout in layouts], rel=1e-4)
    wrong = [replace(layout, scale=1.0) for layout in layouts]
    again = verify(model, wrong, example)
    assert not again.wrong and not again.ok
    with pytest.raises(LayoutError, match="the layout says a factor 1 on q.k and nothing else; the logits fit 0.35"):
        again.require()
    assert "the logits fit 0.35" in str(again)


def test_a_norm_that_nobody_stated_is_seen():
    model, example = CASES["timm ViT, QK norm"].model(), CASES["timm ViT, QK norm"].input()
    layouts = find_attention(model)
    assert verify(model, layouts, example).factors == ()
    silent = [replace(layout, facts={}) for layout in layouts]
    report = verify(model, silent, example)
    assert not report.ok
    assert "differs from the best multiple of q k^T" in str(report)


class Eager(nn.Module):
    def __init__(self, mask):
        super().__init__()
        self.wires, self.out, self.mask = nn.Linear(8, 24), nn.Linear(8, 8), mask

    def forward(self, x):
        q, k, v = self.wires(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        logits = 0.3 * q @ k.mT
        logits = logits + torch.full(logits.shape[-2:], self.mask).triu(1)
        return self.out((logits.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("mask", [float("-inf"), torch.finfo(torch.float32).min, -1e4, 0.0])
def test_masks_do_not_count(mask):
    torch.manual_seed(0)
    model = nn.Sequential(Eager(mask))
    layouts = find_attention(model, layouts=[AttentionSpec("0", heads=2, fused="wires", o="out", scale=0.3)])
    (factor,) = verify(model, layouts, torch.randn(2, 5, 8)).factors
    assert factor.ok and factor.seen == pytest.approx(0.3, rel=1e-5)


class Packed(Eager):
    """Two sequences in one, each with a softmax of its own, as in the towers that read pictures of many sizes."""

    def forward(self, x):
        parts = [super(Packed, self).forward(part) for part in x.split(4, dim=1)]
        return torch.cat(parts, dim=1)


@pytest.mark.parametrize(("scale", "ok"), [(0.3, True), (0.5, False)])
def test_of_packed_sequences_the_first_one_tells(scale, ok):
    torch.manual_seed(0)
    model = nn.Sequential(Packed(0.0))
    layouts = find_attention(model, layouts=[AttentionSpec("0", heads=2, fused="wires", order="head(q k v)", o="out")])
    assert not any(f.ok for f in verify(model, layouts, torch.randn(1, 8, 8)).factors)
    layouts = find_attention(model, layouts=[AttentionSpec("0", heads=2, fused="wires", o="out", scale=scale)])
    (factor,) = verify(model, layouts, torch.randn(1, 8, 8)).factors
    assert factor.ok is ok and factor.seen == pytest.approx(0.3, rel=1e-5)


class Shifted(Eager):
    """The largest logit of each query is taken off before the softmax, which does not see it."""

    def forward(self, x):
        q, k, v = self.wires(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        logits = (0.3 * q @ k.mT)[:, :, None]
        logits = logits - logits.amax(-1, keepdim=True)
        return self.out((logits.softmax(-1)[:, :, 0] @ v).transpose(1, 2).flatten(2))


def test_a_shift_of_all_logits_of_a_query_does_not_count():
    torch.manual_seed(0)
    model = nn.Sequential(Shifted(0.0))
    for scale, ok in ((0.3, True), (0.5, False)):
        layouts = find_attention(model, layouts=[AttentionSpec("0", heads=2, fused="wires", o="out", scale=scale)])
        (factor,) = verify(model, layouts, torch.randn(2, 5, 8)).factors
        assert factor.ok is ok and factor.seen == pytest.approx(0.3, rel=1e-5)
