"""The report leaves the caller's random state alone, even when printing it imports rich for the first time."""

import subprocess
import sys

CODE = """
import random, torch
from torch import nn
import kappaone
model = nn.TransformerEncoderLayer(16, 4)
random.seed(0)
before = random.getstate(), torch.get_rng_state().tolist()
text = str(kappaone.init_(model, "conditioned", seed=0))
assert "12 blocks set" in text, text
assert (random.getstate(), torch.get_rng_state().tolist()) == before
"""


def test_printing_a_report_moves_no_random_state():
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=120)
