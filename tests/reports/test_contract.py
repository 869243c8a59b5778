"""The real results of the other folders make pages: no hand-made dict stands between."""

import math

import numpy as np
import pytest

from kappaone.reports.pages import render

from .tree import Tree


@pytest.fixture(scope="module")
def analysis():
    studies = pytest.importorskip("kappaone.studies")
    arms = (
        "default",
        "default(redraw)",
        "conditioned",
        "conditioned(scale=matched)",
        "default(scale=conditioned)",
    )
    plan = studies.Plan(name="real", arms=arms, seeds=range(7), margin=0.01, tracked=("kappa_J", "never"))
    rng = np.random.default_rng(3)
    runs = []
    for arm in arms:
        for seed in plan.seeds:
            lost = arm == "conditioned" and seed == 5
            records = []
            for step in range(0, 300, 20):
                value = 0.9 * (1 - math.exp(-step / 60)) + 0.01 * float(rng.normal())
                records.append({"step": step, "test_accuracy": value, "kappa_J": 10.0 ** float(rng.uniform(2, 4))})
            last = {k: v for k, v in records[-1].items() if k != "step"}
            result = studies.RunResult("failed" if lost else "ok", {} if lost else last, 1.0)
            runs.append(studies.RunRecord(arm, seed, result, () if lost else tuple(records)))
    return studies.analyse(plan, runs, provenance={"machine": "test"})


def test_a_real_analysis(analysis):
    result = analysis.to_dict()
    tree = Tree(render(analysis))
    assert [r[0] for r in tree.table("All contrasts")[1:]] == [c["name"] for c in result["contrasts"]]
    shown = {e.text for e in tree.all("dd")}
    assert all(any(c["words"] in text for text in shown) for c in result["contrasts"])
    for warning in result["warnings"]:
        assert " ".join(warning.split()) in [e.text for e in tree.all("li")]
    assert "Spectrum or scale?" in [e.text for e in tree.all("h2")]
    assert len(tree.all("figure")) >= 5


def test_a_real_conditioning_report():
    torch = pytest.importorskip("torch")
    conditioning = pytest.importorskip("kappaone.conditioning")
    layer = torch.nn.TransformerEncoderLayer(16, 2, 16, batch_first=True)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        with torch.no_grad():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)
    report = conditioning.inspect(torch.nn.Sequential(layer), torch.randn(1, 5, 16, generator=generator))
    tree = Tree(render(report))
    assert len(tree.all("figure")) == 9
    blocks = tree.table("Weights of every block")[1:]
    wanted = report.layers[0].weights.roles["q"].heads[0].condition_number
    assert float(blocks[0][5].replace("−", "-")) == pytest.approx(wanted, rel=1e-3)
