"""What runs find loaded: it must leave no trace in the process from which they are forked."""

from __future__ import annotations

import subprocess
import sys

from kappaone.recipes.compare import PRELOAD
from kappaone.recipes.preload import LIBRARIES

CHECK = """
import importlib, sys, threading
import numpy, torch
import rich.console  # draws from Python's own generator as it is imported, whoever imports it
import random
states = random.getstate(), numpy.random.get_state()[1].tolist(), torch.get_rng_state()
threads = threading.active_count()
for name in sys.argv[1].split(","):
    importlib.import_module(name)
assert random.getstate() == states[0]
assert numpy.random.get_state()[1].tolist() == states[1]
assert torch.equal(torch.get_rng_state(), states[2])
assert threading.active_count() == threads, threading.enumerate()  # a thread does not survive a fork
missing = [name for name in sys.argv[2].split(",") if name not in sys.modules]
assert not missing, missing
"""


def test_preloading_draws_nothing_starts_no_thread_and_loads_what_it_says() -> None:
    names = [",".join(PRELOAD), ",".join(LIBRARIES)]
    subprocess.run([sys.executable, "-c", CHECK, *names], check=True)
