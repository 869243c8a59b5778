"""Who is probed for whom."""

from __future__ import annotations

from kappaone.coverage.plan import by_kind, merged, representatives, settled
from kappaone.coverage.rows import Kind, Row, Verdict


def row(name: str, parameters: int, *kinds: str) -> Row:
    status = "handled" if kinds else "no attention"
    return Row("toys", name, status, parameters=parameters, details=tuple(Kind("A", "s", k) for k in kinds))


ROWS = [
    row("big", 900, "a", "b"),
    row("none", 1),
    row("small", 10, "a"),
    row("middle", 50, "b", "a"),
    row("odd", 99, "c"),
]


def test_every_kind_on_the_smallest_that_has_it():
    assert representatives(ROWS) == ["small", "middle", "odd"]
    assert representatives(list(reversed(ROWS))) == ["small", "middle", "odd"]


def test_settled_kinds_are_not_probed_again_and_failures_move_on():
    assert representatives(ROWS, settled={"s | a", "s | c"}) == ["middle"]
    assert representatives(ROWS, settled={"s | a", "s | c"}, tried=["middle", "small"]) == ["big"]
    assert representatives(ROWS, settled={"s | a", "s | c"}, tried=["middle", "big"]) == []


def test_a_contradiction_beats_a_confirmation_beats_a_failure():
    yes, no, unknown = Verdict(True, by="x"), Verdict(False, "wrong", "y"), Verdict(None, "why", "z")
    assert merged([{"k": unknown}, {"k": yes}, {"k": unknown}]) == {"k": yes}
    assert merged([{"k": yes}, {"k": no}, {"k": yes}]) == {"k": no}
    assert settled({"a": yes, "b": no, "c": unknown}) == {"a", "b"}


def test_others_are_confirmed_by_kind_with_the_name_of_who_was_probed():
    yes = Verdict(True, by="small")
    rows = {r.name: r for r in by_kind(ROWS, {"s | a": yes, "s | b": Verdict(True, by="middle")})}
    assert (rows["small"].confirmed, rows["small"].note) == (True, "")
    assert (rows["big"].confirmed, rows["big"].note) == (True, "by kind: middle, small")
    assert (rows["odd"].confirmed, rows["odd"].note) == (None, "A: the small instance has no such layer")
    assert (rows["none"].confirmed, rows["none"].note) == (None, "")
