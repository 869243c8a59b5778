"""The terminal table: made from JSON alone, in the agreed order, names shown as they are."""

import io
import json

from rich.console import Console

from kappaone.studies import analyse
from kappaone.studies.table import render

from .test_analyse import dS, finals, plan, runs


def text(analysis):
    console = Console(file=io.StringIO(), width=160)
    console.print(render(json.loads(json.dumps(analysis.to_dict()))))
    return console.file.getvalue()


def test_order_and_content():
    shown = text(analyse(plan(), runs(finals(scale=0.1))))
    places = [
        shown.index(t)
        for t in (
            "Noise floor:",
            "Minimum detectable effect:",
            "acc by arm",
            "Paired differences",
            "Steps to",
            "Tracked",
        )
    ]
    assert places == sorted(places)
    assert f"arms against {dS}" in shown
    assert f"{dS} (reference)" in shown
    assert "default(redraw) (A/A)" in shown
    assert "better" in shown


def test_brackets_in_names_are_not_markup():
    values = {(a if a != "same" else "[red]x[/red]", s): v for (a, s), v in finals().items()}
    arms = tuple(dict.fromkeys(a for a, _ in values))
    assert "[red]x[/red]" in text(analyse(plan(arms=arms), runs(values)))


def test_little_data_is_shown_all_the_same():
    shown = text(analyse(plan(noise_arm=None, target=None), runs({(dS, 0): 0.5})))
    assert "interim" in shown
    assert "inconclusive" in shown
    assert "Warning: there is no A/A arm" in shown
