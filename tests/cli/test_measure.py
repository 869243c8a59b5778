"""The bar of `kappaone inspect`: on a terminal with the time left, nowhere else a character."""

import io

from rich.console import Console

from kappaone.cli.measure import _bar


def test_the_bar_counts_on_a_terminal():
    text = io.StringIO()
    with _bar(Console(file=text, force_terminal=True, width=100)) as tell:
        assert tell is not None
        tell(0, 8, None)
        tell(5, 8, 3.0)
    assert "5/8" in text.getvalue()
    assert "left" in text.getvalue()


def test_no_terminal_no_character():
    text = io.StringIO()
    with _bar(Console(file=text, force_terminal=False)) as tell:
        assert tell is None
    assert text.getvalue() == ""
