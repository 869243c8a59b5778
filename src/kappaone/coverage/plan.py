"""Which architectures to probe, so that every kind of attention is confirmed once, on the smallest that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kappaone.coverage.rows import Row, Verdict, confirmed_by


def representatives(rows: Sequence[Row], settled: Iterable[str] = (), tried: Iterable[str] = ()) -> list[str]:
    """Architectures that together have every kind which is not settled yet, small ones first.

    Args:
        rows: surveyed architectures.
        settled: keys of kinds that need no further probe.
        tried: architectures that were probed before.

    Returns:
        Names, in the order in which they were chosen; empty where nothing is left to try.
    """
    done, before = set(settled), set(tried)
    out: list[str] = []
    for row in sorted(rows, key=lambda row: (row.parameters, row.name)):
        new = {kind.key for kind in row.details} - done
        if new and row.name not in before:
            out.append(row.name)
            done |= new
    return out


def merged(verdicts: Iterable[Mapping[str, Verdict]]) -> dict[str, Verdict]:
    """The verdicts of several instances: a contradiction beats a confirmation, which beats a probe that could not run."""
    out: dict[str, Verdict] = {}
    weight = {False: 2, True: 1, None: 0}
    for group in verdicts:
        for key, verdict in group.items():
            if key not in out or weight[verdict.confirmed] > weight[out[key].confirmed]:
                out[key] = verdict
    return out


def settled(verdicts: Mapping[str, Verdict]) -> set[str]:
    """Keys of kinds on which the probe has said yes or no."""
    return {key for key, verdict in verdicts.items() if verdict.confirmed is not None}


def by_kind(rows: Iterable[Row], verdicts: Mapping[str, Verdict]) -> list[Row]:
    """Every row with what the probe said of its kinds, on whichever architecture."""
    return [confirmed_by(row, verdicts) for row in rows]
