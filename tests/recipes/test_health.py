"""The few numbers for a study, against the report that they come from."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kappaone.conditioning import inspect
from kappaone.conditioning.report import HeadCondition
from kappaone.recipes import get_recipe, load_images
from kappaone.recipes.health import attention_metrics, summarise


def _model() -> nn.Module:
    return get_recipe("images").build_model(get_recipe("images").make_options("smoke"), 0)


@pytest.fixture(scope="module")
def probe() -> torch.Tensor:
    return load_images("mnist-5k", train_size=10, test_size=10).test_images[[0, 5]]


def test_metrics_are_the_means_of_the_reports(probe: torch.Tensor) -> None:
    found, why = attention_metrics(_model(), probe, jacobian_examples=1)
    assert why == {}
    reports = [json.loads(inspect(_model(), probe[i : i + 1]).to_json()) for i in (0, 1)]
    heads: list[list[dict[str, Any]]] = [[h for layer in r["layers"] for h in layer["heads"]] for r in reports]
    both = heads[0] + heads[1]
    kappas = [h["kappa_J"]["condition_number"] for h in heads[0]]  # the first image only
    assert found["kappa_J_n"] == len(kappas) == 4
    assert found["kappa_J"] == pytest.approx(math.prod(kappas) ** (1 / 4), rel=1e-9)
    assert found["kappa_P_n"] == len(both) == 8
    assert found["kappa_P"] == pytest.approx(
        math.prod(h["kappa_P"]["condition_number"] for h in both) ** (1 / 8), rel=1e-9
    )
    assert found["logit_std"] == pytest.approx(sum(h["logit_std"] for h in both) / 8, rel=1e-12)
    relative = sum(h["relative_entropy"] for h in both) / 8
    assert found["relative_entropy"] == pytest.approx(relative, rel=1e-12)


def test_the_numbers_are_those_of_attention_computed_by_hand(probe: torch.Tensor) -> None:
    model = _model().double().eval()
    seen: list[torch.Tensor] = []
    blocks: Any = model.blocks  # type: ignore[union-attr]
    for block in blocks:
        block.attn.register_forward_hook(lambda module, args, out: seen.append(args[0].detach()))
    spreads, entropies, kappas = [], [], []
    for image in probe:
        seen.clear()
        with torch.no_grad():
            model(image[None].double())
        for x, block in zip(seen, blocks, strict=True):
            qkv = x[0] @ block.attn.qkv.weight.detach().T + block.attn.qkv.bias.detach()
            for head in range(2):
                q, k = qkv[:, head * 8 : head * 8 + 8], qkv[:, 16 + head * 8 : 24 + head * 8]
                logits = q @ k.T / math.sqrt(8)
                centred = logits - logits.mean(dim=1, keepdim=True)
                n = len(logits)
                spreads.append(math.sqrt(float((centred**2).sum()) / (n * (n - 1))))
                p = torch.softmax(logits, dim=1)
                entropies.append(float(-(p * p.log()).sum(dim=1).mean()) / math.log(n))
                values = torch.linalg.svdvals(p)
                kappas.append(float(values[0] / values[-1]))
    found, _ = attention_metrics(_model(), probe)
    assert found["logit_std"] == pytest.approx(sum(spreads) / 8, rel=1e-4)
    assert found["relative_entropy"] == pytest.approx(sum(entropies) / 8, rel=1e-6)
    assert math.log(found["kappa_P"]) == pytest.approx(sum(map(math.log, kappas)) / 8, rel=1e-3)


def test_heads_without_a_number_are_left_out_and_counted(probe: torch.Tensor) -> None:
    heads: list[HeadCondition] = [h for layer in inspect(_model(), probe[:1]).layers for h in layer.heads]
    assert all(head.jacobian is not None for head in heads)

    def broken(head: HeadCondition, status: Any) -> HeadCondition:
        assert head.jacobian is not None
        jacobian = replace(head.jacobian, status=status, condition_number=1e99)
        return replace(head, jacobian=jacobian, probabilities=replace(head.probabilities, status="rank_deficient"))

    whole, _ = summarise(heads)
    part, why = summarise([broken(heads[0], "bounded"), broken(heads[1], "too_large"), *heads[2:]])
    rest, _ = summarise(heads[2:])
    assert part["kappa_J"] == rest["kappa_J"] != whole["kappa_J"]
    assert (part["kappa_J_n"], part["kappa_P_n"]) == (2, 2)
    assert part["logit_std"] == whole["logit_std"]
    assert why == {
        "kappa_J": "2 of 4 heads left out: 1 bounded, 1 too_large",
        "kappa_P": "2 of 4 heads left out: 2 rank_deficient",
    }
    none, why = summarise([broken(head, "zero_operator") for head in heads], ["blocks.0: said so"])
    assert set(none) == {"logit_std", "relative_entropy"}
    assert why["kappa_J"] == "4 of 4 heads left out: 4 zero_operator"
    assert why["layers"] == "blocks.0: said so"
    empty, why = summarise([])
    assert empty == {}
    assert set(why) == {"kappa_J", "kappa_P", "logit_std", "relative_entropy"}
