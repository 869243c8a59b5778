"""Steps to target, counted so that noise does not count as speed.

The first crossing of a noisy curve over another curve's final value comes early even between identical arms. Therefore:
the target of a seed is the mean of the end of the reference's smoothed curve; a run has reached it at the first of
several consecutive evaluations of its own curve, smoothed alike, that are at or beyond the target; the reference is
counted by the same rule; and the A/A arm stands beside it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kappaone.errors import StudyError
from kappaone.studies.plan import TargetRule

Array = npt.NDArray[np.float64]
Curve = Mapping[int, float]


@dataclass(frozen=True)
class Reached:
    """One arm's steps to target.

    Attributes:
        arm: the arm.
        steps: by seed, the step at which the target was reached, or None (censored at the horizon). Seeds without a
            target or without a run are absent.
    """

    arm: str
    steps: Mapping[int, int | None]


def on_grid(curve: Curve, grid: int | tuple[int, ...] | None) -> tuple[tuple[int, ...], Array]:
    """Steps and values of a curve on the plan's evaluation grid.

    Examples:
        >>> on_grid({10: 0.1, 15: 0.2, 20: 0.3}, 10)[0]
        (10, 20)
    """
    steps = sorted(curve)
    if isinstance(grid, tuple):
        steps = [s for s in steps if s in set(grid)]
    elif grid is not None:
        steps = [s for s in steps if s % grid == 0]
    return tuple(steps), np.array([curve[s] for s in steps], dtype=float)


def trailing_mean(values: Array, window: int) -> Array:
    """Means of `window` consecutive values; entry i belongs to value i + window - 1.

    Examples:
        >>> trailing_mean(np.array([1.0, 2.0, 6.0]), 2).tolist()
        [1.5, 4.0]
    """
    if len(values) < window:
        return np.empty(0)
    # each window summed by itself: a running sum would carry one NaN to the end
    windows = np.lib.stride_tricks.sliding_window_view(values, window)
    result: Array = windows.mean(axis=1)
    return result


def target_value(smoothed: Array, tail: float) -> float:
    """Mean over the last `tail` of a smoothed curve, at least one evaluation of it."""
    return float(smoothed[-max(1, math.floor(tail * len(smoothed) + 1e-9)) :].mean())


def crossing(smoothed: Array, target: float, *, higher_is_better: bool, consecutive: int) -> int | None:
    """Index of the first of `consecutive` values in a row at or beyond the target, or None.

    Examples:
        >>> crossing(np.array([0.0, 1.0, 0.0, 1.0, 1.0]), 1.0, higher_is_better=True, consecutive=2)
        3
    """
    beyond = smoothed >= target if higher_is_better else smoothed <= target
    run = 0
    for i, good in enumerate(beyond):
        run = run + 1 if good else 0
        if run == consecutive:
            return i - consecutive + 1
    return None


def steps_to_target(
    curves: Mapping[tuple[str, int], Curve],
    *,
    rule: TargetRule,
    arms: Sequence[str],
    seeds: Sequence[int],
    reference: str,
    diverged: frozenset[tuple[str, int]] = frozenset(),
) -> tuple[list[Reached], int, list[str]]:
    """Steps to target of every arm.

    Args:
        curves: the metric by step, by (arm, seed); runs without a result are absent.
        rule: the plan's rule, its metric and direction resolved.
        arms: arms, in the order wanted.
        seeds: seeds.
        reference: the arm whose end sets each seed's target.
        diverged: runs that diverged: the arm's count as not reached, whatever they touched before; a reference's leaves
            its seed without a target.

    Returns:
        The arms' steps, the horizon T (the last evaluation of the reference), and what people must know about it.

    Raises:
        StudyError: a run was not evaluated at the steps of its reference, or there are fewer evaluations than the rule
            needs.
    """
    notes: list[str] = []
    found: dict[str, dict[int, int | None]] = {arm: {} for arm in arms}
    horizon = 0
    for seed in seeds:
        if (reference, seed) not in curves or (reference, seed) in diverged:
            notes.append(f"steps to target: seed {seed} has no target, as {reference} did not finish there")
            continue
        steps, values = on_grid(curves[reference, seed], rule.grid)
        if isinstance(rule.grid, tuple) and steps != rule.grid:
            missing = sorted(set(rule.grid) - set(steps))
            raise StudyError(
                f"{reference}, seed {seed} has no {rule.metric} at steps {missing[:5]} of the target rule's grid",
                "evaluate there, or plan another grid",
            )
        smoothed = trailing_mean(values, rule.window)
        if len(smoothed) < rule.consecutive:
            raise StudyError(
                f"{reference}, seed {seed} has {len(values)} evaluations of {rule.metric} on the grid; the target "
                "rule needs "
                f"at least {rule.window + rule.consecutive - 1}",
                "evaluate more often, or plan a smaller window",
            )
        target = target_value(smoothed, rule.tail)
        horizon = max(horizon, steps[-1])
        for arm in arms:
            if (arm, seed) not in curves:
                continue
            if (arm, seed) in diverged:
                found[arm][seed] = None
                continue
            own_steps, own = on_grid(curves[arm, seed], rule.grid)
            if own_steps != steps:
                raise StudyError(
                    f"{arm}, seed {seed} was evaluated at {len(own_steps)} steps that are not the {len(steps)} of "
                    f"{reference}",
                    "evaluate all arms at the same steps, or plan a grid that they share",
                )
            index = crossing(
                trailing_mean(own, rule.window),
                target,
                higher_is_better=bool(rule.higher_is_better),
                consecutive=rule.consecutive,
            )
            found[arm][seed] = None if index is None else steps[index + rule.window - 1]
    return [Reached(arm, steps) for arm, steps in found.items()], horizon, notes
