# ruff: noqa: NPY002
"""Draws on the CPU from a seed: the same into sharded tensors, and no global state moves."""

from __future__ import annotations

import random

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

from kappaone.apply.drawing import drawing_on_cpu, put_whole

CPU = torch.device("cpu")


def test_every_source_of_numbers_is_seeded_and_put_back():
    def draw() -> tuple[float, ...]:
        with drawing_on_cpu(4, CPU):
            return float(torch.rand(())), random.random(), float(np.random.rand()), float(torch.empty(()).normal_())

    states = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    first = draw()
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    states = torch.random.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    assert draw() == first
    assert torch.equal(states[0], torch.random.get_rng_state()) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all()


def test_state_is_put_back_after_an_error():
    state = torch.random.get_rng_state()
    try:
        with drawing_on_cpu(0, CPU):
            torch.rand(3)
            raise ValueError
    except ValueError:
        pass
    assert torch.equal(state, torch.random.get_rng_state())


def test_sharded_tensors_get_what_plain_ones_get(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        for placement in (Shard(0), Shard(1), Replicate()):
            for fill in (
                nn.init.normal_,
                nn.init.uniform_,
                nn.init.xavier_uniform_,
                nn.init.kaiming_uniform_,
                nn.init.trunc_normal_,
            ):
                plain, sharded = (
                    nn.Parameter(torch.empty(6, 8)),
                    nn.Parameter(distribute_tensor(torch.empty(6, 8), mesh, [placement])),
                )
                for target in (plain, sharded):
                    with drawing_on_cpu(1, CPU):
                        fill(target)
                assert isinstance(sharded, DTensor) and torch.equal(sharded.full_tensor(), plain), (placement, fill)
        target = distribute_tensor(torch.zeros(4, 2), mesh, [Shard(0)])
        put_whole(target, torch.arange(8.0).view(4, 2))
        assert torch.equal(target.full_tensor(), torch.arange(8.0).view(4, 2))
    finally:
        dist.destroy_process_group()
