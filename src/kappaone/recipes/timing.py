"""How long a run will take, from a few of its real steps on this machine."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kappaone.recipes.recipe import Recipe, options_to_dict
from kappaone.recipes.record import RECORD_NAME

PROBE_STEPS = 12


@dataclass(frozen=True)
class RunTime:
    """Seconds of one run, by what they depend on; measured on one thread.

    Attributes:
        fixed: data, model, initialisation, measuring attention before and after.
        step: one optimizer step.
        evaluation: one evaluation on the test data.
    """

    fixed: float
    step: float
    evaluation: float

    def run(self, steps: int, evaluations: int) -> float:
        """Seconds of a run of so many steps and evaluations.

        Examples:
            >>> RunTime(fixed=1.0, step=0.1, evaluation=0.5).run(20, 3)
            4.5
        """
        return self.fixed + steps * self.step + evaluations * self.evaluation


def probe_run_time(recipe: Recipe, options: Any, arm: str, *, seed: int) -> RunTime:
    """Time a run of a few steps in this process, on one thread, as a study's workers have.

    The probe is a run like any other, of the same function, so it also finds what would make every run fail. Its
    metrics are thrown away. The global random state and the number of threads are given back as they were.

    Args:
        recipe: what to train; its run writes `record.json` with "seconds", as the recipes here do.
        options: the options of the study.
        arm: the arm to time.
        seed: a seed; nothing of the result depends on it.

    Returns:
        The seconds.
    """
    import torch

    import kappaone.recipes.preload  # noqa: F401  # runs find it loaded, so its seconds must not count here
    from kappaone.studies.callables import load

    short = replace(options, steps=PROBE_STEPS, warmup_steps=0, evaluate_every=PROBE_STEPS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            spec = {"arm": arm, "seed": seed, "options": options_to_dict(short), "out": folder}
            load(recipe.run)(spec, lambda line: None)
            seconds = json.loads((Path(folder) / RECORD_NAME).read_text(encoding="utf-8"))["seconds"]
    finally:
        torch.set_num_threads(threads)
    fixed = sum(seconds.get(part, 0.0) for part in ("data", "build", "initialise", "inspect"))
    # Two evaluations were made: before the first step and after the last.
    return RunTime(fixed=fixed, step=seconds["train"] / PROBE_STEPS, evaluation=seconds["evaluate"] / 2)
