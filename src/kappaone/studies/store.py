"""A study's folder: its plan, its runs, and who is working on it.

    plan.json            the plan, with its schema version
    provenance.json      versions and machine, as of the first start
    runs/<slug>/         one folder a run: spec.json, metrics.jsonl, log.txt, result.json, error-<attempt>.txt

Everything but metrics and logs is written to a temporary file and renamed, so that a file is whole or absent. A run is
finished when its result.json is there and valid; whatever else is in its folder is then final. An unfinished run leaves
nothing behind: its folder is wiped and the run made again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from kappaone.errors import StudyError
from kappaone.studies.metrics import decode_number, encode_number, read_metrics
from kappaone.studies.plan import Plan, plan_differences

RESULT_SCHEMA = 1
STATUSES = ("ok", "diverged", "failed")


@dataclass(frozen=True)
class RunResult:
    """How a run ended.

    Attributes:
        status: "ok", "diverged" (a result: a judged metric is not finite) or "failed" (no result: it raised or died).
        metrics: last value of each metric.
        seconds: wall-clock time of the attempt.
        detail: why it diverged or failed, one line; "" for "ok".
        versions: versions of Python, kappaone and the numerical libraries with which it ran.
        finished: when it ended, ISO 8601, UTC.
    """

    status: Literal["ok", "diverged", "failed"]
    metrics: Mapping[str, float]
    seconds: float
    detail: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    finished: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form, with its schema version."""
        return {
            "schema": RESULT_SCHEMA,
            "status": self.status,
            "metrics": {k: encode_number(v) for k, v in self.metrics.items()},
            "seconds": self.seconds,
            "detail": self.detail,
            "versions": dict(self.versions),
            "finished": self.finished,
            "recorded_by": "kappaone",
        }


@dataclass(frozen=True)
class RunRecord:
    """A finished run as the analysis sees it.

    Attributes:
        arm: the arm.
        seed: the seed.
        result: how it ended.
        records: its metrics, in order; empty for a failed run.
    """

    arm: str
    seed: int
    result: RunResult
    records: tuple[Mapping[str, float], ...] = ()


