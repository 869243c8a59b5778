"""What a study asked and what came out, in words made from its plan and its verdicts alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kappaone.reports.numbers import finite, show

Dict = Mapping[str, Any]
_ORDER = ("better", "worse", "equivalent", "inconclusive")


def listing(names: Sequence[str], joint: str = "and") -> str:
    """Names as people list them.

    Examples:
        >>> listing(["a"]), listing(["a", "b", "c"])
        ('a', 'a, b and c')
    """
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {joint} {names[-1]}" if names else "nothing"


def contrasted_arm(contrast: Dict, reference: str | None) -> str | None:
    """The arm that a contrast sets against the reference, or None where it is not of that form.

    Examples:
        >>> contrasted_arm({"weights": {"conditioned": 1, "default": -1}}, "default")
        'conditioned'
    """
    weights = {arm: w for arm, w in (contrast.get("weights") or {}).items() if w}
    others = [arm for arm in weights if arm != reference]
    return others[0] if len(others) == 1 and set(weights) == {others[0], reference} else None


def question(plan: Dict, seeds: int) -> str:
    """What was asked, in one sentence.

    Examples:
        >>> question({"arms": ["default", "conditioned"], "reference": "default", "metric": "test_accuracy"}, 8)
        'Does conditioned change test_accuracy against default, over 8 paired seeds?'
    """
    reference = plan.get("reference")
    others = [a for a in plan.get("arms", []) if a not in (reference, plan.get("noise_arm"))]
    paired = f"{seeds} paired seed{'' if seeds == 1 else 's'}"
    if not others:
        return f"How far does {plan.get('metric')} of {reference} vary, over {paired}?"
    does = "Does" if len(others) == 1 else "Do"
    return f"{does} {listing(others, 'or')} change {plan.get('metric')} against {reference}, over {paired}?"


def outcome(plan: Dict, contrasts: Sequence[Dict]) -> str:
    """What came out, in one sentence that is made from the verdicts alone.

    Examples:
        >>> plan = {"metric": "test_accuracy", "reference": "default", "margin": 0.01}
        >>> outcome(plan, [{"name": "c", "kind": "arm", "verdict": "inconclusive",
        ...                 "weights": {"conditioned": 1, "default": -1}}])
        'On test_accuracy against default: inconclusive: conditioned.'
        >>> outcome(plan, [])
        'No contrast could be estimated.'
    """
    reference, margin = plan.get("reference"), finite(plan.get("margin"))
    groups: dict[str, list[str]] = {verdict: [] for verdict in _ORDER}
    causes: list[str] = []
    for contrast in contrasts:
        verdict = str(contrast.get("verdict"))
        if contrast.get("kind") == "causal":
            causes.append(f"{contrast.get('name')} {verdict}")
            continue
        name = contrasted_arm(contrast, reference) or str(contrast.get("name"))
        aside = " (the A/A arm)" if name == plan.get("noise_arm") else ""
        groups.setdefault(verdict, []).append(name + aside)
    parts = []
    for verdict, names in groups.items():
        within = f" within ±{show(margin)}" if verdict == "equivalent" and margin is not None else ""
        if names:
            parts.append(f"{verdict}{within}: {', '.join(names)}")
    if causes:
        parts.append(f"in the 2×2 of spectrum and scale: {', '.join(causes)}")
    if not parts:
        return "No contrast could be estimated."
    return f"On {plan.get('metric')} against {reference}: {'; '.join(parts)}."
