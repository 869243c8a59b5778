"""All or nothing: a failure in any write, interrupts included, leaves the model as it was."""

import pytest
import torch
from torch import nn

import kappaone
from kappaone.apply import write
from kappaone.apply.write import Transaction, fingerprint, rounded
from kappaone.errors import WriteError
from tests.apply.test_init import VIT, same, weights

BLOCKS = 24


def fail_at(monkeypatch, k, error, *, after_copy=False):
    original, count = Transaction.write, 0

    def failing(self, *args):
        nonlocal count
        count += 1
        if count == k and not after_copy:
            raise error
        original(self, *args)
        if count == k:
            raise error

    monkeypatch.setattr(write.Transaction, "write", failing)


@pytest.mark.parametrize("after_copy", [False, True])
@pytest.mark.parametrize(
    "error", [RuntimeError("disk on fire"), KeyboardInterrupt(), MemoryError()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("k", [1, 2, 7, BLOCKS])
def test_raising_in_the_kth_write_restores_everything(monkeypatch, k, error, after_copy):
    model = VIT.model()
    before = weights(model)
    fail_at(monkeypatch, k, error, after_copy=after_copy)
    with pytest.raises(type(error)):
        kappaone.init_(model, "conditioned", seed=0)
    assert same(before, weights(model))
    assert torch.get_num_threads() >= 1


def test_a_failure_in_the_solved_scale_restores_everything(monkeypatch):
    model = VIT.model()
    before = weights(model)
    fail_at(monkeypatch, BLOCKS + 3, RuntimeError("late"))
    with pytest.raises(RuntimeError, match="late"):
        kappaone.init_(model, "conditioned(scale=logit(1))", seed=0, example=VIT.input())
    assert same(before, weights(model))


def test_without_undo_the_error_lists_what_was_written(monkeypatch):
    model = VIT.model()
    before = weights(model)
    fail_at(monkeypatch, 3, RuntimeError("disk on fire"))
    with pytest.raises(WriteError, match=r"disk on fire; undo=False: .* blocks.0.attn:q0, blocks.0.attn:q1") as caught:
        kappaone.init_(model, "conditioned", seed=0, undo=False)
    assert "blocks.0.attn:q2" not in str(caught.value)
    assert not same(before, weights(model))


def test_an_interrupt_while_restoring_is_held_until_all_is_back(monkeypatch):
    parameter = nn.Parameter(torch.zeros(4, 3))
    old = parameter.detach().clone()
    copies = 0
    original = torch.Tensor.copy_

    def interrupting(self, *args, **kwargs):
        nonlocal copies
        copies += 1
        if copies == 4:  # the first restoring copy
            raise KeyboardInterrupt
        return original(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "copy_", interrupting)

    def run():
        with Transaction(undo=True) as transaction:
            for row in range(3):
                transaction.write(f"row {row}", parameter.detach()[row], torch.ones(3))
            raise RuntimeError("stop")

    with pytest.raises(KeyboardInterrupt):
        run()
    assert copies == 7
    assert torch.equal(parameter, old)


@pytest.mark.parametrize("scheme", ["conditioned(scale=1e30)", "fan_in(gain=1e300)"])
def test_values_that_overflow_are_an_error_and_nothing_is_written(scheme):
    model = VIT.model(torch.float16)
    before = weights(model)
    with pytest.raises(WriteError, match="not finite"):
        kappaone.init_(model, scheme, seed=0)
    assert same(before, weights(model))


def test_matching_the_norm_of_nothing_is_an_error():
    model = VIT.model()
    model.blocks[1].attn.qkv.weight.data[:8] = 0
    before = weights(model)
    with pytest.raises(WriteError, match=r"blocks.1.attn', role q, head 0: cannot be scaled .* to norm 0"):
        kappaone.init_(model, "conditioned(scale=matched)", seed=0, overwrite=True)
    assert same(before, weights(model))


def test_rounding_goes_through_float32():
    x = torch.randn(1000, dtype=torch.float64)
    assert torch.equal(rounded(x, torch.bfloat16), x.float().bfloat16())
    assert torch.equal(rounded(x, torch.float64), x)
    with pytest.raises(WriteError, match="not finite"):
        rounded(torch.tensor([1e6], dtype=torch.float64), torch.float16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_fingerprint_sees_any_change_of_bits_or_places(dtype):
    block = torch.randn(7, 5).to(dtype)
    base = fingerprint(block)
    assert base == fingerprint(block.clone()) == fingerprint(block.T.contiguous().T)
    others = [block.flip(0), block.flip(1), -block, block[torch.tensor([1, 0, 2, 3, 4, 5, 6])]]
    for i in range(7):
        for j in range(5):
            changed = block.clone()
            changed[i, j] = (
                torch.nextafter(block[i, j].float(), torch.tensor(9.0)).to(dtype)
                if dtype == torch.float32
                else block[i, j] * 2 + 1
            )
            others.append(changed)
    assert base not in [fingerprint(other) for other in others]
