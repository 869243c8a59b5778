"""Pages: one self-contained HTML page for any result."""

from kappaone.reports.pages import report as report

__all__ = ["report"]
