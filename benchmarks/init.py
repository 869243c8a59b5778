"""Time and memory of `init_` against torch.nn.init on the same tensors, in one run.

    python benchmarks/init.py [--repeats 7]

GPT-2 XL's attention: D = 1600, 25 heads, 4 layers, in transformers' own GPT-2 (Conv1D: rows lie along columns). Rivals
on the same tensors: `trunc_normal_` on Q, K and V, and per-head `orthogonal_` on Q and K with V left out. Neither gives
the same bits for any number of threads, undoes a failure, or reports.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from rich.console import Console
from rich.table import Table
from torch import nn
from transformers import GPT2Config, GPT2Model

import kappaone

WIDTH, HEADS, LAYERS = 1600, 25, 4
SIZE = WIDTH // HEADS


def blocks(model: nn.Module) -> list[torch.Tensor]:
    """Q, K and V of every layer as rows = outputs."""
    return [layer.attn.c_attn.weight.detach().T for layer in model.h]


def trunc_normal(model: nn.Module) -> None:
    for weight in blocks(model):
        nn.init.trunc_normal_(weight, std=0.02)


def orthogonal(model: nn.Module) -> None:
    for weight in blocks(model):
        for head in range(2 * HEADS):
            nn.init.orthogonal_(weight[head * SIZE : (head + 1) * SIZE])


def resident() -> int:
    """Resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak_of(run: Callable[[], object]) -> int:
    """Largest growth of resident memory while something runs, in bytes."""
    base, peak, done = resident(), 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, resident() - base)

    thread = threading.Thread(target=watch)
    thread.start()
    run()
    done.set()
    thread.join()
    return peak


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats
    transformers.logging.set_verbosity_error()
    config = GPT2Config(n_embd=WIDTH, n_head=HEADS, n_layer=LAYERS, vocab_size=8, n_positions=8, n_inner=8)
    model = GPT2Model(config)

    def ours(*, undo: bool = True) -> None:
        kappaone.init_(model, "conditioned", seed=0, undo=undo, overwrite=True)

    runs: dict[str, Callable[[], object]] = {
        "kappaone init_ conditioned": ours,
        "kappaone init_ conditioned, undo=False": lambda: ours(undo=False),
        "torch trunc_normal_ on Q, K, V": lambda: trunc_normal(model),
        "torch orthogonal_ per head on Q, K": lambda: orthogonal(model),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run()  # warm up
    for _ in range(repeats):
        for name, run in runs.items():  # interleaved, so that a busy moment hits all alike
            started = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in times.items()}
    layer_bytes = 3 * WIDTH * WIDTH * 4
    memory = peak_of(lambda: ours(undo=False)) / layer_bytes
    console = Console()
    console.print(
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    )
    table = Table(
        "what",
        "ms per layer",
        "ratio: ours / this",
        title=f"D={WIDTH}, {HEADS} heads, {LAYERS} layers; median of {repeats}",
    )
    first = next(iter(medians.values()))
    for name, value in medians.items():
        table.add_row(name, f"{1e3 * value / LAYERS:.0f}", f"{first / value:.2f}")
    console.print(table)
    console.print(
        f"extra memory of init_ without its undo copy: {memory:.2f} layers' worth of Q, K, V ({layer_bytes / 1e6:.0f} MB each)"
    )


if __name__ == "__main__":
    main()
