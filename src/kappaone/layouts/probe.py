"""The behavioural probe: what each row of an attention weight really does, without reading a name.

Change one row r of a weight, W -> W + eps e_r u^T, and watch the layer's output:

* exactly linear in eps (twice the change, twice the response): a value row;
* otherwise, with u orthogonal to what one token reads but not to what the others read: that token's output is
  unchanged for a query row, changed for a key row;
* the output columns that move, before the output projection, name the head (all heads of a group for a key or value
  row under grouped queries);
* where a single token asks, there is no other token to move: a change that it does not see leaves everything as it is
  for a query row and moves the output for a key row;
* where channels attend to channels, a query row moves its own channel and a key row all channels of its head.

The module runs alone, on the inputs that it got in a forward pass of the model, in float64, with perturbed copies of
its weights (`torch.func.functional_call`): nothing is written to the model. The step is grown until a response is
clearly nonlinear or clearly is not, so that no fixed threshold misreads a weak row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kappaone.errors import LayoutError
from kappaone.layouts import operands
from kappaone.layouts.bench import Bench
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.capture import listen
from kappaone.layouts.factor import FactorVerdict, check_factor
from kappaone.layouts.layout import QKV, AttentionLayout, Role
from kappaone.layouts.response import NOISE, Response, anywhere, covered, grow, orthogonal_to
from kappaone.layouts.running import evaluating

# What a response that is not curved says of a row.
_LINEAR = {"linear": "v", "?": "?"}


@dataclass(frozen=True)
class RowVerdict:
    """What one row was expected to do, and what it did.

    Attributes:
        layer: module name.
        parameter: weight.
        row: index along the weight's output axis.
        expected_role: by the layout.
        expected_heads: query heads whose output may move, by the layout.
        role: seen; "?" if the response was neither clear nor absent, "dead" if there was none.
        heads: query heads whose output moved.
    """

    layer: str
    parameter: str
    row: int
    expected_role: str
    expected_heads: tuple[int, ...]
    role: str
    heads: tuple[int, ...]

    @property
    def ok(self) -> bool:
        """Whether it did what the layout says."""
        return self.role == self.expected_role and set(self.heads) == set(self.expected_heads)

    def __str__(self) -> str:
        return (
            f"{self.parameter} row {self.row}: the layout says {self.expected_role} of heads {list(self.expected_heads)}; "
            f"it behaves as {self.role} of heads {list(self.heads)}"
        )


@dataclass(frozen=True)
class ProbeReport:
    """The probe's verdicts over a model.

    Attributes:
        verdicts: one for each row that was tried.
        unreached: layers that the example did not reach.
        factors: for each layer whose logits are said to be a multiple of q.k, whether they are, and of which.
    """

    verdicts: tuple[RowVerdict, ...]
    unreached: tuple[str, ...] = ()
    factors: tuple[FactorVerdict, ...] = ()

    @property
    def wrong(self) -> tuple[RowVerdict, ...]:
        """Rows that do not do what the layout says."""
        return tuple(verdict for verdict in self.verdicts if not verdict.ok)

    @property
    def ok(self) -> bool:
        """Every row and factor that was tried confirmed its layout, and every layer was reached."""
        return not self.wrong and not self.unreached and bool(self.verdicts) and all(f.ok for f in self.factors)

    def require(self) -> ProbeReport:
        """Raise if a layout was contradicted.

        Raises:
            LayoutError: naming the first rows that disagree.
        """
        if self.wrong:
            shown = "\n  ".join(map(str, self.wrong[:4]))
            raise LayoutError(
                f"{len(self.wrong)} of {len(self.verdicts)} probed rows contradict their layout:\n  {shown}",
                "name the output projection (o=): without it the heads cannot be told apart behind it; or correct heads="
                if all(verdict.role == verdict.expected_role for verdict in self.wrong)
                else "correct the layout (order=, heads=, kv_heads=), or report the adapter",
            )
        factor = next((item for item in self.factors if not item.ok), None)
        if factor is not None:
            raise LayoutError(
                f"the logits contradict the layout: {factor}", "correct scale= or state what comes between in facts="
            )
        if self.unreached:
            raise LayoutError(
                f"the example does not reach {len(self.unreached)} attention layers: {', '.join(self.unreached[:4])}",
                "pass an example that runs the whole model",
            )
        return self

    def __str__(self) -> str:
        layers = len({verdict.layer for verdict in self.verdicts})
        head = f"probe: {len(self.verdicts)} rows of {layers} layers, {len(self.wrong)} contradict their layout"
        factors = [str(item) for item in self.factors if not item.ok]
        unreached = [f"not reached: {name}" for name in self.unreached]
        return "\n  ".join([head, *map(str, self.wrong[:10]), *factors[:10], *unreached])


def verify(
    model: nn.Module,
    layouts: Sequence[AttentionLayout],
    example: Any,
    *,
    rows_per_head: int | None = 1,
    seed: int = 0,
) -> ProbeReport:
    """Check layouts against the model's behaviour.

    Args:
        model: the model; nothing in it changes.
        layouts: from `find_attention`.
        example: an input; at least three tokens, two of them different.
        rows_per_head: rows to try in each head of each role (the first ones by a seeded choice); None for all.
        seed: of the choice of rows and directions.

    Raises:
        MeasureError: if the model or a layer does not run on the example.

    Examples:
        >>> model = nn.TransformerEncoderLayer(16, 4, batch_first=True)
        >>> from kappaone.layouts import find_attention
        >>> print(verify(model, find_attention(model), torch.randn(2, 5, 16)))
        probe: 12 rows of 1 layers, 0 contradict their layout
    """
    heard = listen(model, layouts, example)
    modules = dict(named_modules(model))
    random = torch.Generator("cpu").manual_seed(seed)
    verdicts: list[RowVerdict] = []
    factors: list[FactorVerdict] = []
    for layout in layouts:
        if heard[layout.name].calls:
            module = modules[layout.module]
            with evaluating(module):
                bench = Bench(module, layout, heard[layout.name])
                verdicts += Trial(bench, random).rows(rows_per_head)
                factor = check_factor(bench, heard[layout.name])
                factors += [] if factor is None else [factor]
    unreached = tuple(layout.name for layout in layouts if not heard[layout.name].calls)
    return ProbeReport(tuple(verdicts), unreached, tuple(factors))


class Trial:
    """Rows of one layer, changed one after the other, and what each of them turns out to be.

    Args:
        bench: the layer with its inputs.
        random: chooses rows and directions.
    """

    def __init__(self, bench: Bench, random: torch.Generator) -> None:
        self.bench, self.layout, self.random = bench, bench.layout, random

    def rows(self, per_head: int | None) -> list[RowVerdict]:
        """The verdicts on `per_head` rows of each head of each role (all of them if None)."""
        out = []
        for role in QKV:
            rows = self.layout.role(role)
            for head in range(rows.heads):
                span, count = rows.span(head), rows.size if per_head is None else min(per_head, rows.size)
                chosen = torch.randperm(rows.size, generator=self.random, device="cpu")[:count].tolist()
                for offset in chosen:
                    out.append(self.verdict(role, head, span.start + int(offset) * rows.step))
        return out

    def verdict(self, role: Role, head: int, row: int) -> RowVerdict:
        """What one row, said to be of this role and head, turns out to be."""
        parameter = self.layout.role(role).parameter
        seen, heads = self.classify(role, row)
        expected = self._expected(role, head)
        if self.layout.facts.get("talking_heads") and set(expected) <= set(heads):
            expected = heads  # a mixing that starts as the identity moves its own head only, any other all of them
        return RowVerdict(self.layout.name, parameter, row, role, expected, seen, heads)

    def _expected(self, role: Role, head: int) -> tuple[int, ...]:
        """The heads of the output that a row of this head may move."""
        layout = self.layout
        asking = [h for h in range(layout.heads) if (h if role == "q" else layout.kv_head(h, role)) == head]
        return tuple(sorted({h * layout.output_heads // layout.heads for h in asking}))

    def classify(self, role: Role, row: int) -> tuple[str, tuple[int, ...]]:
        """What a row of the weight that is said to hold `role` does, and the output heads that it moves."""
        bench = self.bench
        reads = bench.reads(role)
        if operands.needed(bench):
            told = operands.classify(bench, role, row, self.random)
            if told is not None and told.heads is not None and operands.heads_hidden(bench):
                return told.role, told.heads
            if told is not None and told.role != "?":  # logits of a band tell nothing: their columns are no keys
                if told.role == "dead":
                    return "dead", ()
                # An activation behind the attention may silence columns for one token, not for all of them.
                seen_by_all = self.layout.facts.get("activated")
                change = bench.respond(role, row, 8 * anywhere(reads, self.random)) if seen_by_all else told.change
                return self._with_heads(told.role, change)
        seen = self._respond(role, row, orthogonal_to(reads, bench.tested(role), self.random))
        if seen is None and bench.single(role):
            # Nothing moves unless the only token that asks sees the change: then it is a query row, if not a dead one.
            seen = self._respond(role, row, anywhere(reads, self.random))
            if seen is None:
                return "dead", ()
            return ("q" if seen.kind == "curved" else _LINEAR[seen.kind]), bench.moved_heads(seen.change)
        if seen is None:
            return "dead", ()
        moved = bench.moved_heads(seen.change)
        if seen.kind != "curved":
            return _LINEAR[seen.kind], moved
        if self.layout.facts.get("channel_attention"):
            return ("q" if bench.moved_columns(seen.change) == 1 else "k"), moved
        moves = self._moved_elsewhere(role, row) if self._still(role, seen) else seen.change
        return self._with_heads("q", seen.change) if moves is None else self._with_heads("k", moves)

    def _still(self, role: Role, seen: Response) -> bool:
        """Whether the token that does not see the change puts out what it did."""
        at_token = self.bench.at_tested(role, seen.change)[: covered(self.bench.reads(role))]
        return float(at_token.abs().max()) < 1e-6 * seen.size + NOISE * self.bench.size

    def _moved_elsewhere(self, role: Role, row: int) -> Tensor | None:
        """The response if another token moves though it does not see the change, so that this is a key row.

        A token whose softmax is saturated reads one key only, whatever the others do: it stays still for key rows too.
        """
        for turn in (1, 2):
            with self.bench.asking(turn):
                direction = orthogonal_to(self.bench.reads(role), self.bench.tested(role), self.random)
                seen = self._respond(role, row, direction)
                if seen is not None and seen.kind == "curved" and not self._still(role, seen):
                    return seen.change
        return None

    def _with_heads(self, found: str, change: Tensor) -> tuple[str, tuple[int, ...]]:
        """The role that was found with the heads that moved, unless only a part of a head did."""
        moved = self.bench.moved_heads(change)
        whole = found not in ("q", "k") or self.layout.facts.get("talking_heads")
        whole = whole or self.bench.fills_its_heads(change, moved)
        return (found if whole else f"{found} (of a part of the head only)"), moved

    def _respond(self, role: Role, row: int, direction: Tensor) -> Response | None:
        bench = self.bench
        return grow(lambda step: bench.respond(role, row, step * direction), bench.size)
