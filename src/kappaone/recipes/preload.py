"""Imported once by a study's fork server, so that its runs start with the libraries of training already loaded.

Importing timm and Accelerate takes seconds; fifty runs would pay for it fifty times. Nothing here draws a random number
or starts a thread. A library that is missing is left to the run, whose error says what to install.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

LIBRARIES = ("timm.models.vision_transformer", "accelerate", "kappaone.recipes.images", "kappaone.apply")

for _name in LIBRARIES:
    with suppress(ModuleNotFoundError):
        import_module(_name)
