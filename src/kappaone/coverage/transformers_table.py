"""What the rules of `transformers_shrink` and `transformers_inputs` cannot know, by model type."""

from __future__ import annotations

from typing import Any

# Entries of the small configuration; a dict under the name of a part goes into that part.
CONFIG: dict[str, dict[str, Any]] = {}

# What a small instance leaves out.
NOTES: dict[str, str] = {}

# Why no small instance is made.
NOT_SMALL: dict[str, str] = {}
