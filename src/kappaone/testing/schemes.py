"""What every scheme must do: set its roles and nothing else, in place, reproducibly, in every dtype."""

from __future__ import annotations

import copy
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from kappaone.apply import check, init_
from kappaone.layouts.blocks import block_view, parameters_by_name
from kappaone.layouts.layout import AttentionLayout, Role
from kappaone.schemes import understand
from kappaone.testing.model_case import ModelCase


def check_scheme(
    scheme: str, case: ModelCase, dtype: torch.dtype = torch.float32, *, random_draws: bool = True
) -> None:
    """Run a scheme on a case and assert the promises of `init_`.

    Args:
        scheme: as it is written.
        case: the model.
        dtype: the model's dtype; bf16 and fp16 weights must be the float32 ones, rounded.
        random_draws: False for a scheme that draws nothing, whose weights are the same for any seed and name.

    Raises:
        AssertionError: naming the promise that is broken.
    """
    model = case.model(dtype)
    # The example is passed only where it is needed: `check_layout` covers finding attention by its calls.
    needed = getattr(understand(scheme).entry, "needs_example", False) or understand(scheme).scale.kind == "logit"
    example = _cast(case.input(), dtype) if needed else None
    before = {name: p.detach().clone() for name, p in parameters_by_name(model).items()}
    identity = {name: _identity(p) for name, p in parameters_by_name(model).items()}
    states = _random_states()
    report = init_(model, scheme, seed=3, example=example)
    assert _random_states() == states, "global random state was moved"
    after = parameters_by_name(model)
    assert {name: _identity(p) for name, p in after.items()} == identity, "a parameter was replaced or its form changed"
    assert all(bool(torch.isfinite(p).all()) for p in after.values()), "weights are not finite"
    assert check(model, report), str(check(model, report))

    allowed = _allowed(report.layers, scheme)
    for name, old in before.items():
        untouched = torch.ones_like(old, dtype=torch.bool)
        for layout, role in allowed:
            rows = layout.role(role)
            if rows.parameter == name:
                for head in range(rows.heads):
                    block_view(untouched, rows, role, head).fill_(False)
            if rows.bias == name:
                for head in range(len(rows.bias_starts)):
                    untouched[rows.bias_span(head)] = False
        assert torch.equal(after[name][untouched], old[untouched]), f"{name} changed outside the roles of {scheme}"

    again = case.model(dtype)
    init_(again, scheme, seed=3, example=example)
    for name, p in parameters_by_name(again).items():
        assert torch.equal(p, after[name]), f"{name} is not the same the second time"
    if dtype in (torch.bfloat16, torch.float16) and _pure(scheme):
        full = case.model(torch.float32)
        init_(full, scheme, seed=3)
        for name, p in parameters_by_name(full.to(dtype)).items():
            assert torch.equal(p, after[name]), f"{name}: {dtype} weights are not the float32 ones, rounded"
    if dtype != torch.float32:
        return
    drawn = random_draws and report.blocks_set and understand(scheme).entry.name not in ("default", "unit_logits")
    if drawn:
        other = copy.deepcopy(again)
        init_(other, scheme, seed=4, example=example, overwrite=True)
        assert any(not torch.equal(a, b) for a, b in zip(other.parameters(), again.parameters(), strict=True)), (
            "another seed gives the same weights"
        )
        prefixed = case.model(dtype)
        init_(prefixed, scheme, seed=3, example=example, prefix="inner")
        assert any(not torch.equal(p, after[name]) for name, p in parameters_by_name(prefixed).items()), (
            "prefix= does not enter the keys of the streams"
        )


def _allowed(layers: Any, scheme: str) -> list[tuple[AttentionLayout, Role]]:
    parts = understand(scheme).parts
    roles: tuple[Role, ...] = ("q", "k", "v", "o")
    return [(layer.layout, r) for layer in layers for r in roles if r in parts and (r != "o" or layer.layout.o)]


def _pure(scheme: str) -> bool:
    """Whether the numbers do not depend on the weights that are there."""
    spec = understand(scheme)
    return spec.entry.name not in ("default", "unit_logits") and spec.scale.kind in ("unit", "factor")


def _identity(parameter: nn.Parameter) -> tuple[Any, ...]:
    return (
        id(parameter),
        parameter.dtype,
        parameter.device,
        parameter.stride(),
        parameter.requires_grad,
        parameter.data_ptr(),
    )


def _random_states() -> tuple[Any, ...]:
    return (
        random.getstate(),
        str(np.random.get_state()),  # noqa: NPY002
        torch.get_rng_state().sum().item(),
        tuple(torch.get_rng_state()[:64].tolist()),
    )


def _cast(example: Any, dtype: torch.dtype) -> Any:
    """Floating tensors of an input in the dtype."""
    if isinstance(example, torch.Tensor):
        return example.to(dtype) if example.is_floating_point() else example
    if isinstance(example, dict):
        return {key: _cast(value, dtype) for key, value in example.items()}
    return tuple(_cast(value, dtype) for value in example)
