"""What every layout must do: be found by structure, name the right numbers, and be confirmed by behaviour."""

from __future__ import annotations

from torch import nn

from kappaone.layouts import find_attention
from kappaone.layouts.probe import verify
from kappaone.testing.model_case import ModelCase


def check_layout(case: ModelCase) -> None:
    """All layers are found under any class names, with the stated heads, and every row does what its layout says.

    Raises:
        AssertionError: saying what was expected and found.
    """
    model, example = case.model(), case.input()
    layouts = find_attention(model, example)
    assert len(layouts) == case.layers, f"{case.name}: {len(layouts)} layers found, expected {case.layers}"
    for layout in layouts:
        assert layout.heads == case.heads, f"{layout.name}: {layout.heads} heads, expected {case.heads}"
        assert layout.kv_heads == (case.kv_heads or case.heads), f"{layout.name}: {layout.kv_heads} kv_heads"
        assert not case.source or layout.source == case.source, f"{layout.name}: described by {layout.source}"
        assert (layout.o is not None) == case.has_output, f"{layout.name}: output projection {layout.o}"
        for fact, value in case.facts.items():
            assert layout.facts.get(fact) == value, f"{layout.name}: fact {fact} is {layout.facts.get(fact)}"
    report = verify(model, layouts, example, rows_per_head=None)
    assert report.ok, str(report)
    renamed = rename_classes(case.model())
    again = find_attention(renamed, example)
    assert [(item.name, item.q, item.k, item.v, item.o) for item in again] == [
        (item.name, item.q, item.k, item.v, item.o) for item in layouts
    ], f"{case.name}: other layouts are found when the classes have other names"


def rename_classes(model: nn.Module) -> nn.Module:
    """Give every module's class a meaningless name, as wrappers and subclasses do; the model is changed in place."""
    for index, module in enumerate(model.modules()):
        module.__class__ = type(f"Renamed{index}", (type(module),), {})
    return model
