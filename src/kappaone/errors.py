"""Every error of kappaone: what was expected, what was found, where, and what to do.

All derive from `KappaoneError`, which is a `ValueError`. The command line prints `what` and `todo`, one line each.
"""

from __future__ import annotations


class KappaoneError(ValueError):
    r"""Base of every error that kappaone raises on purpose.

    Args:
        what: what was expected, what was found, and where (qualified names).
        todo: what the user can do about it.

    Examples:
        >>> str(KappaoneError("layer 'a' has 3 heads; expected 4", "pass heads=3"))
        "layer 'a' has 3 heads; expected 4\n  what to do: pass heads=3"
    """

    def __init__(self, what: str, todo: str = "") -> None:
        self.what = what
        self.todo = todo
        super().__init__(f"{what}\n  what to do: {todo}" if todo else what)


class SpecError(KappaoneError):
    """A scheme, a layout spec, a plan or an option is not written as it must be."""


class LayoutError(KappaoneError):
    """Attention was not found, not recognised, or is not laid out as its layout says."""


class WriteError(KappaoneError):
    """Weights could not be written, or must not be (meta, quantised, loaded, parametrized ...)."""


class MeasureError(KappaoneError):
    """A quantity cannot be measured on this model or this input."""


class StudyError(KappaoneError):
    """A study's plan, store or results are not usable as they are."""


class MissingExtra(KappaoneError):
    """A command or function needs an optional dependency that is not installed."""

    def __init__(self, needed_by: str, package: str, extra: str) -> None:
        super().__init__(f"{needed_by} needs {package}, which is not installed", f"pip install 'kappaone[{extra}]'")


class KappaoneWarning(UserWarning):
    """Base of every warning that kappaone emits."""
