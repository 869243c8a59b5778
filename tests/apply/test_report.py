"""The report leaves the caller's random state alone, even when printing it imports rich for the first time."""

import subprocess
import sys

import numpy as np
import pytest

import kappaone

CODE = """
import random, torch
from torch import nn
import kappaone
model = nn.TransformerEncoderLayer(16, 4)
random.seed(0)
before = random.getstate(), torch.get_rng_state().tolist()
text = str(kappaone.init_(model, "conditioned", seed=0))
assert "12 blocks set" in text, text
assert (random.getstate(), torch.get_rng_state().tolist()) == before
"""


def test_printing_a_report_moves_no_random_state():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=120)


def test_an_exported_report_holds_its_numbers_or_says_why_not():
    from tests.apply.test_init import VIT

    model = VIT.model()
    report = kappaone.init_(model, "conditioned", seed=0)
    bare = report.to_dict(measure=False)
    assert (bare["not_measured"], bare["layers"][0]["logit_std"]) == ("not asked for", [])
    full = report.to_dict()
    assert full["not_measured"] == ""
    layer = full["layers"][0]
    W = model.blocks[0].attn.qkv.weight.detach().double().numpy()
    assert [s["condition_number"] for s in layer["roles"]["q"]["kappa_heads"]] == pytest.approx([1] * 4, rel=1e-6)
    assert layer["kappa_fused"]["condition_number"] == pytest.approx(np.linalg.cond(W))
    assert len(layer["logit_std"]) == 4
    later = kappaone.init_(model, "fan_in", seed=0)
    model.blocks[0].attn.qkv.weight.data.zero_()
    assert "have changed since" in later.to_dict()["not_measured"]
