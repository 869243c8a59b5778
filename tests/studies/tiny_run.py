"""A run that needs no model: it records a few metrics, as its options say. Also a command: `tiny_run.py SPEC`."""

import json
import math
import os
import random
import sys
import time
from pathlib import Path


def run(spec, emit):
    options = spec["options"]
    arm, seed = spec["arm"], spec["seed"]
    rng = random.Random(f"{seed}/{arm}")
    shared = random.Random(seed).gauss(0, 1)
    shift = options.get("shift", {}).get(arm, 0.0)
    steps = options.get("steps", 8)
    for step in range(1, steps + 1):
        time.sleep(options.get("sleep", 0.0))
        value = 1 - math.exp(-step / 3) + 0.1 * shared + shift + 0.01 * rng.gauss(0, 1)
        emit({"step": step, "train_loss": 1 / step})
        emit({"step": step, "score": value, "kappa_J": 100.0 / step})
    return {"extra": 1.5}


def nan(spec, emit):
    emit({"step": 1, "score": 0.5, "train_loss": 1.0})
    emit({"step": 2, "score": float("nan") if spec["arm"] == "new" else 0.5, "train_loss": 2.0})


def raises(spec, emit):
    emit({"step": 1, "score": 0.5})
    if spec["arm"] == "new" and spec["seed"] == spec["options"].get("bad_seed", spec["seed"]):
        print("about to raise")
        raise RuntimeError("the sky fell")


def dies(spec, emit):
    emit({"step": 1, "score": 0.5})
    if spec["arm"] == "new":
        os.kill(os.getpid(), 9)


def second_time_lucky(spec, emit):
    marker = Path(spec["out"]).parent / f"tried-{spec['seed']}-{spec['arm']}"
    if not marker.exists():
        marker.touch()
        raise RuntimeError("not yet")
    emit({"step": 1, "score": 0.5})


def without_metric(spec, emit):
    emit({"step": 1, "other": 0.5})


def environment(spec, emit):
    emit(
        {
            "step": 1,
            "score": 0.0,
            "omp": int(os.environ["OMP_NUM_THREADS"]),
            "main": int(hasattr(sys.modules["__main__"], "__file__")),
            "marker": int(os.environ.get("TINY_MARKER", "0")),
        }
    )


def waits(spec, emit):
    """The first arm ends, the others go on."""
    emit({"step": 1, "score": 0.0})
    if spec["arm"] != "default":
        time.sleep(30)


def torch_seen(spec, emit):
    torch = sys.modules["torch"]
    emit({"step": 1, "score": 0.0, "loaded_in": torch.PID, "ran_in": os.getpid()})
    emit({"step": 1, "threads": torch.THREADS, "omp_when_loaded": int(torch.OMP)})


def main():
    spec = json.loads(Path(sys.argv[1]).read_text())
    if spec["options"].get("exit"):
        print("last words")
        sys.exit(3)
    with open(Path(spec["out"]) / "metrics.jsonl", "a") as file:
        run(spec, lambda record: print(json.dumps(record), file=file, flush=True))
    if spec["options"].get("result"):
        result = {"schema": 1, "status": spec["options"]["result"], "metrics": {"score": 9.0}, "seconds": 0.0}
        (Path(spec["out"]) / "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
