"""meta, fully_shard, materialize_: every rank makes its shard only, and all of them together are the plain model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import kappaone
from kappaone.errors import WriteError
from tests.apply.test_materialize import Tokens, gpt2, llama, on_meta, timm_vit

MODELS = {"gpt2": gpt2, "llama": llama, "timm_vit": timm_vit}
ROOT = Path(__file__).parents[2]


def blocks(model: nn.Module) -> list[nn.Module]:
    found = [m for m in model.modules() if isinstance(m, nn.ModuleList)]
    return list(found[0]) if found else list(model.blocks)


def sharded(build) -> nn.Module:
    model = on_meta(build)
    for block in blocks(model):
        fully_shard(block)
    return fully_shard(model)


def compare(build) -> list[str]:
    """Names of tensors that differ from the plain model's, on this rank."""
    plain, model = on_meta(build), sharded(build)
    expected = kappaone.materialize_(plain, "cpu", "conditioned", seed=3)
    report = kappaone.materialize_(model, "cpu", "conditioned", seed=3)
    assert not report.unset and report.set_by == expected.set_by
    theirs = dict(plain.named_parameters())
    wrong = [name for name, p in model.named_parameters() if not torch.equal(p.full_tensor(), theirs[name])]
    buffers = dict(plain.named_buffers())
    wrong += [name for name, b in model.named_buffers() if not torch.equal(b, buffers[name])]
    if set(theirs) != {name for name, _ in model.named_parameters()}:
        wrong.append("names (ties)")
    if not kappaone.check(model):
        wrong.append("check")
    return wrong


def unset() -> str:
    """What is said where something is left, the same on every rank."""
    model = on_meta(Tokens)
    fully_shard(model)
    try:
        kappaone.materialize_(model, "cpu", seed=0)
    except WriteError as error:
        return error.what
    return "nothing"


def main(rank: int, size: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, size), rank=rank, world_size=size)
    try:
        found = {name: compare(build) for name, build in MODELS.items()}
        Path(f"{store}.{rank}.json").write_text(json.dumps({"wrong": found, "unset": unset()}))
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_the_shards_together_are_the_plain_model(size, tmp_path):
    store = str(tmp_path / "store")
    code = "import sys; from tests.apply.test_materialize_sharded import main; main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])"
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(size), store],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        said = [process.communicate(timeout=300)[0] for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert all(process.returncode == 0 for process in ranks), "\n".join(said)[-3000:]
    results = [json.loads(Path(f"{store}.{rank}.json").read_text()) for rank in range(size)]
    for result in results:
        assert result["wrong"] == {name: [] for name in MODELS}
        assert result["unset"] == results[0]["unset"] and "token: parameter (1, 1, 16)" in result["unset"]
