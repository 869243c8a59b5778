"""A row says what there is, what is refused and why, and what the probe really found."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kappaone.coverage import rows as rows_module
from kappaone.coverage.rows import Kind, Row, Verdict, confirmed_by, examine, probed
from kappaone.layouts.find import Survey
from tests.coverage import zoo_of_toys as toys


def test_status_and_reasons_of_each_kind_of_architecture():
    rows = {name: examine(toys, name) for name in toys.names()}
    assert {name: row.status for name, row in rows.items()} == {
        "broken": "error",
        "convolution": "no attention",
        "encoder_large": "handled",
        "encoder_small": "handled",
        "mixed": "refused",
        "shuffled": "refused",
        "stubborn": "handled",
    }
    large = rows["encoder_large"]
    assert (large.layers, large.adapters, large.kinds) == (6, ("torch.mha",), ("MultiheadAttention",))
    assert [kind.layers for kind in large.details] == [6]
    assert large.confirmed is None
    assert rows["broken"].note == "toys:broken cannot be built: its builder raises"
    assert rows["mixed"].layers == 1
    assert rows["mixed"].refused == ("Shuffled: has to_q and to_k (1 layers)",)
    assert rows["encoder_small"].details[0].key == large.details[0].key
    assert rows["stubborn"].details[0].key != large.details[0].key


def test_outside_is_told_from_refused_and_from_nothing(monkeypatch):
    real = rows_module.survey

    def moved(model, example=None):
        found = real(model, example)
        return Survey(found.layouts, (), found.refused)

    monkeypatch.setattr(rows_module, "survey", moved)
    assert examine(toys, "shuffled").status == "outside"
    assert examine(toys, "shuffled").outside == ("Shuffled: has to_q and to_k (1 layers)",)
    assert examine(toys, "mixed").status == "handled"


def test_the_probe_confirms_a_right_layout():
    row = examine(toys, "encoder_large", probe=True)
    assert row.confirmed is True
    assert row.note == ""
    assert {verdict.by for verdict in row.verdicts.values()} == {"encoder_large"}


def test_the_probe_contradicts_a_wrong_layout(monkeypatch):
    """The rows of q and v exchanged, in every survey: described in the same way, and wrong."""
    real = rows_module.survey

    def wrong(model, example=None):
        found = real(model, example)
        return Survey(tuple(replace(item, q=item.v, v=item.q) for item in found.layouts), found.refused)

    monkeypatch.setattr(rows_module, "survey", wrong)
    row = examine(toys, "encoder_large", probe=True)
    assert row.confirmed is False
    assert "it behaves as v" in row.note
    assert row.status == "handled"  # described; that it is wrong is what `confirmed` says


def test_what_cannot_be_probed_is_neither_yes_nor_no(monkeypatch):
    row = examine(toys, "stubborn", probe=True)
    assert row.confirmed is None
    assert row.note == "MultiheadAttention: no small instance: it is stubborn"

    def late(*_, **__):
        raise RuntimeError("no memory\nat all")

    monkeypatch.setattr(rows_module, "verify", late)
    row = examine(toys, "encoder_small", probe=True)
    assert row.confirmed is None
    assert row.note == "MultiheadAttention: RuntimeError: no memory at all"


def test_a_small_instance_without_the_layer_confirms_nothing(monkeypatch):
    monkeypatch.setattr(toys, "small", lambda _: toys.Small(toys.encoder(16, 1).eval(), torch.randn(2, 5, 16)))
    row = examine(toys, "stubborn", probe=True)
    assert row.confirmed is None
    assert "the small instance has no such layer" in row.note


def test_attention_that_only_its_calls_betray_is_said(monkeypatch):
    class Hidden(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b, self.c = (torch.nn.Linear(16, 16) for _ in range(3))

        def forward(self, x):
            return (self.a(x) @ self.b(x).mT).softmax(-1) @ self.c(x)

    small = toys.Small(torch.nn.Sequential(toys.encoder(16, 1), Hidden()).eval(), torch.randn(2, 5, 16))
    monkeypatch.setattr(toys, "small", lambda _: small)
    row = examine(toys, "encoder_small", probe=True)
    assert "Hidden calls softmax and is not described" in row.note
    assert row.confirmed is True


def test_one_contradicted_kind_outweighs_the_others():
    row = Row("toys", "x", "handled", details=tuple(Kind("A", "s", str(i)) for i in range(3)))
    words = confirmed_by(
        row, {"s | 0": Verdict(True, by="y"), "s | 1": Verdict(False, "1 of 3: wrong", "z"), "s | 2": Verdict(None)}
    )
    assert words.confirmed is False
    assert words.note == "A: 1 of 3: wrong [z]; A: "


def test_rows_survive_plain_data():
    row = examine(toys, "encoder_small", probe=True)
    assert Row.from_dict(row.to_dict()) == row


def test_probing_leaves_the_random_state_alone():
    before = torch.get_rng_state()
    assert probed(toys, "encoder_small")
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("status", ["refused", "error", "no attention", "outside"])
def test_a_row_without_kinds_is_never_confirmed(status):
    row = Row("toys", "x", status)
    assert confirmed_by(row, {}) == row
