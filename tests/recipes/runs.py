"""Run the smoke preset and collect its lines; also as a script, for runs in another process."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

from kappaone.recipes.images import run


def lines_of(arm: str, seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    """Every line that a smoke run emits."""
    torch.set_num_threads(1)
    lines: list[dict[str, Any]] = []
    run({"arm": arm, "seed": seed, "options": {"preset": "smoke", **options}}, lines.append)
    return lines


if __name__ == "__main__":
    # JSON keeps every digit of a float: equal text is equal bits.
    print(json.dumps(lines_of(sys.argv[1], int(sys.argv[2]), **json.loads(sys.argv[3]))))
