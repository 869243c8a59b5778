"""Real process groups for tests: N processes over gloo on the CPU, forked from a server that has imported everything.

A world runs a list of cases (functions of this package by name) and gives, for each case, what each rank returned.
A rank that raises is reported with its traceback; a world that hangs is ended after its time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import time
import traceback
from datetime import timedelta
from pathlib import Path

CASES = "tests.apply.sharded_cases"
SECONDS = 400


def run_world(world: int, names: list[str], folder: Path, seconds: float = SECONDS) -> dict[str, list[dict]]:
    """Run cases one after the other on `world` ranks; for each case, the results of the ranks in order."""
    folder.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([CASES])
    ranks = [context.Process(target=_rank, args=(rank, world, names, str(folder))) for rank in range(world)]
    for process in ranks:
        process.start()
    until = time.monotonic() + seconds
    for process in ranks:
        process.join(max(0.1, until - time.monotonic()))
    hung = [rank for rank, process in enumerate(ranks) if process.is_alive()]
    for process in ranks:
        process.kill()
        process.join()
    assert not hung, f"ranks {hung} of {world} still ran after {seconds} s:\n" + "\n".join(
        path.read_text()[-2000:] for path in sorted(folder.glob("*.json"))
    )
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return {name: [rank.get(name, {"error": "did not run"}) for rank in found] for name in names}


def _rank(rank: int, world: int, names: list[str], folder: str) -> None:
    import importlib

    import torch
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(world)}
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=60))
    cases = importlib.import_module(CASES)
    results: dict[str, dict] = {}
    for name in names:
        started, used = time.monotonic(), time.process_time()
        try:
            results[name] = dict(getattr(cases, name)())
        except BaseException:
            results[name] = {"error": traceback.format_exc()}
        results[name] |= {"seconds": time.monotonic() - started, "cpu": time.process_time() - used}
        Path(folder, f"{rank}.json").write_text(json.dumps(results))
        if "error" in results[name]:
            break  # the ranks are no longer in step
    if all("error" not in result for result in results.values()):
        dist.destroy_process_group()
    os._exit(0)
