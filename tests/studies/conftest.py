"""Plans whose runs are tiny, and a scratch program that runs a study so that it can be killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kappaone.studies import Plan, TargetRule

HERE = Path(__file__).parent
FILE = HERE / "tiny_run.py"


@pytest.fixture
def make_plan():
    """Build a small plan; `function` of tiny_run.py is called by file."""

    def make(function="run", **changes):
        given = {
            "name": "tiny",
            "arms": ("default", "new", "default(redraw)"),
            "seeds": (0, 1),
            "margin": 0.05,
            "metric": "score",
            "target": TargetRule(window=2, consecutive=2),
            "tracked": ("kappa_J",),
            "runner": {"callable": f"{FILE}:{function}", "options": {}},
        }
        return Plan(**{**given, **changes})

    return make


@pytest.fixture
def start_study(tmp_path):
    """Start a study in a process of its own, by a script without a `__main__` guard."""
    started = []

    def start(folder, plan, *, workers=2, preload=(), environment=None):
        script = tmp_path / "program.py"
        script.write_text(
            "import json, sys\n"
            "from kappaone.studies import Plan, Study\n"
            f"plan = Plan.from_dict(json.loads({json.dumps(plan.to_dict())!r}))\n"
            f"Study.create({str(folder)!r}, plan).run(workers={workers}, preload={preload!r}, progress=lambda d, t, e: print(d, t, flush=True))\n"
        )
        process = subprocess.Popen(
            [sys.executable, str(script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()
