"""Compare arms on a recipe: make the plan, say how long it takes, run the study, analyse it."""

from __future__ import annotations

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kappaone.errors import KappaoneWarning, SpecError
from kappaone.recipes.progress import StudyProgress, duration
from kappaone.recipes.recipe import NO_ARM, Recipe, get_recipe, options_from_dict, options_to_dict
from kappaone.recipes.record import RECORD_NAME
from kappaone.recipes.timing import probe_run_time
from kappaone.schemes import understand
from kappaone.studies import Plan, Study, TargetRule

if TYPE_CHECKING:
    from kappaone.studies import StudyAnalysis

# Runs are forked from a process that has these loaded: importing them takes seconds, and a study has many runs.
PRELOAD = ("torch", "kappaone.recipes.preload")


def compare(
    recipe: str | Recipe = "images",
    arms: Sequence[str] | None = None,
    seeds: int | Iterable[int] = 8,
    *,
    preset: str = "tiny",
    out: str | os.PathLike[str] | None = None,
    workers: int = 2,
    progress: bool = True,
    margin: float | None = None,
    reference: str | None = None,
    **options: Any,
) -> StudyAnalysis:
    """Train every arm with every seed and say what the paired differences show.

    The plan is fixed before the first run and stored with the results; a call with the same arguments goes on where
    an earlier one was stopped, and finds a finished study finished.

    Args:
        recipe: a registered name, "package.module:NAME", "file.py:NAME", or a `Recipe`.
        arms: schemes, as `kappaone.init_` reads them, or "none"; None for the recipe's own.
        seeds: a number n for the seeds 0 to n - 1, or the seeds themselves.
        preset: the recipe's preset.
        out: the study's folder; None for `studies/<recipe>-<preset>-<hash of the plan>` below the working directory.
        workers: runs at a time, each on one thread.
        progress: say beforehand how long it takes, and show a bar with the time left, on stderr.
        margin: differences within it count as equivalent, in the unit of the metric; None for the recipe's.
        reference: the arm that the others are compared with; None for the recipe's.
        options: options of the recipe that replace those of the preset.

    Returns:
        The analysis: prints as a table, `to_dict()` for pages and files.

    Raises:
        SpecError: a wrong recipe, preset, option, arm or seed; the right ones are listed.
        StudyError: the folder holds another study, or nothing in it works.
        MissingExtra: a library is missing; the error says what to install.

    Examples:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +SKIP
        ...     print(compare("images", ["default", "conditioned"], seeds=8, out=folder))
    """
    found = get_recipe(recipe)
    plan = plan_comparison(found, arms, seeds, preset=preset, margin=margin, reference=reference, **options)
    study = Study.create(comparison_folder(plan, out), plan)
    settled = options_from_dict(found.options, plan.runner["options"])
    reporter = StudyProgress(enabled=progress)
    status = study.status()
    if not status.complete:
        expected = None
        if progress:
            reporter.say(announcement(found, plan, settled))
            # The seed after the last: its numbers are thrown away.
            timed = probe_run_time(found, settled, plan.reference, seed=max(plan.seeds) + 1)
            left = status.total - status.ok - status.diverged
            each = timed.run(settled.steps, len(settled.evaluation_steps()))
            expected = each * -(-left // workers)
            done = "" if left == status.total else f" ({status.total - left} of {status.total} are there already)"
            reporter.say(
                f"About {duration(expected)} for {left} runs{done}: {each:.1f} s each, {timed.step * 1e3:.0f} ms a step, "
                f"{workers} at a time. Stopped at any moment, the same command goes on from there. Folder: {study.folder}"
            )
        with reporter.bar(expected) as tell:
            status = study.run(workers=workers, preload=PRELOAD, progress=tell)
    for problem in pairing_problems(study.folder):
        warnings.warn(problem, KappaoneWarning, stacklevel=2)
    for (arm, seed), detail in status.failures.items():
        warnings.warn(f"the run of {arm!r} with seed {seed} failed: {detail}", KappaoneWarning, stacklevel=2)
    return study.analyse()


def plan_comparison(
    recipe: str | Recipe = "images",
    arms: Sequence[str] | None = None,
    seeds: int | Iterable[int] = 8,
    *,
    preset: str = "tiny",
    margin: float | None = None,
    reference: str | None = None,
    **options: Any,
) -> Plan:
    """The plan of `compare`, without running it; the arguments are the same.

    Whatever depends on the machine (which data "auto" means) is settled here, once for all runs.

    Returns:
        The plan.

    Raises:
        SpecError: a wrong recipe, preset, option, arm or seed.
        StudyError: the plan does not hold together.

    Examples:
        >>> plan = plan_comparison("images", ["default", "conditioned"], seeds=8, preset="smoke", dataset="mnist-5k")
        >>> plan.seeds, plan.metric, plan.margin
        ((0, 1, 2, 3, 4, 5, 6, 7), 'test_accuracy', 0.005)
    """
    found = get_recipe(recipe)
    if found.study is None:
        raise SpecError(f"recipe {found.name!r} does not say how it is compared", "give its Recipe a StudyDefaults")
    defaults = found.study
    chosen = tuple(defaults.arms if arms is None else arms)
    for arm in chosen:
        if arm != NO_ARM:
            understand(arm)  # a wrong arm is found now, not in the middle of the study
    settled = found.resolve(found.make_options(preset, **options))
    against = defaults.reference if reference is None else reference
    grid: tuple[int, ...] = settled.evaluation_steps()
    return Plan(
        name=f"{found.name}-{preset}",
        arms=chosen,
        seeds=seeds_from(seeds),
        reference=against,
        noise_arm=defaults.noise_arm if defaults.noise_arm in chosen and against == defaults.reference else None,
        metric=defaults.metric,
        higher_is_better=defaults.higher_is_better,
        margin=defaults.margin if margin is None else margin,
        target=TargetRule(grid=grid, window=min(defaults.target_window, len(grid)), tail=defaults.target_tail),
        tracked=defaults.tracked,
        runner={"callable": found.run, "options": options_to_dict(settled)},
    )


def comparison_folder(plan: Plan, out: str | os.PathLike[str] | None = None) -> Path:
    """Where `compare` keeps a study: `out`, or a folder named after the plan, the same for the same plan.

    Examples:
        >>> plan = plan_comparison("images", ["default", "conditioned"], preset="smoke", dataset="mnist-5k")
        >>> comparison_folder(plan).parent.name, comparison_folder(plan).name[:13]
        ('studies', 'images-smoke-')
    """
    return Path(out) if out is not None else Path("studies") / f"{plan.name}-{plan.digest[:8]}"


def seeds_from(seeds: int | Iterable[int]) -> tuple[int, ...]:
    """The seeds that a number or a list means: a number n is 0 to n - 1, so that none can be picked by its result.

    Raises:
        SpecError: a number below 2, or something that is neither.

    Examples:
        >>> seeds_from(3), seeds_from([5, 7])
        ((0, 1, 2), (5, 7))
    """
    if isinstance(seeds, bool | str | float):
        raise SpecError(f"seeds is {seeds!r}; expected a whole number or a list of them", "for instance seeds=8")
    if isinstance(seeds, int):
        if seeds < 2:
            raise SpecError(f"seeds is {seeds}; expected at least 2 seeds", "use 6 or more for an exact test at .05")
        return tuple(range(seeds))
    return tuple(seeds)


def announcement(recipe: Recipe, plan: Plan, options: Any) -> str:
    """One paragraph for people: what will be run, and what was fixed beforehand."""
    lines = [
        f"{recipe.name}: {recipe.summary}.",
        f"{len(plan.arms)} arms x {len(plan.seeds)} seeds = {len(plan.arms) * len(plan.seeds)} runs of {options.steps} steps"
        + (f" on {options.dataset}" if hasattr(options, "dataset") else "")
        + f"; seeds {_listed(plan.seeds)}.",
        f"Fixed beforehand: {plan.metric}, reference {plan.reference}, equivalence within {plan.margin:g}.",
    ]
    return "\n".join(lines)


def pairing_problems(folder: Path) -> list[str]:
    """What the runs' records say against the pairing: arms of one seed that did not share data or tensors.

    Args:
        folder: the study's folder.

    Returns:
        One sentence a problem; none if every seed's arms agree.
    """
    seen: dict[int, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted((folder / "runs").glob(f"*/{RECORD_NAME}")):
        record = json.loads(path.read_text(encoding="utf-8"))
        data = json.dumps(record.get("data", {}).get("sha256"), sort_keys=True)
        tensors = str(record.get("initialisation", {}).get("non_attention_sha256"))
        seen[record["seed"]][data, tensors].append(record["arm"])
    problems = []
    for seed, groups in sorted(seen.items()):
        if len(groups) > 1:
            what = "data" if len({data for data, _ in groups}) > 1 else "tensors outside attention"
            sides = " | ".join(", ".join(arms) for arms in groups.values())
            problems.append(
                f"seed {seed}: the arms differ in their {what} ({sides}), so their differences are not those of "
                "attention's initialization alone"
            )
    return problems


def _listed(seeds: Sequence[int]) -> str:
    if list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}"
    return ", ".join(str(seed) for seed in seeds)
