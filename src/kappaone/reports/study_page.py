"""The page of a study: everything on it is read from the analysis's dict, nothing is estimated here."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kappaone.errors import SpecError
from kappaone.reports import figures
from kappaone.reports.numbers import MISSING, finite, number, pair, show, show_apart, show_interval, show_with_interval
from kappaone.reports.palette import PLAIN, Look, looks
from kappaone.reports.parts import Figure, Key, Table
from kappaone.reports.study_words import contrasted_arm, listing, outcome, question

Dict = Mapping[str, Any]
_LOG = ("kappa", "condition", "sigma")
_NEEDED = ("plan", "arms", "contrasts")


def study_context(result: Dict) -> dict[str, Any]:
    """Everything that the template of a study needs.

    Args:
        result: the analysis of a study, as its `to_dict()` gives it (schema 1), secrets already masked.

    Raises:
        SpecError: a part that every analysis has is missing.
    """
    missing = [key for key in _NEEDED if key not in result]
    if missing:
        raise SpecError(
            f"a study's page needs {listing(list(_NEEDED))}; this analysis has no {listing(missing)}",
            "pass the result of kappaone.compare or of `kappaone study report`, whole",
        )
    plan, contrasts = result["plan"], list(result["contrasts"])
    names = [str(arm["name"]) for arm in result["arms"]]
    look = looks([*plan.get("arms", []), *names], plan.get("reference"))
    seeds = max((int(arm.get("n", 0)) for arm in result["arms"]), default=0)
    return {
        "title": f"Study: {plan.get('name') or 'unnamed'}",
        "plan": plan,
        "seeds": seeds,
        "question": question(plan, seeds),
        "outcome": outcome(plan, contrasts),
        "warnings": list(result.get("warnings") or []),
        "facts": _facts(result),
        "effects_figure": _effects(plan, contrasts, look),
        "effects_table": _effects_table("All contrasts", contrasts),
        "verdicts": [_verdict(contrast, plan) for contrast in contrasts],
        "curves": _curves(plan, result.get("curves") or {}, look),
        "causal": _causal(result, contrasts),
        "target": _target(plan, result.get("target"), look),
        "tracked": _tracked(result.get("tracked") or {}, plan, look),
        "arms_table": _arms_table(result["arms"]),
        "values_table": _values_table(result["arms"]),
        "provenance": _pairs_table("Provenance", result.get("provenance") or {}),
        "plan_table": _pairs_table("The plan", {k: v for k, v in plan.items() if k not in ("contrasts", "runner")}),
        "command": _command(plan.get("runner") or {}),
    }


def _ordered(names: Iterable[str], plan: Dict) -> list[str]:
    """Names of arms with the reference first and its A/A arm beside it."""
    first = [plan.get("reference"), plan.get("noise_arm")]
    found = list(names)
    return [n for n in first if n in found] + [n for n in found if n not in first]


def _seed_order(seed: str) -> tuple[int, int, str]:
    return (0, int(seed), "") if seed.lstrip("-").isdigit() else (1, 0, seed)


def _dots(values: Dict | None) -> list[tuple[str, float]]:
    """(label, value) by seed, in the order of the seeds, without what cannot be drawn."""
    found = values or {}
    drawn = [(f"seed {seed}", finite(found[seed])) for seed in sorted(found, key=lambda s: _seed_order(str(s)))]
    return [(label, value) for label, value in drawn if value is not None]


def _facts(result: Dict) -> list[dict[str, str]]:
    """The four cards that come before any effect."""
    noise, pairing = result.get("noise_floor"), result.get("pairing") or {}
    mde, exact = result.get("mde") or {}, result.get("exact_test") or {}
    cards = []
    if noise:
        value = show_with_interval(noise.get("mean"), noise.get("interval"), signed=True)
        label = f"A/A difference ({noise.get('arm')}, {show(noise.get('n'))} pairs, sd {show(noise.get('sd'))})"
        cards.append({"head": "Noise floor", "value": value, "label": label, "words": noise.get("words", "")})
    else:
        words = "The plan has no A/A arm: how much two runs of the same method differ was not measured."
        cards.append({"head": "Noise floor", "value": "not measured", "label": "", "words": words})
    value = show_with_interval(pairing.get("correlation"), pairing.get("interval"))
    label = f"correlation within seeds; variance ratio {show(pairing.get('variance_ratio'))}"
    cards.append({"head": "What pairing bought", "value": value, "label": label, "words": pairing.get("words", "")})
    limits = pair((mde.get("low"), mde.get("high")))
    label = f"power {show(mde.get('power'))}, alpha {show(mde.get('alpha'))}"
    cards.append(
        {
            "head": "Smallest effect it could find",
            "value": show_with_interval(mde.get("value"), limits),
            "label": label,
            "words": mde.get("words", ""),
        }
    )
    label = f"smallest p that {show(exact.get('n'))} paired seeds can give"
    cards.append(
        {
            "head": "Exact test",
            "value": show(exact.get("smallest_p")),
            "label": label,
            "words": exact.get("words", ""),
        }
    )
    return cards


def _look_of(contrast: Dict, plan: Dict, look: Mapping[str, Look]) -> Look:
    return look.get(contrasted_arm(contrast, plan.get("reference")) or "", PLAIN)


def _better(plan: Dict) -> str:
    return f"further {'right' if plan.get('higher_is_better', True) else 'left'} is better"


def _effects(plan: Dict, contrasts: Sequence[Dict], look: Mapping[str, Look]) -> Figure | None:
    if not contrasts:
        return None
    margin = finite(plan.get("margin"))
    rows = [
        figures.Row(
            name=contrasted_arm(c, plan.get("reference")) or str(c["name"]),
            remark=str(c.get("verdict", "")),
            look=_look_of(c, plan, look),
            mean=finite(c.get("mean")),
            interval=pair(c.get("interval")),
            inner=pair(c.get("interval90")),
            dots=_dots(c.get("differences")),
        )
        for c in contrasts
    ]
    seeds = sorted({str(s) for c in contrasts for s in c.get("differences") or {}}, key=_seed_order)
    by_seed = Table(
        caption=f"Paired differences in {plan.get('metric')} by seed",
        columns=["Seed", *(str(c["name"]) for c in contrasts)],
        rows=[[s, *(show((c.get("differences") or {}).get(s), signed=True) for c in contrasts)] for s in seeds],
    )
    said = "; ".join(
        f"{c['name']}: {show_with_interval(c.get('mean'), c.get('interval'), signed=True)}, {c.get('verdict')}"
        for c in contrasts
    )
    shaded = f" The shaded band is the equivalence margin, ±{show(margin)}." if margin is not None else ""
    return Figure(
        id="effects-figure",
        title=f"Mean paired differences against {plan.get('reference')}, and the 2×2's effects"
        if any(c.get("kind") == "causal" for c in contrasts)
        else f"Mean paired differences against {plan.get('reference')}",
        alt=f"Interval plot of {len(contrasts)} contrasts in {plan.get('metric')}, {_better(plan)}. {said}.",
        plot=figures.rows_chart(
            rows,
            x_title=f"mean paired difference in {plan.get('metric')} ({_better(plan)})",
            zero=True,
            margin=margin,
        ),
        tables=[by_seed],
        note=f"Thin line: simultaneous 95 % interval; thick line: 90 % interval; dots: one per seed.{shaded}",
    )


def _effects_table(caption: str, contrasts: Sequence[Dict]) -> Table:
    rows = [
        [
            str(c["name"]),
            *show_apart(c.get("mean"), c.get("interval"), signed=True),
            show_interval(c.get("interval90"), signed=True),
            show(c.get("p_maxt"), 3),
            str(c.get("verdict", MISSING)),
        ]
        for c in contrasts
    ]
    heads = ["Contrast", "Mean", "95 % simultaneous", "90 % single", "p (max-T)", "Verdict"]
    return Table(caption, heads, rows, text=frozenset({5}))


def _verdict(contrast: Dict, plan: Dict) -> dict[str, str]:
    weights = contrast.get("weights") or {}
    terms = [f"{show(w, signed=True)} × {arm}" for arm, w in weights.items() if w]
    simple = contrasted_arm(contrast, plan.get("reference")) is not None and set(weights.values()) == {1, -1}
    return {
        "name": str(contrast["name"]),
        "verdict": str(contrast.get("verdict", "")),
        "words": str(contrast.get("words", "")),
        "weights": "" if simple else " ".join(terms),
    }


def _curves(plan: Dict, curves: Dict, look: Mapping[str, Look]) -> list[Figure]:
    found = []
    for place, (metric, by_arm) in enumerate(curves.items()):
        arms = _ordered(by_arm, plan)
        chosen = {arm: by_arm[arm] for arm in arms if by_arm[arm].get("steps")}
        if not chosen:
            continue
        at: dict[str, dict[float, str]] = {}
        for arm, c in chosen.items():
            cells = zip(c["steps"], c["mean"], c["low"], c["high"], strict=True)
            at[arm] = {s: show_with_interval(m, (lo, hi)) for s, m, lo, hi in cells}
        steps = sorted({s for cells in at.values() for s in cells})
        table = Table(
            caption=f"{metric}: mean and pointwise 95 % interval over seeds, by step",
            columns=["Step", *chosen],
            rows=[[show(s), *(at[arm].get(s, MISSING) for arm in chosen)] for s in steps],
        )
        last = "; ".join(
            f"{arm} {show_with_interval(c['mean'][-1], (c['low'][-1], c['high'][-1]))}" for arm, c in chosen.items()
        )
        found.append(
            Figure(
                id=f"curve-{place}",
                title=f"{metric} over training",
                alt=f"Curves of {metric} by step for {len(chosen)} arms. At the last step: {last}.",
                plot=figures.curves(chosen, look, metric=metric),
                tables=[table],
                legend=[Key(arm, look.get(arm, PLAIN)) for arm in chosen],
                toggles=True,
                zoom=True,
                note="Line: mean over seeds; band: pointwise 95 % interval, unpaired. Overlapping bands say little "
                "about paired differences: those are in the effects above.",
            )
        )
    return found


def _causal(result: Dict, contrasts: Sequence[Dict]) -> dict[str, Any] | None:
    causal = result.get("causal")
    if not causal:
        return None
    cells: Dict = causal["cells"]
    effects = [str(e) for e in causal.get("effects", [])]
    arms: Dict = causal.get("arms") or result["plan"].get("cells") or {}
    values = {str(arm["name"]): arm.get("values") for arm in result["arms"]}
    metric = str(result["plan"].get("metric"))
    styles = {"c": Look("#1497f7", "solid", "diamond", "c"), "d": Look("#b55431", "dash", "circle", "d")}
    spectra, scales = (
        {"c": "conditioned spectrum", "d": "default spectrum"},
        {"S": "default's scale", "L": "conditioned's scale"},
    )
    lines = [
        (
            styles[s],
            [finite(cells.get(s + scale)) for scale in scales],
            [_dots(values.get(arms.get(s + scale, ""))) for scale in scales],
        )
        for s in spectra
    ]
    rows = [
        [f"{spectra[s]}, {scales[scale]}", arms.get(s + scale, MISSING), show(cells.get(s + scale))]
        for s in spectra
        for scale in scales
    ]
    table = Table(f"Mean {metric} in the four cells", ["Cell", "Arm", "Mean"], rows, text=frozenset({1}))
    figure = Figure(
        id="causal-figure",
        title="Spectrum by scale: the four cells",
        alt=f"Interaction plot of {metric}. " + "; ".join(f"{r[0]}: {r[2]}" for r in rows) + ".",
        plot=figures.interaction(lines, ticks=list(scales.values()), metric=metric),
        tables=[table],
        legend=[Key(spectra[s], styles[s]) for s in spectra],
        narrow=True,
        note="Large: mean of a cell; small: its seeds, which are paired across cells. Apart from noise, lines that "
        "rise or fall together show the scale, lines one above the other the spectrum, lines that are not parallel "
        "the interaction.",
    )
    chosen = [c for c in contrasts if str(c.get("name")) in effects or c.get("kind") == "causal"]
    return {
        "figure": figure,
        "words": causal.get("words", ""),
        "table": _effects_table("The effects of the 2×2", chosen),
        "verdicts": [_verdict(c, result["plan"]) for c in chosen],
    }


def _target(plan: Dict, target: Dict | None, look: Mapping[str, Look]) -> dict[str, Any] | None:
    if not target or not (target.get("rows") or target.get("words")):
        return None
    by_name = {str(row["arm"]): row for row in target["rows"]}
    ordered = [(arm, by_name[arm]) for arm in _ordered(by_name, plan)]
    horizon = finite(target.get("horizon"))

    def label(arm: str) -> str:
        return f"{arm} (A/A)" if arm == plan.get("noise_arm") else arm

    reached = []
    for arm, row in ordered:
        steps = row.get("steps") or {}
        never = [f"seed {s}, not reached by" for s in sorted(steps, key=_seed_order) if number(steps[s]) is None]
        reached.append(
            figures.Row(
                name=label(arm),
                remark=f"{show(row.get('reached'))} of {show(row.get('n'))} reached",
                look=look.get(arm, PLAIN),
                dots=_dots(steps),
                open_dots=[(text, horizon) for text in never] if horizon is not None else (),
            )
        )
    seeds = sorted({str(s) for _, row in ordered for s in row.get("steps") or {}}, key=_seed_order)

    def cell(row: Dict, seed: str) -> str:
        steps = row.get("steps") or {}
        return MISSING if seed not in steps else "not reached" if steps[seed] is None else show(steps[seed])

    raw = Table(
        "Steps to the target by seed",
        ["Seed", *(label(arm) for arm, _ in ordered)],
        [[s, *(cell(row, s) for _, row in ordered)] for s in seeds],
    )
    summary = Table(
        "Steps to the target against the reference (steps that were not reached count as the horizon)",
        ["Arm", "Reached", "Mean paired difference [95 % interval]"],
        [
            [
                label(arm),
                f"{show(row.get('reached'))} of {show(row.get('n'))}",
                show_with_interval(row.get("difference"), row.get("interval"), signed=True),
            ]
            for arm, row in ordered
        ],
    )
    parts = [
        Figure(
            id="target-steps",
            title="Steps to the target, by seed",
            alt="Dots of the first step at which each run held the target. "
            + "; ".join(f"{row.name}: {row.remark}" for row in reached)
            + ".",
            plot=figures.rows_chart(reached, x_title="steps to the target (further left is sooner)", limit=horizon),
            tables=[raw],
            note="A hollow triangle is a run that did not reach the target by the last step (dotted line).",
        )
    ]
    compared = [
        figures.Row(
            name=label(arm),
            remark=show(row.get("difference"), 3, signed=True),
            look=look.get(arm, PLAIN),
            mean=finite(row.get("difference")),
            interval=pair(row.get("interval")),
        )
        for arm, row in ordered
        if finite(row.get("difference")) is not None and arm != plan.get("reference")
    ]
    if not ordered:
        parts = []
    elif compared:
        parts.append(
            Figure(
                id="target-differences",
                title=f"Steps to the target: mean paired difference against {plan.get('reference')}",
                alt="Interval plot of differences in steps, with 95 % intervals. "
                + "; ".join(f"{r.name}: {show_with_interval(r.mean, r.interval, signed=True)}" for r in compared)
                + ".",
                plot=figures.rows_chart(compared, x_title="difference in steps (further left is sooner)", zero=True),
                tables=[summary],
                note="Read every row beside the A/A arm: its distance from 0 is what chance does to this measure.",
            )
        )
    else:
        parts[0] = Figure(**{**parts[0].__dict__, "tables": [raw, summary]})
    return {
        "figures": parts,
        "rule": _pairs_table("The rule, fixed in the plan", target.get("rule") or {}),
        "explained": str(target.get("words") or ""),
        "words": [(label(arm), str(row.get("words") or "")) for arm, row in ordered if row.get("words")],
    }


def _tracked(tracked: Dict, plan: Dict, look: Mapping[str, Look]) -> list[Figure]:
    found = []
    for place, (quantity, by_arm) in enumerate(tracked.items()):
        chosen = {arm: by_arm[arm] for arm in _ordered(by_arm, plan)}
        if not chosen:
            continue
        log = quantity.lower().startswith(_LOG)
        remarks = {a: f"{show(e['first']['mean'], 3)} → {show(e['last']['mean'], 3)}" for a, e in chosen.items()}
        table = Table(
            caption=f"{quantity} at the first and the last record: mean and 95 % interval over seeds",
            columns=["Arm", "First", "Last"],
            rows=[
                [
                    arm,
                    *(show_with_interval(e[w]["mean"], (e[w].get("low"), e[w].get("high"))) for w in ("first", "last")),
                ]
                for arm, e in chosen.items()
            ],
        )
        found.append(
            Figure(
                id=f"tracked-{place}",
                title=f"{quantity} at initialization and at the end",
                alt=f"{quantity} by arm, first to last record. "
                + "; ".join(f"{arm}: {remark}" for arm, remark in remarks.items())
                + ".",
                plot=figures.first_and_last(
                    chosen,
                    look,
                    quantity=f"{quantity}{' (log scale)' if log else ''}",
                    log=log,
                    remarks=remarks,
                ),
                tables=[table],
                note="Hollow: first record; filled: last record; bars: 95 % intervals over seeds.",
            )
        )
    return found


def _arms_table(arms: Sequence[Dict]) -> Table:
    def seeds(values: Sequence[Any] | None) -> str:
        return ", ".join(map(str, values)) if values else "none"

    return Table(
        "The arms: final value of the primary metric over seeds",
        ["Arm", "Seeds", "Mean", "Standard deviation", "Diverged seeds", "Failed seeds"],
        [
            [
                str(a["name"]),
                show(a.get("n")),
                show(a.get("mean"), 5),
                show(a.get("sd"), 3),
                seeds(a.get("diverged")),
                seeds(a.get("failed")),
            ]
            for a in arms
        ],
    )


def _values_table(arms: Sequence[Dict]) -> Table:
    seeds = sorted({str(s) for a in arms for s in a.get("values") or {}}, key=_seed_order)
    rows = [[s, *(show((a.get("values") or {}).get(s), 5) for a in arms)] for s in seeds]
    return Table("Final value by seed and arm", ["Seed", *(str(a["name"]) for a in arms)], rows)


def _pairs_table(caption: str, values: Dict) -> Table:
    """Nested settings as rows of name and value."""
    rows: list[list[str]] = []

    def walk(prefix: str, value: Any) -> None:
        if isinstance(value, Mapping) and value:
            for key, inner in value.items():
                walk(f"{prefix}.{key}" if prefix else str(key), inner)
        elif isinstance(value, (list, tuple)):
            rows.append([prefix, ", ".join(str(v) for v in value) or "none"])
        else:
            rows.append([prefix, "none" if value is None else str(value)])

    walk("", values)
    return Table(caption, ["Name", "Value"], rows, text=frozenset({1}))


def _command(runner: Dict) -> str:
    command = runner.get("command")
    if isinstance(command, str):
        return command
    if command:
        return shlex.join(str(word) for word in command)
    return str(runner.get("callable") or "")
