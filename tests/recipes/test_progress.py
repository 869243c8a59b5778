"""What a person sees while a study runs."""

from __future__ import annotations

import io

from rich.console import Console

from kappaone.recipes.progress import StudyProgress


def test_the_bar_shows_time_left_and_silence_is_silent() -> None:
    out = io.StringIO()
    shown = StudyProgress(console=Console(file=out, force_terminal=True, width=100))
    with shown.bar(100.0) as tell:
        assert tell is not None
        tell(0, 4, None)
        tell(2, 4, 65.0)
        tell(4, 4, 0.0)
    text = out.getvalue()
    assert "4/4" in text
    assert "done" in text
    quiet = io.StringIO()
    silent = StudyProgress(enabled=False, console=Console(file=quiet))
    silent.say("nothing")
    with silent.bar() as tell:
        assert tell is None
    lines = io.StringIO()
    with StudyProgress(console=Console(file=lines)).bar(100.0) as tell:
        assert tell is not None
        for done in range(41):
            tell(done, 40, None if done == 0 else 40.0 - done)
    assert lines.getvalue().splitlines()[0] == "0 of 40 runs, about 1 min 40 s left"
    assert lines.getvalue().splitlines()[-1] == "40 of 40 runs"
    assert len(lines.getvalue().splitlines()) == 11
    assert quiet.getvalue() == ""
