"""A few numbers for a study out of `kappaone.conditioning.inspect`: what attention is like on fixed images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from torch import Tensor, nn

from kappaone.conditioning import inspect
from kappaone.conditioning.report import ConditioningReport, HeadCondition

# kappa(J) is a number under these: over all rows, or over the generic rank. Under "bounded" it is a lower bound.
_KNOWN_JACOBIAN = ("ok", "rank_deficient")


def attention_metrics(
    model: nn.Module, probe: Tensor, *, jacobian_examples: int = 1
) -> tuple[dict[str, float], dict[str, str]]:
    """Summaries of all attention heads on some examples.

    * "kappa_J": geometric mean of kappa of the attention Jacobian over the heads where it is a number, with their
      count "kappa_J_n"; on the first `jacobian_examples` examples only, since it costs the most;
    * "kappa_P": geometric mean of kappa of the attention probabilities, with "kappa_P_n";
    * "logit_std": mean over heads of the standard deviation of the centred logits;
    * "relative_entropy": mean over heads of the entropy relative to uniform attention, from 0 to 1.

    Heads without a number are left out of a mean and counted in the reasons; a metric with no head left is missing.

    Args:
        model: any model whose attention kappaone finds.
        probe: (n, ...) examples, measured one at a time.
        jacobian_examples: how many of them are used for kappa_J.

    Returns:
        The metrics, and why heads or metrics are missing, by metric.

    Raises:
        MeasureError: the model cannot be measured at all.
    """
    device = next(model.parameters()).device
    heads: list[HeadCondition] = []
    notes: list[str] = []
    for index in range(len(probe)):
        report: ConditioningReport = inspect(
            model, probe[index : index + 1].to(device), jacobian=index < jacobian_examples, bound=False
        )
        heads += [head for layer in report.layers for head in layer.heads]
        notes += [f"{layer.name}: {note}" for layer in report.layers if not layer.heads for note in layer.notes]
    return summarise(heads, notes)


def summarise(heads: Iterable[HeadCondition], notes: Iterable[str] = ()) -> tuple[dict[str, float], dict[str, str]]:
    """The metrics of `attention_metrics` from measured heads.

    Args:
        heads: one entry a layer, head and example.
        notes: reasons why layers have no heads here.

    Returns:
        As `attention_metrics`.
    """
    kappa_J, kappa_P, spread, entropy = _Column("kappa_J"), _Column("kappa_P"), _Column("logit_std"), _Column("entropy")
    for head in heads:
        if head.jacobian is not None:
            kappa_J.add(head.jacobian.condition_number, head.jacobian.status, _KNOWN_JACOBIAN)
        kappa_P.add(head.probabilities.condition_number, head.probabilities.status)
        spread.add(head.activity.logit_std)
        entropy.add(head.activity.relative_entropy)
    metrics: dict[str, float] = {}
    for column in (kappa_J, kappa_P):
        if column.values:
            metrics[column.name] = math.exp(math.fsum(math.log(v) for v in column.values) / len(column.values))
            metrics[f"{column.name}_n"] = len(column.values)
    for name, column in (("logit_std", spread), ("relative_entropy", entropy)):
        if column.values:
            metrics[name] = math.fsum(column.values) / len(column.values)
    columns = {"kappa_J": kappa_J, "kappa_P": kappa_P, "logit_std": spread, "relative_entropy": entropy}
    why = {name: column.missing() for name, column in columns.items() if column.missing()}
    unmeasured = "; ".join(sorted(set(notes)))
    return metrics, why | ({"layers": unmeasured} if unmeasured else {})


class _Column:
    """One quantity over heads: its numbers, and the statuses under which there was none."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: list[float] = []
        self.without: Counter[str] = Counter()

    def add(self, value: float, status: str = "ok", known: tuple[str, ...] = ("ok",)) -> None:
        if status not in known:
            self.without[status] += 1
        elif not math.isfinite(value):
            self.without["not finite"] += 1
        else:
            self.values.append(value)

    def missing(self) -> str:
        """Why some or all heads have no number; empty if all have one."""
        total = len(self.values) + self.without.total()
        if total == 0:
            return "not measured on any head"
        if not self.without:
            return ""
        listed = ", ".join(f"{count} {status}" for status, count in sorted(self.without.items()))
        return f"{self.without.total()} of {total} heads left out: {listed}"
