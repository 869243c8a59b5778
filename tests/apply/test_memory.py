"""Memory that says what was not set, ties that stay."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from kappaone.apply.memory import allocate, can_be_marked, check_ties, count_unset, mark_unset, slots, tie_groups
from kappaone.errors import WriteError


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.float8_e4m3fn, torch.complex64,
              torch.int64, torch.int32, torch.int8],
)  # fmt: skip
def test_every_entry_is_marked_until_it_is_set(dtype):
    tensor = torch.empty(5, 3, dtype=dtype)
    mark_unset(tensor)
    assert can_be_marked(tensor) and count_unset(tensor) == 15
    tensor[0] = 1
    assert count_unset(tensor) == 12
    assert count_unset(torch.zeros(2, dtype=dtype)) == 0


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8])
def test_dtypes_without_a_mark_say_so(dtype):
    assert not can_be_marked(torch.empty(2, dtype=dtype)) and count_unset(torch.ones(2, dtype=dtype)) == 0


def test_to_empty_breaks_ties_and_allocate_does_not():
    def tied() -> nn.Module:
        with torch.device("meta"):
            model = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.Linear(3, 3), "c": nn.BatchNorm1d(3)})
        model["b"].weight = model["a"].weight
        model["b"].register_buffer("mean", model["c"].running_mean)
        return model

    plain = tied().to_empty(device="cpu")
    assert plain["a"].weight is not plain["b"].weight  # why we have our own
    model = tied()
    assert [[slot.name for slot in group] for group in tie_groups(slots(model))] == [
        ["a.weight", "b.weight"],
        ["b.mean", "c.running_mean"],
    ]
    fresh, ties = allocate(model, torch.device("cpu"))
    assert model["a"].weight is model["b"].weight and model["b"].mean is model["c"].running_mean
    assert len(fresh) == 10 and not any(slot.tensor.is_meta for slot in fresh)
    check_ties(ties)
    model["b"].weight = nn.Parameter(torch.zeros(3, 3))
    with pytest.raises(WriteError, match=r"'a.weight' and 'b.weight' were one tensor"):
        check_ties(ties)
