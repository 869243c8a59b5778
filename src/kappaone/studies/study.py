"""A study: a plan, its folder, its runs, its analysis."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kappaone.studies.plan import Plan
from kappaone.studies.store import Store, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kappaone.studies.results import StudyAnalysis
    from kappaone.studies.runner import Progress


@dataclass(frozen=True)
class StudyStatus:
    """Where a study stands.

    Attributes:
        total: runs in the plan.
        ok: runs that finished.
        diverged: runs that diverged, which is a result.
        failed: runs that failed; the next `run` makes them again.
        pending: runs without a result.
        failures: what went wrong, by (arm, seed).
        folders: folder of each failed run, by (arm, seed).
        seconds: mean duration of a finished run, or None.
    """

    total: int
    ok: int
    diverged: int
    failed: int
    pending: int
    failures: Mapping[tuple[str, int], str]
    folders: Mapping[tuple[str, int], str]
    seconds: float | None

    @property
    def complete(self) -> bool:
        """Whether every run has a result."""
        return self.ok + self.diverged == self.total

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON-ready form."""
        failures = [
            {"arm": arm, "seed": seed, "detail": detail, "folder": self.folders[arm, seed]}
            for (arm, seed), detail in self.failures.items()
        ]
        counts = {name: getattr(self, name) for name in ("total", "ok", "diverged", "failed", "pending", "seconds")}
        return {"schema": 1, **counts, "failures": failures}


class Study:
    """Paired runs of several arms, in a folder: stopped at any moment and run again, it goes on where it was.

    Attributes:
        folder: the study's folder.
        plan: its plan.

    Examples:
        >>> import tempfile
        >>> plan = Plan(name="demo", arms=("default", "conditioned"), seeds=range(8), margin=0.01)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     Study.create(folder, plan).status().pending
        16
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return self._store.folder

    @property
    def plan(self) -> Plan:
        """The study's plan."""
        return self._store.plan

    @classmethod
    def create(cls, folder: str | os.PathLike[str], plan: Plan) -> Study:
        """A new study, or the one in `folder` if it has this very plan.

        Raises:
            StudyError: the folder holds another plan (the message names the differences) or something else.
        """
        return cls(Store.create(folder, plan))

    @classmethod
    def open(cls, folder: str | os.PathLike[str], plan: Plan | None = None) -> Study:
        """The study in a folder; with `plan`, only if it has that plan.

        Raises:
            StudyError: there is none, it cannot be read, or it has another plan.
        """
        return cls(Store.open(folder, plan))

    def run(
        self,
        *,
        workers: int = 2,
        retries: int = 1,
        threads: int = 1,
        preload: Sequence[str] = ("torch",),
        progress: Progress | None = None,
    ) -> StudyStatus:
        """Make every run that has no result yet; failed runs are made again.

        Each run is a process of its own. Ctrl-C ends all of them and is raised on; after it, or after a kill at any
        moment, the same call keeps finished runs and makes the others again from their start.

        Args:
            workers: runs at a time.
            retries: how often a run that fails is tried again.
            threads: threads of each run.
            preload: modules that are loaded once for all runs, where runs are callables and the platform can fork.
            progress: called with (runs done, runs in all, seconds left or None) at the start and after every run.

        Returns:
            Where the study stands; failed runs are in it, with what went wrong.

        Raises:
            StudyError: another process runs this study, or nothing in it works.
        """
        from kappaone.studies.child import versions
        from kappaone.studies.runner import run_missing

        with self._store.lock():
            path = self.folder / "provenance.json"
            if not path.exists():
                write_json(path, {"schema": 1, **_machine(), "versions": versions(), "started": _now()})
            run_missing(
                self._store, workers=workers, retries=retries, threads=threads, preload=preload, progress=progress
            )
        return self.status()

    def status(self) -> StudyStatus:
        """Where the study stands; reads the folder only, whoever is running it."""
        jobs = self._store.jobs()
        results = {job: r for job in jobs if (r := self._store.result(*job)) is not None}
        failures = {job: r.detail for job, r in results.items() if r.status == "failed"}
        seconds = [r.seconds for r in results.values() if r.status != "failed"]
        return StudyStatus(
            total=len(jobs),
            ok=sum(r.status == "ok" for r in results.values()),
            diverged=sum(r.status == "diverged" for r in results.values()),
            failed=len(failures),
            pending=len(jobs) - len(results),
            failures=failures,
            folders={job: str(self._store.run_folder(*job)) for job in failures},
            seconds=sum(seconds) / len(seconds) if seconds else None,
        )

    def analyse(self) -> StudyAnalysis:
        """What the finished runs say, by the plan; an unfinished study gives an interim analysis that says so.

        Raises:
            StudyError: metrics of a finished run cannot be read.
            MissingExtra: scipy is not installed.
        """
        import json

        from kappaone.studies.analyse import analyse

        records = self._store.records()
        path = self.folder / "provenance.json"
        provenance = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        provenance.pop("schema", None)
        # the runs know the libraries that they loaded; the study's own process may have loaded none
        versions = dict(provenance.get("versions", {}))
        for record in records:
            versions |= record.result.versions
        ended = [record.result.finished for record in records if record.result.finished]
        finished = max(ended) if ended and self.status().pending == 0 else None
        return analyse(
            self.plan,
            records,
            provenance={
                **provenance,
                "versions": versions,
                "kappaone": versions.get("kappaone"),
                "finished": finished,
            },
        )


def _machine() -> dict[str, Any]:
    # no host name: a report may be shared
    return {"machine": f"{platform.system()} {platform.release()}, {platform.machine()}", "cores": os.cpu_count()}


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