def write_atomic(path: Path, text: str) -> None:
    """Write a file so that it is whole or absent, whenever the process is killed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Write an object as JSON, atomically."""
    write_atomic(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def slug(arm: str, seed: int) -> str:
    """Folder name of a run: readable, safe in every file system, and different for different arms.

    Examples:
        >>> slug("conditioned(scale=matched)", 3)
        'seed0003-conditioned-scale-matched-be9a05'
    """
    words = re.sub(r"[^A-Za-z0-9.]+", "-", arm).strip("-.")[:60]
    return f"seed{seed:04d}-{words}-{hashlib.sha256(arm.encode()).hexdigest()[:6]}"


def read_result(folder: Path) -> RunResult | None:
    """The result in a run's folder, or None where the run is unfinished (no valid result.json).

    A result that a command wrote by itself does not count until its exit status was seen and it was recorded here.
    """
    try:
        data = json.loads((folder / "result.json").read_text(encoding="utf-8"))
        if data["schema"] != RESULT_SCHEMA or data["status"] not in STATUSES or data.get("recorded_by") != "kappaone":
            return None
        return RunResult(
            status=data["status"],
            metrics={str(k): decode_number(v, f"{folder}, {k}") for k, v in data["metrics"].items()},
            seconds=float(data["seconds"]),
            detail=str(data.get("detail", "")),
            versions=dict(data.get("versions", {})),
            finished=str(data.get("finished", "")),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


class Store:
    """A study's folder on disk. Open one with `Store.create` or `Store.open`.

    Attributes:
        folder: the folder.
        plan: the plan that it holds.
    """

    def __init__(self, folder: Path, plan: Plan) -> None:
        self.folder = folder
        self.plan = plan

    @classmethod
    def create(cls, folder: str | os.PathLike[str], plan: Plan) -> Store:
        """A new study's folder, or the one that already holds this very plan.

        Raises:
            StudyError: the folder holds another plan (the differences are named), files that are not a study, or is not
                a folder.
        """
        path = Path(folder).absolute()
        if (path / "plan.json").exists():
            return cls.open(path, plan)
        if path.exists() and not path.is_dir():
            raise StudyError(f"{path} is a file; expected a folder for the study", "name another place")
        # dot files are ours (the lock, a plan that was being written) or harmless
        if path.exists() and (others := sorted(p.name for p in path.iterdir() if not p.name.startswith("."))):
            raise StudyError(
                f"{path} holds {', '.join(others[:5])} but no plan.json; expected an empty folder or a study",
                "name an empty folder",
            )
        path.mkdir(parents=True, exist_ok=True)
        store = cls(path, plan)
        with store.lock():
            if (path / "plan.json").exists():  # another process was faster
                return cls.open(path, plan)
            write_json(path / "plan.json", plan.to_dict())
        return store

    @classmethod
    def open(cls, folder: str | os.PathLike[str], plan: Plan | None = None) -> Store:
        """The study in a folder; with `plan`, only if that is the plan it holds.

        Raises:
            StudyError: there is no study, its plan cannot be read, or it is another than `plan`.
        """
        path = Path(folder).absolute()
        try:
            data = json.loads((path / "plan.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise StudyError(f"there is no study in {path}: {error}", "create one, or name its folder") from error
        except ValueError as error:
            raise StudyError(f"{path / 'plan.json'} is not JSON: {error}", "restore the file") from error
        held = Plan.from_dict(data)
        if plan is not None and plan != held:
            differences = "; ".join(plan_differences(held, plan))
            raise StudyError(
                f"{path} holds a study with another plan ({differences})",
                "use another folder for a new plan: a plan is fixed before its first run",
            )
        return cls(path, held)

    def jobs(self) -> list[tuple[str, int]]:
        """All runs as (arm, seed), seed by seed: a study that is stopped has complete seeds."""
        return [(arm, seed) for seed in self.plan.seeds for arm in self.plan.arms]

    def run_folder(self, arm: str, seed: int) -> Path:
        """Folder of one run."""
        return self.folder / "runs" / slug(arm, seed)

    def prepare(self, arm: str, seed: int, *, keep_errors: bool = False) -> Path:
        """Wipe a run's folder and write its spec; what failed attempts of this session left may be kept."""
        folder = self.run_folder(arm, seed)
        if folder.exists():
            (folder / "result.json").unlink(missing_ok=True)  # first: half a wiped run must not look finished
            for item in folder.iterdir():
                if keep_errors and item.name.startswith("error-"):
                    continue
                if item.is_dir() and not item.is_symlink():
                    shutil.rmtree(item)
                else:
                    item.unlink()
        folder.mkdir(parents=True, exist_ok=True)
        options = json.loads(json.dumps(self.plan.runner["options"]))
        write_json(folder / "spec.json", {"arm": arm, "seed": seed, "options": options, "out": str(folder)})
        return folder

    def result(self, arm: str, seed: int) -> RunResult | None:
        """How a run ended, or None if it has not."""
        return read_result(self.run_folder(arm, seed))

    def records(self) -> list[RunRecord]:
        """Every finished run, in the order of `jobs`.

        Raises:
            StudyError: a finished run's metrics cannot be read.
        """
        found = []
        for arm, seed in self.jobs():
            result = self.result(arm, seed)
            if result is None:
                continue
            path = self.run_folder(arm, seed) / "metrics.jsonl"
            records = [] if result.status == "failed" else read_metrics(path, finished=True)
            found.append(RunRecord(arm, seed, result, tuple(records)))
        return found

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the folder; the operating system lets go when the process ends, however it ends.

        Raises:
            StudyError: another process (or another `Study` of this one) holds it; the message says who.
        """
        from filelock import FileLock, Timeout

        holder = self.folder / ".holder.json"
        lock = FileLock(self.folder / ".lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            raise StudyError(f"{self.folder} is in use by {_who(holder)}", "wait for it to end, or stop it") from None
        try:
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            write_json(holder, {"pid": os.getpid(), "host": socket.gethostname(), "since": started})
            yield
        finally:
            holder.unlink(missing_ok=True)
            lock.release()


def _who(holder: Path) -> str:
    try:
        data = json.loads(holder.read_text(encoding="utf-8"))
        return f"process {data['pid']} on {data['host']} since {data['since']}"
    except (OSError, ValueError, KeyError):
        return "another process, which has only just taken it"
