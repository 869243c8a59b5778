"""What a run writes: JSON lines of metrics, and what they say about how it ended.

A line is {"step": whole number, "<metric>": number, ...}. Numbers that JSON lacks are written as the strings "NaN",
"Infinity" and "-Infinity"; the bare tokens that Python's own `json` writes are read too.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from kappaone.errors import StudyError

SPECIAL: Mapping[str, float] = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def encode_number(value: float) -> float | str:
    """A number as JSON can hold it.

    Examples:
        >>> encode_number(0.5), encode_number(float("nan")), encode_number(float("-inf"))
        (0.5, 'NaN', '-Infinity')
    """
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def decode_number(value: Any, where: str) -> float:
    """The number behind `encode_number`.

    Raises:
        StudyError: not a number.
    """
    if isinstance(value, str) and value in SPECIAL:
        return SPECIAL[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise StudyError(
            f"{where} is {value!r}; expected a number, 'NaN', 'Infinity' or '-Infinity'",
            "write numbers only as metrics",
        )
    return float(value)


def encode_record(record: Mapping[str, Any]) -> str:
    """One line of metrics, without its line break; numpy and torch scalars are taken as the numbers they are.

    Raises:
        StudyError: no whole-numbered step, or a metric that is not a number.

    Examples:
        >>> encode_record({"step": 3, "train_loss": 0.25})
        '{"step": 3, "train_loss": 0.25}'
    """
    line: dict[str, float | str | int] = {"step": _step(record.get("step"), "a record")}
    for name, value in record.items():
        if name == "step":
            continue
        if not isinstance(name, str) or isinstance(value, bool | str | bytes) or not hasattr(value, "__float__"):
            raise StudyError(
                f"metric {name!r} at step {line['step']} is {value!r}; expected a number",
                "emit numbers only as metrics",
            )
        line[name] = encode_number(float(value))
    return json.dumps(line, allow_nan=False)


def read_metrics(path: Path, *, finished: bool) -> list[dict[str, float]]:
    """The records of a run, in the order in which they were written; each holds "step" and some metrics.

    Args:
        path: a `metrics.jsonl`; a missing file has no records.
        finished: whether the run has ended. The last line of a run that is still going, or was killed, may be torn and
            is then left out; in a finished run that is an error.

    Raises:
        StudyError: a line is not what it should be (file and line number in the message), or steps go backwards.
    """
    if not path.exists():
        return []
    raw = path.read_bytes()
    lines = raw.split(b"\n")
    complete, rest = lines[:-1], lines[-1]
    if rest and finished:
        complete.append(rest)  # some writers leave the last line break out; a torn line fails to parse below
    records: list[dict[str, float]] = []
    for number, line in enumerate(complete, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            data = json.loads(line)
        except ValueError as error:
            raise StudyError(
                f"{where} is not JSON: {error}", "delete the run's folder and run the study again"
            ) from error
        if not isinstance(data, dict):
            raise StudyError(f"{where} is {data!r}; expected an object", "write one JSON object a line")
        step = _step(data.pop("step", None), where)
        if records and step < records[-1]["step"]:
            raise StudyError(
                f"{where}: step {step} comes after step {records[-1]['step']:g}", "write metrics in the order of steps"
            )
        records.append({"step": step, **{str(k): decode_number(v, f"{where}, {k!r}") for k, v in data.items()}})
    return records


def last_values(records: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """The last recorded value of each metric.

    Examples:
        >>> last_values([{"step": 1, "a": 1.0, "b": 5.0}, {"step": 2, "a": 2.0}])
        {'a': 2.0, 'b': 5.0}
    """
    last: dict[str, float] = {}
    for record in records:
        last.update({k: v for k, v in record.items() if k != "step"})
    return last


def curve(records: Iterable[Mapping[str, float]], metric: str) -> dict[int, float]:
    """One metric by step; where a step was recorded twice, the later record counts."""
    return {int(r["step"]): r[metric] for r in records if metric in r}


def non_finite(metrics: Mapping[str, float], judged: Sequence[str]) -> list[str]:
    """The metrics whose last value says that a run diverged.

    Judged are the metrics named in `judged` (the plan's primary and target metric) and every metric whose name ends in
    "loss". Others may be infinite without harm: a condition number of a singular operator is.

    Examples:
        >>> non_finite({"test_accuracy": 0.1, "train_loss": float("nan"), "kappa_J": float("inf")}, ["test_accuracy"])
        ['train_loss']
    """
    return [k for k, v in metrics.items() if (k in judged or k.endswith("loss")) and not math.isfinite(v)]


def _step(value: Any, where: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 0:
        raise StudyError(
            f"{where} has step {value!r}; expected a whole number of at least 0", "give every record its step"
        )
    return int(value)
