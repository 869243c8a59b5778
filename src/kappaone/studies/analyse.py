"""From finished runs to what they say, by the plan and nothing else: same runs, same result, to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kappaone.errors import StudyError
from kappaone.studies.metrics import curve
from kappaone.studies.pairing import PairedTable, paired_table, pairing
from kappaone.studies.plan import EFFECTS, Contrast, Plan
from kappaone.studies.results import (
    ArmSummary,
    CausalResult,
    ContrastResult,
    Curve,
    ExactTest,
    Level,
    MinimumDetectable,
    NoiseFloor,
    StudyAnalysis,
    TargetResult,
    TargetRow,
)
from kappaone.studies.statistics import (
    Estimate,
    SignFlip,
    estimates,
    minimum_detectable,
    sign_flip_max_t,
    simultaneous_level,
    spread,
    steps_to_target,
    t_interval,
)
from kappaone.studies.store import RunRecord
from kappaone.studies.verdict import ALPHA, SEEDS_FOR_EXACT_TEST, decide, describe, number, span

Array = npt.NDArray[np.float64]
POWER = 0.8
TRAIN_LOSS = "train_loss"


def analyse(plan: Plan, runs: Iterable[RunRecord], *, provenance: Mapping[str, Any] | None = None) -> StudyAnalysis:
    """Analyse the finished runs of a plan.

    Args:
        plan: the plan that was fixed before the runs.
        runs: finished runs (`Store.records`); runs of arms or seeds outside the plan are an error.
        provenance: what is known about when and where they were made.

    Returns:
        The analysis; an unfinished study gives one that warns that it is interim.

    Raises:
        StudyError: a run does not belong to the plan, or there are two of one.
        MissingExtra: scipy is not installed.
    """
    by_job = _by_job(plan, runs)
    warnings: list[str] = []
    outcomes = _outcomes(plan, by_job, warnings)
    table = paired_table(plan.arms, plan.seeds, outcomes)
    differences = table.differences(plan.contrasts)
    level = simultaneous_level(differences, table.weights(plan.contrasts), alpha=ALPHA)
    found = estimates(differences, level)
    flips = sign_flip_max_t(differences)
    contrasts = tuple(
        _contrast(plan, c, differences[:, j], e, _p(flips, j))
        for j, (c, e) in enumerate(zip(plan.contrasts, found, strict=True))
    )
    noise = _noise_floor(plan, table, contrasts, warnings)
    metrics = dict.fromkeys([plan.metric, TRAIN_LOSS, *([plan.target.metric] if plan.target else [])])
    curves = {m: c for m in metrics if (c := _curves(plan, by_job, m)) or m == plan.metric}
    return StudyAnalysis(
        plan=plan,
        provenance={**(provenance or {}), "plan_hash": plan.digest},
        arms=tuple(_arm(plan, arm, table, by_job) for arm in plan.arms),
        curves=curves,
        noise_floor=noise,
        pairing=pairing(table),
        mde=_mde(plan, noise, contrasts, level),
        exact_test=_exact_test(flips),
        level=level,
        contrasts=contrasts,
        causal=_causal(plan, table, contrasts),
        target=_target(plan, by_job, warnings),
        tracked=_tracked(plan, by_job, warnings),
        warnings=tuple(warnings),
    )


def _by_job(plan: Plan, runs: Iterable[RunRecord]) -> dict[tuple[str, int], RunRecord]:
    found: dict[tuple[str, int], RunRecord] = {}
    for run in runs:
        if run.arm not in plan.arms or run.seed not in plan.seeds or (run.arm, run.seed) in found:
            raise StudyError(
                f"the run of {run.arm!r}, seed {run.seed} is not in the plan, or there are two of it",
                "analyse the runs of one study only",
            )
        found[run.arm, run.seed] = run
    return found


def _outcomes(
    plan: Plan, by_job: Mapping[tuple[str, int], RunRecord], warnings: list[str]
) -> dict[tuple[str, int], float | None]:
    found: dict[tuple[str, int], float | None] = {}
    diverged, failed, missing = [], [], []
    for arm in plan.arms:
        for seed in plan.seeds:
            run = by_job.get((arm, seed))
            if run is None:
                missing.append(f"{arm} {seed}")
            elif run.result.status == "failed":
                failed.append(f"{arm} {seed}")
            elif run.result.status == "diverged":
                diverged.append(f"{arm} {seed}")
                found[arm, seed] = plan.diverged_value
            else:
                found[arm, seed] = run.result.metrics[plan.metric]
    if missing:
        warnings.append(
            f"interim: {len(missing)} of {len(plan.arms) * len(plan.seeds)} runs are not finished; verdicts are meant "
            "to be read "
            "once, at the end"
        )
    if diverged and plan.diverged_value is None:
        warnings.append(
            f"diverged runs are left out ({', '.join(diverged)}, arm and seed): each contrast is analysed on the "
            "seeds where all "
            "of its runs finished, which is optimistic for the arm that diverged"
        )
    elif diverged:
        warnings.append(
            f"diverged runs ({', '.join(diverged)}, arm and seed) enter with {plan.metric} = "
            f"{number(plan.diverged_value or 0.0)}, "
            "as planned"
        )
    if failed:
        warnings.append(
            f"failed runs are left out ({', '.join(failed)}, arm and seed): each contrast is analysed on the seeds "
            "where all of "
            "its runs finished"
        )
    seen: dict[str, set[str]] = {}
    for run in by_job.values():
        for library, version in run.result.versions.items():
            seen.setdefault(library, set()).add(version)
    if mixed := {k: sorted(v) for k, v in seen.items() if len(v) > 1}:
        warnings.append(f"runs were made with different versions: {mixed}")
    return found


def _arm(plan: Plan, arm: str, table: PairedTable, by_job: Mapping[tuple[str, int], RunRecord]) -> ArmSummary:
    column = table.column(arm)
    values = column[np.isfinite(column)]

    def having(status: str) -> tuple[int, ...]:
        return tuple(s for s in plan.seeds if (r := by_job.get((arm, s))) is not None and r.result.status == status)

    return ArmSummary(
        name=arm,
        n=len(values),
        mean=float(values.mean()) if len(values) else None,
        sd=spread(values) if len(values) > 1 else None,
        values={s: float(v) if np.isfinite(v) else None for s, v in zip(plan.seeds, column, strict=True)},
        diverged=having("diverged"),
        failed=having("failed"),
    )


def _p(flips: SignFlip, j: int) -> float | None:
    return float(flips.p[j]) if np.isfinite(flips.p[j]) else None


def _contrast(plan: Plan, contrast: Contrast, column: Array, estimate: Estimate, p: float | None) -> ContrastResult:
    verdict = decide(estimate, p, margin=plan.margin, higher_is_better=plan.higher_is_better, kind=contrast.kind)
    return ContrastResult(
        name=contrast.name,
        kind=contrast.kind,
        weights=contrast.weights,
        differences={s: float(d) for s, d in zip(plan.seeds, column, strict=True) if np.isfinite(d)},
        n=estimate.n,
        mean=estimate.mean,
        sd=estimate.sd,
        interval=estimate.interval,
        interval90=estimate.interval90,
        p_maxt=p,
        verdict=verdict,
        words=describe(contrast, estimate, p, verdict, plan),
    )


def _noise_floor(
    plan: Plan, table: PairedTable, contrasts: Sequence[ContrastResult], warnings: list[str]
) -> NoiseFloor | None:
    if plan.noise_arm is None:
        warnings.append("there is no A/A arm: how much chance alone moves the result was not measured")
        return None
    weights = {plan.noise_arm: 1.0, plan.reference: -1.0}
    declared = next((c for c in contrasts if c.weights == weights), None)
    if declared is not None:
        n, mean, sd, interval = declared.n, declared.mean, declared.sd, declared.interval
        family = "a member of the family of contrasts, so its interval is simultaneous like theirs"
        if declared.verdict in ("better", "worse"):
            warnings.append(
                f"the A/A arm {plan.noise_arm} is called {declared.verdict} than {plan.reference}: either this is the "
                "one family "
                "in twenty, or the arms differ by more than chance; read the other verdicts with that in mind"
            )
    else:
        d = table.differences([Contrast("noise", "arm", weights)])[:, 0]
        d = d[np.isfinite(d)]
        n, mean, sd = len(d), float(d.mean()) if len(d) else None, spread(d) if len(d) > 1 else None
        interval = t_interval(d, ALPHA)
        family = "not among the declared contrasts, so its interval is unadjusted"
    if mean is None or sd is None or interval is None:
        words = f"Noise floor: {plan.noise_arm} has too few finished seeds beside {plan.reference} to say anything."
    elif sd == 0 and mean == 0:
        words = (
            f"Noise floor: {plan.noise_arm} and {plan.reference} are identical in all {n} seeds; chance was not "
            "measured."
        )
    else:
        words = (
            f"Noise floor: {plan.noise_arm} against {plan.reference}, the same method with another draw, differs by "
            f"{number(mean, True)} {plan.metric} {span(interval)} on average and by {number(sd)} (sd) from seed to "
            "seed, "
            f"over {n} seeds; it is {family}."
        )
    return NoiseFloor(plan.noise_arm, mean, sd, interval, n, words)


def _mde(plan: Plan, noise: NoiseFloor | None, contrasts: Sequence[ContrastResult], level: float) -> MinimumDetectable:
    if noise is not None and noise.sd is not None:
        n, sd, source = noise.n, noise.sd, "the noise of the A/A arm"
    else:
        usable = [c for c in contrasts if c.sd is not None and c.kind == "arm"] or [
            c for c in contrasts if c.sd is not None
        ]
        if not usable:
            return MinimumDetectable(None, None, None, POWER, ALPHA, "Minimum detectable effect: too few seeds to say.")
        n = min(c.n for c in usable)
        sd = float(np.median([c.sd for c in usable if c.sd is not None]))
        source = "the median noise of the contrasts"
    if sd == 0:
        words = f"Minimum detectable effect: {source} is 0, so any difference at all would show."
        return MinimumDetectable(0.0, 0.0, 0.0, POWER, ALPHA, words)
    found = minimum_detectable(n, sd, level, power=POWER)
    words = (
        f"Minimum detectable effect: with {n} seeds and {source}, a true difference of {number(found.value)} "
        f"{plan.metric} "
        f"(between {number(found.low)} and {number(found.high)}, as that noise is itself uncertain) is seen by the "
        "simultaneous "
        f"interval {POWER:.0%} of the time; the exact check can only ask for more."
    )
    if found.value > plan.margin:
        words += (
            f" That is more than the margin of ±{number(plan.margin)}: this study is too small to settle what matters."
        )
    if n < SEEDS_FOR_EXACT_TEST:
        words += " And with so few seeds the exact check can confirm nothing."
    return MinimumDetectable(found.value, found.low, found.high, POWER, ALPHA, words)


def _exact_test(flips: SignFlip) -> ExactTest:
    if flips.exact:
        words = f"Exact check: all {flips.vectors} sign vectors of {flips.n} seeds; the smallest p there can be is "
        words += f"{number(flips.smallest_p)}."
    else:
        words = (
            f"Check by {flips.vectors} random sign vectors of {flips.n} seeds (Monte Carlo, not exact); the smallest "
            "p there can "
            f"be is {number(flips.smallest_p)}."
        )
    if flips.n < SEEDS_FOR_EXACT_TEST:
        words += f" With {flips.n} seeds no exact test can reject at .05: no arm can be called better or worse."
    return ExactTest(flips.n, flips.smallest_p, words, flips.exact, flips.vectors)


def _causal(plan: Plan, table: PairedTable, contrasts: Sequence[ContrastResult]) -> CausalResult | None:
    if not isinstance(plan.cells, Mapping):
        return None
    cells = plan.cells
    wanted = {name: {cells[cell]: w for cell, w in by_cell.items()} for name, by_cell in EFFECTS.items()}
    effects = {name: next((c for c in contrasts if c.weights == w), None) for name, w in wanted.items()}
    if any(c is None for c in effects.values()):
        return None
    means = {}
    for cell, arm in cells.items():
        column = table.column(arm)
        means[cell] = float(np.nanmean(column)) if np.isfinite(column).any() else None
    said = {
        "positive": "improves",
        "negative": "worsens",
        "equivalent": "does not matter for",
        "inconclusive": "cannot be told for",
    }
    sentences = []
    for name in ("scale", "spectrum"):
        c = effects[name]
        if c is not None and c.mean is not None and c.interval is not None:
            subject = "the larger scale by itself" if name == "scale" else "the conditioned spectrum by itself"
            effect = f"{said[c.verdict]} {plan.metric}"
            if c.verdict == "equivalent":
                effect += f" by more than ±{number(plan.margin)}"
            if c.verdict == "inconclusive":
                effect = f"has an effect on {plan.metric} that these seeds do not settle"
            sentences.append(f"{subject} {effect} ({number(c.mean, True)} {span(c.interval)})")
    words = (
        "In the 2x2 of spectrum and scale, " + "; ".join(sentences) + "." if sentences else "The 2x2 has too few seeds."
    )
    both = effects["interaction"]
    if both is not None and both.mean is not None and both.interval is not None:
        values = f"({number(both.mean, True)} {span(both.interval)})"
        words += {
            "equivalent": f" The two act independently {values}.",
            "inconclusive": f" Whether one depends on the other is open {values}.",
        }.get(both.verdict, f" They do not act independently {values}: read each cell by itself, not the averages.")
    return CausalResult(tuple(c.name for c in effects.values() if c is not None), means, dict(cells), words)


def _curves(plan: Plan, by_job: Mapping[tuple[str, int], RunRecord], metric: str) -> dict[str, Curve]:
    found = {}
    for arm in plan.arms:
        by_step: dict[int, list[float]] = {}
        for seed in plan.seeds:
            run = by_job.get((arm, seed))
            for step, value in curve(run.records, metric).items() if run is not None else ():
                if np.isfinite(value):
                    by_step.setdefault(step, []).append(value)
        if by_step:
            levels = [(step, _level(by_step[step])) for step in sorted(by_step)]
            found[arm] = Curve(
                steps=tuple(step for step, _ in levels),
                mean=tuple(v.mean for _, v in levels if v.mean is not None),
                low=tuple(v.low for _, v in levels),
                high=tuple(v.high for _, v in levels),
            )
    return found


def _level(values: Sequence[float]) -> Level:
    finite = np.array([v for v in values if np.isfinite(v)])
    interval = t_interval(finite, ALPHA)
    return Level(
        mean=float(finite.mean()) if len(finite) else None,
        low=interval[0] if interval else None,
        high=interval[1] if interval else None,
        n=len(finite),
    )


def _tracked(
    plan: Plan, by_job: Mapping[tuple[str, int], RunRecord], warnings: list[str]
) -> dict[str, dict[str, dict[str, Level]]]:
    found: dict[str, dict[str, dict[str, Level]]] = {}
    for metric in plan.tracked:
        arms = {}
        infinite = 0
        for arm in plan.arms:
            ends = [
                list(c.values())
                for seed in plan.seeds
                if (run := by_job.get((arm, seed))) is not None and (c := curve(run.records, metric))
            ]
            if ends:
                first, last = [e[0] for e in ends], [e[-1] for e in ends]
                infinite += sum(not np.isfinite(v) for v in (*first, *last))
                arms[arm] = {"first": _level(first), "last": _level(last)}
        if not arms:
            warnings.append(f"the tracked metric {metric} was recorded by no run")
        if infinite:
            warnings.append(f"{metric}: {infinite} first or last values are not finite and are left out of its means")
        found[metric] = arms
    return found


def _target(plan: Plan, by_job: Mapping[tuple[str, int], RunRecord], warnings: list[str]) -> TargetResult:
    rule = plan.target
    if rule is None:
        return TargetResult(None, (), None, "Steps to target were not planned.")
    finished = {job: run for job, run in by_job.items() if run.result.status != "failed"}
    try:
        reached, horizon, notes = steps_to_target(
            {job: curve(run.records, rule.metric) for job, run in finished.items()},
            rule=rule,
            arms=plan.arms,
            seeds=plan.seeds,
            reference=plan.reference,
            diverged=frozenset(job for job, run in finished.items() if run.result.status == "diverged"),
        )
    except StudyError as error:  # the rest of the analysis stands; the page and the table show why this part is missing
        warnings.append(f"steps to target could not be counted: {error.what}")
        return TargetResult(rule.to_dict(), (), None, f"Steps to target could not be counted: {error.what}.")
    warnings.extend(notes)
    steps = {r.arm: r.steps for r in reached}
    rows = tuple(_target_row(plan, arm, steps[arm], steps[plan.reference], horizon) for arm in plan.arms)
    words = (
        f"Target of a seed: {plan.reference}'s {rule.metric} at its end (last {rule.tail:.0%} of a trailing mean over "
        f"{rule.window} evaluations); reached at the first of {rule.consecutive} evaluations in a row. "
        f"{plan.reference} is counted "
        "by the same rule; intervals are unadjusted."
    )
    return TargetResult(rule.to_dict(), rows, horizon, words)


def _target_row(
    plan: Plan, arm: str, steps: Mapping[int, int | None], reference: Mapping[int, int | None], horizon: int
) -> TargetRow:
    def capped(value: int | None) -> float:
        return float(horizon if value is None else min(value, horizon))

    count = sum(s is not None for s in steps.values())
    base = f"{arm}: reached in {count} of {len(steps)} seeds"
    if arm == plan.reference:
        return TargetRow(arm, steps, count, len(steps), None, None, f"{base} (the reference, by the same rule).")
    d = np.array([capped(steps[s]) - capped(reference[s]) for s in steps if s in reference])
    interval = t_interval(d, ALPHA)
    if not len(d) or interval is None:
        return TargetRow(arm, steps, count, len(steps), float(d.mean()) if len(d) else None, None, f"{base}.")
    mean = float(d.mean())
    words = (
        f"{base}, {number(mean, True)} steps against {plan.reference}, 95 % interval {span(interval)} of at most "
        f"{horizon}."
    )
    if arm == plan.noise_arm:
        words += " This is the A/A arm: what the rule makes of chance."
    return TargetRow(arm, steps, count, len(steps), mean, interval, words)
