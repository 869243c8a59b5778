"""Orders against reshapes of row numbers by torch, which know nothing of our loops."""

from __future__ import annotations

import pytest
import torch

from kappaone.errors import SpecError
from kappaone.layouts.order import parse, starts_and_steps

H, D = 6, 4
ROWS = torch.arange(3 * H * D)


def axes(*names: str) -> torch.Tensor:
    """Row numbers as (role, head, dim), the weight's rows running over these axes from the outermost."""
    sizes = {"role": 3, "head": H, "dim": D, "chunk": 2, "inside": H // 2}
    shaped = ROWS.reshape([sizes[name] for name in names])
    want = ["role", "chunk", "inside", "dim"] if "chunk" in names else ["role", "head", "dim"]
    return shaped.permute([names.index(name) for name in want]).reshape(3, H, D)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("q k v", axes("role", "head", "dim")),
        ("head(q k v)", axes("head", "role", "dim")),
        ("dim(q k v)", axes("dim", "role", "head")),
        ("dim(head(q k v))", axes("dim", "head", "role")),
        ("head(dim(q k v))", axes("head", "dim", "role")),
        ("2(q k v)", axes("chunk", "role", "inside", "dim")),
        ("2(dim(q k v))", axes("chunk", "dim", "role", "inside")),
    ],
)
def test_nests_of_loops_are_permuted_axes(text, expected):
    found, total = starts_and_steps(parse(text), dict.fromkeys("qkv", H), dict.fromkeys("qkv", D), text=text)
    assert total == 3 * H * D
    for role, want in zip("qkv", expected, strict=True):
        starts, step = found[role]
        rows = torch.tensor([[start + step * d for d in range(D)] for start in starts])
        assert torch.equal(rows, want)


def test_groups_hold_their_queries_their_key_and_their_value():
    found, total = starts_and_steps(parse("group(q k v)"), {"q": 4, "k": 2, "v": 2}, dict.fromkeys("qkv", 3), text="")
    assert total == 24
    assert found == {"q": ((0, 3, 12, 15), 1), "k": ((6, 18), 1), "v": ((9, 21), 1)}


@pytest.mark.parametrize(
    "text", ["", "q q v", "x", "head(head(q k v))", "head(2(q k v))", "0(q k v)", "head q k v", "dim(dim(k))"]
)
def test_what_is_no_order_is_an_error(text):
    with pytest.raises(SpecError, match="order"):
        parse(text)


def test_heads_must_fit():
    with pytest.raises(SpecError, match="as many of each"):
        starts_and_steps(parse("head(q k v)"), {"q": 4, "k": 2, "v": 2}, dict.fromkeys("qkv", 3), text="head(q k v)")
    with pytest.raises(SpecError, match="do not divide"):
        starts_and_steps(parse("4(q k v)"), dict.fromkeys("qkv", 6), dict.fromkeys("qkv", 3), text="4(q k v)")
    with pytest.raises(SpecError, match="as many rows"):
        starts_and_steps(parse("dim(q k v)"), dict.fromkeys("qkv", 6), {"q": 3, "k": 3, "v": 2}, text="dim(q k v)")
