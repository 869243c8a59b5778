"""What kappaone wrote itself, role by role, and what it did not."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import WriteError


def _layer() -> nn.TransformerEncoderLayer:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(64, 4, 16, batch_first=True)


def test_a_role_that_was_left_is_not_ours() -> None:
    model = _layer()
    with torch.no_grad():
        model.self_attn.in_proj_weight[128:] *= 3  # "trained" values
    kappaone.init_(model, "conditioned(parts=qk)", seed=0)
    with pytest.raises(WriteError, match="role v"):
        kappaone.init_(model, "conditioned", seed=0)


def test_our_own_blocks_stay_ours_after_calls_that_leave_them() -> None:
    model = _layer()
    kappaone.init_(model, "conditioned(parts=qk)", seed=0)
    kappaone.init_(model, "conditioned(parts=v)", seed=0)
    kappaone.init_(model, "default", seed=0)
    assert kappaone.init_(model, "conditioned", seed=1).blocks_set == 12
    with torch.no_grad():
        model.self_attn.in_proj_weight[0, 0] += 1
    with pytest.raises(WriteError, match="role q"):
        kappaone.init_(model, "conditioned", seed=1)


def test_a_report_can_be_pickled() -> None:
    model = _layer()
    report = pickle.loads(pickle.dumps(kappaone.init_(model, "conditioned", seed=0)))  # noqa: S301
    assert kappaone.check(model, report)
