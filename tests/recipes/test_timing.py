"""The probe that says how long a study takes."""

from __future__ import annotations

import math

import torch

from kappaone.recipes import get_recipe
from kappaone.recipes.timing import PROBE_STEPS, RunTime, probe_run_time


def test_the_probe_times_real_steps_and_leaves_the_process_as_it_was() -> None:
    recipe = get_recipe("images")
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    timed = probe_run_time(recipe, recipe.make_options("smoke"), "default", seed=9)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert min(timed.fixed, timed.step, timed.evaluation) > 0
    assert math.isclose(timed.run(PROBE_STEPS, 2), timed.fixed + PROBE_STEPS * timed.step + 2 * timed.evaluation)


def test_seconds_add_up() -> None:
    timed = RunTime(fixed=2.0, step=0.25, evaluation=0.5)
    assert timed.run(0, 0) == 2.0
    assert timed.run(8, 3) == 2.0 + 2.0 + 1.5
