"""The statistics libraries, imported where they are needed and not before: reading a study's status needs none."""

from __future__ import annotations

from types import ModuleType

from kappaone.errors import MissingExtra


def scipy_special() -> ModuleType:
    """`scipy.special`, or an error that says what to install.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        import scipy.special
    except ImportError as error:
        raise MissingExtra("the statistics of a study", "scipy", "study") from error
    special: ModuleType = scipy.special
    return special
