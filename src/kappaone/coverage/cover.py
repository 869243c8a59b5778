"""Survey a library: every architecture on the meta device, then each kind of attention on a small instance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from kappaone.coverage.plan import by_kind, merged, representatives, settled
from kappaone.coverage.rows import Row, Verdict
from kappaone.coverage.workers import work

# (what is being done, how many are done, how many there are)
Tell = Callable[[str, int, int], None]
# A kind whose representative cannot be run is tried on this many others.
_ROUNDS = 4


@dataclass
class Coverage:
    """What is known so far; it grows while `run` works, so that an interrupted run has its part.

    Attributes:
        library: "timm" or "transformers".
        asked: architectures that were asked for.
        rows: by architecture, from the meta device.
        verdicts: the probe's, by the architecture that was probed.
    """

    library: str
    asked: tuple[str, ...]
    rows: dict[str, Row] = field(default_factory=dict)
    verdicts: dict[str, dict[str, Verdict]] = field(default_factory=dict)

    def results(self) -> list[Row]:
        """The rows in the order asked for, with the probe's verdicts by kind."""
        rows = [self.rows[name] for name in self.asked if name in self.rows]
        if not self.verdicts:
            return rows
        known = merged({key: v for key, v in group.items() if key} for group in self.verdicts.values())
        out = []
        for row in by_kind(rows, known):
            failed = self.verdicts.get(row.name, {}).get("")
            if failed is not None and row.confirmed is None:
                row = replace(row, note=failed.words)
            out.append(row)
        return out

    def run(
        self, *, probe: bool = False, jobs: int = 1, tell: Tell = lambda *_: None, limit: float = 300.0
    ) -> list[Row]:
        """Do what is left to do.

        Args:
            probe: also confirm each kind of attention on a small instance.
            jobs: processes, one thread each.
            tell: is told after each step.
            limit: seconds for one architecture.
        """
        left = [name for name in self.asked if name not in self.rows]
        tell("surveyed", 0, len(left))
        for done, (name, answer) in enumerate(work(self.library, "survey", left, jobs=jobs, limit=limit), 1):
            self.rows[name] = (
                Row(self.library, name, "error", note=answer) if isinstance(answer, str) else Row.from_dict(answer)
            )
            tell("surveyed", done, len(left))
        for _ in range(_ROUNDS if probe else 0):
            known = merged(self.verdicts.values())
            chosen = representatives(list(self.rows.values()), settled(known), self.verdicts)
            if not chosen:
                break
            tell("probed", 0, len(chosen))
            for done, (name, answer) in enumerate(work(self.library, "probe", chosen, jobs=jobs, limit=limit), 1):
                self.verdicts[name] = (
                    {"": Verdict(None, answer, name)}
                    if isinstance(answer, str)
                    else {key: Verdict(**verdict) for key, verdict in answer.items()}
                )
                tell("probed", done, len(chosen))
        return self.results()


def select(available: Sequence[str], wanted: Sequence[str]) -> tuple[list[str], list[str]]:
    """Architectures by name or glob, in the library's order, and the wishes that fit none.

    Examples:
        >>> select(["vit_small", "vit_tiny", "xcit"], ["vit_*", "nope"])
        (['vit_small', 'vit_tiny'], ['nope'])
    """
    if not wanted:
        return list(available), []
    chosen = [name for name in available if any(fnmatchcase(name, wish) for wish in wanted)]
    return chosen, [wish for wish in wanted if not any(fnmatchcase(name, wish) for name in available)]
