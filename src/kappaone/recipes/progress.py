"""What a person sees while a study runs: a bar with the time left, on stderr."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

Tell = Callable[[int, int, "float | None"], None]


class StudyProgress:
    """Says what happens on stderr, or nothing at all.

    Args:
        enabled: whether anything is shown.
        console: where; stderr if None. Where that is no terminal, one line is written per tenth of the study.
    """

    def __init__(self, *, enabled: bool = True, console: Console | None = None) -> None:
        self._enabled = enabled
        self._console = console or Console(stderr=True)

    def say(self, text: str) -> None:
        """Write some text."""
        if self._enabled:
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, expected: float | None = None) -> Iterator[Tell | None]:
        """A bar for the time of a study.

        Args:
            expected: seconds that it will take, shown until runs have told better.

        Yields:
            A callback for `Study.run`: (runs done, runs in all, seconds left or None); None if nothing is shown.
        """
        if not self._enabled:
            yield None
            return
        if not self._console.is_terminal:
            yield self._lines(expected)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            _TimeLeft(),
        )
        with Progress(*columns, console=self._console) as shown:
            task = shown.add_task("runs", total=None, left=expected, told=time.monotonic())

            def tell(done: int, total: int, left: float | None) -> None:
                shown.update(task, completed=done, total=total)
                if left is not None:
                    shown.update(task, left=left, told=time.monotonic())

            yield tell

    def _lines(self, expected: float | None) -> Tell:
        shown = -1

        def tell(done: int, total: int, left: float | None) -> None:
            nonlocal shown
            tenth = 10 * done // total if total else 10
            if tenth > shown:
                shown = tenth
                seconds = expected if left is None else left
                ahead = "" if seconds is None or done == total else f", about {duration(seconds)} left"
                self.say(f"{done} of {total} runs{ahead}")

        return tell


class _TimeLeft(ProgressColumn):
    """The study's own estimate, counted down between runs; rich's would be blind until several have ended."""

    def render(self, task: Task) -> Text:
        left = task.fields.get("left")
        if left is None:
            return Text("")
        ahead = max(left - (time.monotonic() - task.fields["told"]), 0.0)
        return Text(f"{duration(ahead)} left" if task.completed != task.total else "done")


def duration(seconds: float) -> str:
    """Seconds for people.

    Examples:
        >>> duration(42.3), duration(341), duration(7300)
        ('42 s', '5 min 41 s', '2 h 1 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
