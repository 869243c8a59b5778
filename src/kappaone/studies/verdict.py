"""The rule that turns intervals into a verdict, fixed before any run, and the words for it.

better/worse (for an effect of the 2x2: positive/negative, toward the metric's good side or away from it): the
simultaneous interval excludes 0 and the exact check's p is at most .05. Otherwise equivalent: the unadjusted 90 %
interval lies strictly inside the margin (two one-sided tests at 5 %; Schuirmann 1987). Otherwise inconclusive.
"""

from __future__ import annotations

from typing import Literal

from kappaone.studies.plan import Contrast, Plan
from kappaone.studies.statistics import Estimate

Verdict = Literal["better", "worse", "positive", "negative", "equivalent", "inconclusive"]

ALPHA = 0.05
SEEDS_FOR_EXACT_TEST = 6


def decide(
    estimate: Estimate,
    p: float | None,
    *,
    margin: float,
    higher_is_better: bool,
    kind: Literal["arm", "causal"] = "arm",
) -> Verdict:
    """The verdict on one contrast.

    Args:
        estimate: its mean and intervals.
        p: p-value of the sign-flip max-T check, or None without any seed.
        margin: equivalence margin, in the unit of the estimate.
        higher_is_better: direction of the metric.
        kind: kind of the contrast.

    Examples:
        >>> decide(Estimate(8, 0.5, 0.1, (0.4, 0.6), (0.45, 0.55)), 0.0078, margin=1.0, higher_is_better=True)
        'better'
        >>> decide(Estimate(8, 0.5, 0.1, (0.4, 0.6), (0.45, 0.55)), 0.0781, margin=1.0, higher_is_better=True)
        'equivalent'
    """
    if estimate.mean is None or estimate.interval is None or estimate.interval90 is None or p is None:
        return "inconclusive"
    low, high = estimate.interval
    if (low > 0 or high < 0) and p <= ALPHA:
        good = (estimate.mean > 0) == higher_is_better
        if kind == "causal":
            return "positive" if good else "negative"
        return "better" if good else "worse"
    if -margin < estimate.interval90[0] and estimate.interval90[1] < margin:
        return "equivalent"
    return "inconclusive"


def describe(contrast: Contrast, estimate: Estimate, p: float | None, verdict: Verdict, plan: Plan) -> str:
    """One contrast's verdict as a sentence or two, with its interval."""
    metric = plan.metric
    if estimate.mean is None:
        return f"{contrast.name}: no seed has all the runs that it needs; nothing can be said."
    if estimate.interval is None or estimate.interval90 is None:
        return (
            f"{contrast.name}: {number(estimate.mean, True)} {metric} in one seed; there is no interval, nothing can "
            "be said."
        )
    subject = (
        f"{contrast.name}: {number(estimate.mean, True)} {metric}, 95 % simultaneous interval {span(estimate.interval)}"
    )
    if p is not None:
        subject += f", exact p {number(p)}"
    subject += "."
    inside = max(abs(estimate.interval[0]), abs(estimate.interval[1])) < plan.margin
    if estimate.sd == 0 and estimate.mean == 0:
        return subject + " The runs are identical in every seed."
    words = {
        "better": "Better.",
        "worse": "Worse.",
        "equivalent": f"Equivalent: the 90 % interval {span(estimate.interval90)} lies inside the margin of "
        f"±{number(plan.margin)}.",
        "inconclusive": f"Inconclusive: effects from {number(estimate.interval[0], True)} to "
        f"{number(estimate.interval[1], True)} are compatible with these seeds.",
        "positive": f"This effect {'raises' if estimate.mean > 0 else 'lowers'} {metric}, which is good.",
        "negative": f"This effect {'raises' if estimate.mean > 0 else 'lowers'} {metric}, which is bad.",
    }[verdict]
    if verdict in ("better", "worse", "positive", "negative") and inside:
        words += f" It is smaller than the margin of ±{number(plan.margin)} that was said to matter."
    if estimate.n < SEEDS_FOR_EXACT_TEST:
        words += (
            f" With {estimate.n} seeds no exact test can reject at .05, so neither direction could have been concluded."
        )
    elif verdict == "inconclusive" and (estimate.interval[0] > 0 or estimate.interval[1] < 0):
        words += " The interval excludes 0, but the exact check does not confirm it."
    if estimate.sd == 0:
        words += " The difference is the same in every seed."
    return f"{subject} {words}"


def number(value: float, signed: bool = False) -> str:
    """A number with three significant digits, for sentences.

    Examples:
        >>> number(0.012345, True), number(0.0078125)
        ('+0.0123', '0.00781')
    """
    return f"{value:+.3g}" if signed else f"{value:.3g}"


def span(interval: tuple[float, float]) -> str:
    """An interval, for sentences.

    Examples:
        >>> span((-0.01, 0.02))
        '[-0.01, +0.02]'
    """
    return f"[{number(interval[0], True)}, {number(interval[1], True)}]"
