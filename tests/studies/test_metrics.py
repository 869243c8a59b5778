"""Lines of metrics: numbers that JSON lacks, torn lines, and what counts as diverged."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kappaone.errors import StudyError
from kappaone.studies.metrics import encode_record, last_values, non_finite, read_metrics


@given(st.floats(), st.integers(0, 10**9))
def test_numbers_survive_strict_json(tmp_path_factory, value, step):
    path = tmp_path_factory.mktemp("m") / "metrics.jsonl"
    line = encode_record({"step": step, "x": value})
    json.loads(line, parse_constant=lambda s: pytest.fail(f"bare {s}"))
    path.write_text(line + "\n")
    (record,) = read_metrics(path, finished=True)
    assert record["step"] == step
    assert record["x"] == value or (math.isnan(value) and math.isnan(record["x"]))


def test_numpy_scalars_are_numbers():
    assert encode_record({"step": np.int64(3), "x": np.float32(0.5)}) == '{"step": 3, "x": 0.5}'


@pytest.mark.parametrize("record", [{"x": 1}, {"step": 1.5, "x": 1}, {"step": -1}, {"step": True}])
def test_a_record_needs_a_step(record):
    with pytest.raises(StudyError, match="step"):
        encode_record(record)


@pytest.mark.parametrize("value", ["fast", True, None, [1]])
def test_a_metric_is_a_number(value):
    with pytest.raises(StudyError, match="expected a number"):
        encode_record({"step": 1, "x": value})


def test_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": 1}\n{"step": 2, "x"')
    assert read_metrics(path, finished=False) == [{"step": 1, "x": 1.0}]
    with pytest.raises(StudyError, match="line 2 is not JSON"):
        read_metrics(path, finished=True)


def test_a_torn_line_inside_is_an_error_always(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x"\n{"step": 2, "x": 1}\n')
    for finished in (True, False):
        with pytest.raises(StudyError, match="line 1 is not JSON"):
            read_metrics(path, finished=finished)


def test_bare_tokens_missing_break_and_empty_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "x": NaN}\n\n{"step": 1, "y": "-Infinity"}')
    records = read_metrics(path, finished=True)
    assert math.isnan(records[0]["x"])
    assert records[1]["y"] == -math.inf
    assert read_metrics(tmp_path / "absent", finished=False) == []


@pytest.mark.parametrize("text", ["[1]\n", '{"x": 1}\n', '{"step": 2}\n{"step": 1}\n', '{"step": 1, "x": "fast"}\n'])
def test_malformed_lines_name_their_place(tmp_path, text):
    path = tmp_path / "metrics.jsonl"
    path.write_text(text)
    with pytest.raises(StudyError, match=r"metrics.jsonl, line \d"):
        read_metrics(path, finished=True)


def test_diverged_is_judged_at_the_end_only():
    records = [{"step": 1, "train_loss": math.nan, "score": 1.0}, {"step": 2, "train_loss": 0.5, "kappa_J": math.inf}]
    assert non_finite(last_values(records), ["score"]) == []
    assert non_finite({"score": math.inf}, ["score"]) == ["score"]
    assert non_finite({"val_loss": math.inf}, []) == ["val_loss"]
