from __future__ import annotations

from torch import nn

from kappaone.cli.layout_table import alike, family, where
from kappaone.layouts import RoleRows, find_attention


def test_layers_that_differ_in_more_than_their_number_are_shown_apart():
    model = nn.ModuleList([nn.MultiheadAttention(8, heads) for heads in (2, 2, 4, 2)])
    groups = alike(find_attention(model))
    assert [[layout.name for layout in group] for group in groups] == [["0", "1", "3"], ["2"]]


def test_numbers_inside_words_are_no_positions():
    model = nn.ModuleDict({"stage1": nn.MultiheadAttention(8, 2), "stage2": nn.MultiheadAttention(8, 2)})
    assert len(alike(find_attention(model))) == 2


def test_names_with_several_numbers():
    assert family(["a.0.b.1", "a.0.b.2", "a.0.b.3"]) == "a.0.b.{1..3} (3 layers)"
    assert family(["a.0.b.0", "a.1.b.1"]) == "a.0.b.0, a.1.b.1 (2 layers)"


def test_each_store_names_its_axis():
    assert where(RoleRows("w", (4,), 4, 8), "q") == "rows 4:8"
    assert where(RoleRows("w", (4,), 4, 8, transposed=True), "q") == "columns 4:8"
    assert where(RoleRows("w", (4,), 4, 8), "o") == "columns 4:8"
    assert where(RoleRows("w", (4,), 4, 8, transposed=True), "o") == "rows 4:8"
