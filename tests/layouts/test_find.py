from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError, SpecError
from kappaone.layouts import AttentionSpec, find, find_attention, survey
from kappaone.layouts.adapters import ADAPTERS, Adapter
from kappaone.layouts.blocks import named_modules
from kappaone.layouts.site import Site
from tests.conformance.rows import MODELS
from tests.layouts.models import Fused


@pytest.mark.parametrize("case", MODELS, ids=lambda case: case.name)
def test_no_two_adapters_claim_one_module(case):
    modules = dict(named_modules(case.model()))
    for name, module in modules.items():
        answers = [a.name for a in ADAPTERS if a.describe(Site(name, module, modules)) is not None]
        assert len(answers) <= 1, (name, answers)


def test_two_claims_are_an_error_and_the_user_decides(monkeypatch):
    torch_mha = ADAPTERS[0]
    monkeypatch.setattr(find, "all_adapters", lambda: (*ADAPTERS, Adapter("another", "torch", torch_mha.describe)))
    model = nn.MultiheadAttention(8, 2)
    with pytest.raises(LayoutError, match="claimed by the adapters"):
        find_attention(model)
    spec = AttentionSpec("", heads=2, fused="in_proj_weight", o="out_proj")
    assert find_attention(model, layouts=[spec])[0].source == "spec"


def test_the_order_of_trust():
    model = nn.MultiheadAttention(8, 2)
    assert find_attention(model)[0].source == "torch.mha"
    model.kappaone_attention = AttentionSpec("", heads=4, fused="in_proj_weight", o="out_proj")
    declared = find_attention(model)[0]
    assert (declared.source, declared.heads) == ("declaration", 4)
    spec = AttentionSpec("", heads=8, fused="in_proj_weight", o="out_proj")
    assert (find_attention(model, layouts=[spec])[0].source, find_attention(model, layouts=[spec])[0].heads) == (
        "spec",
        8,
    )
    given = replace(declared, source="mine")
    assert find_attention(model, layouts=[given])[0].source == "mine"


def test_adapters_of_libraries_that_are_not_loaded_are_not_asked(monkeypatch):
    def explode(_: Site) -> None:
        raise AssertionError("asked")

    monkeypatch.setattr(find, "all_adapters", lambda: (Adapter("x", "a_library_that_is_not_loaded", explode),))
    with pytest.raises(LayoutError):
        find_attention(nn.MultiheadAttention(8, 2))
    assert "a_library_that_is_not_loaded" not in sys.modules


def test_a_declaration_must_be_a_spec():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].kappaone_attention = {"heads": 2}
    with pytest.raises(SpecError, match="expected an AttentionSpec"):
        find_attention(model)


@pytest.mark.parametrize("wrong", ["blocks.*", 3, {"heads": 2}])
def test_layouts_must_be_layouts(wrong):
    with pytest.raises(SpecError, match="expected AttentionLayout or AttentionSpec"):
        find_attention(nn.MultiheadAttention(8, 2), layouts=[wrong])


def test_a_given_layout_must_fit_its_model():
    (layout,) = find_attention(nn.MultiheadAttention(8, 2))
    with pytest.raises(LayoutError, match="'elsewhere'"):
        find_attention(nn.MultiheadAttention(8, 2), layouts=[replace(layout, name="elsewhere")])
    with pytest.raises(LayoutError, match=r"shape \(12, 4\)"):
        find_attention(nn.MultiheadAttention(4, 2), layouts=[layout])


def test_refused_attention_stops_or_is_skipped_and_is_named():
    model = nn.ModuleDict({"known": nn.MultiheadAttention(8, 2), "blocks": nn.ModuleList([_Unknown(), _Unknown()])})
    with pytest.raises(LayoutError) as error:
        find_attention(model)
    assert "2 attention layers" in error.value.what
    assert "blocks.1" in error.value.what
    assert "to_q.weight (8, 8)" in error.value.what
    assert "match='blocks.*'" in error.value.todo
    assert [layout.name for layout in find_attention(model, on_refused="skip")] == ["known"]
    assert [item.name for item in survey(model).refused] == ["blocks.0", "blocks.1"]
    with pytest.raises(SpecError, match="on_refused"):
        find_attention(model, on_refused="ignore")
    with pytest.raises(LayoutError):  # nothing would be left
        find_attention(model["blocks"], on_refused="skip")


def test_no_attention_at_all():
    with pytest.raises(LayoutError, match="no attention was found among 2 modules"):
        find_attention(nn.Sequential(nn.Linear(2, 2)))


def test_the_calls_betray_what_the_structure_hides():
    model = nn.Sequential(Fused("v k q", 2, 2, 4, 8))
    assert not survey(model).refused
    (refused,) = survey(model, torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))).refused
    assert (refused.name, refused.why) == ("0", "calls softmax")


class _Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(8, 8) for _ in range(3))


def test_a_proposed_glob_names_refused_layers_and_nothing_else():
    """A model of nn.Sequential: '*' would match the root and every other module."""
    with pytest.raises(LayoutError) as error:
        find_attention(nn.Sequential(_Unknown(), nn.LayerNorm(8), _Unknown()))
    assert "match='0'" in error.value.todo
    spec = AttentionSpec(match="[02]", heads=2, q="to_q", k="to_k", v="to_v")
    found = find_attention(nn.Sequential(_Unknown(), nn.LayerNorm(8), _Unknown()), layouts=[spec])
    assert [layout.name for layout in found] == ["0", "2"]


def test_tied_roles_lie_over_each_other():
    model = nn.Sequential(_Unknown())
    model[0].to_v.weight = model[0].to_k.weight
    spec = AttentionSpec(match="0", heads=2, q="to_q", k="to_k", v="to_v")
    with pytest.raises(LayoutError, match="blocks k0 and v0 lie over each other"):
        find_attention(model, layouts=[spec])


def test_an_output_projection_that_holds_queries_is_an_error():
    spec = AttentionSpec(match="0", heads=2, q="to_q", k="to_k", v="to_v", o="to_q")
    with pytest.raises(LayoutError, match=r"output projection '0.to_q.weight' also holds"):
        find_attention(nn.Sequential(_Unknown()), layouts=[spec])


@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning", "ignore:.*jit.*:DeprecationWarning")
def test_scripted_models_are_refused_by_name():
    with pytest.raises(LayoutError, match="scripted or traced"):
        find_attention(torch.jit.script(nn.TransformerEncoderLayer(8, 2)))


def test_a_second_spec_for_the_same_modules_says_who_took_them():
    model = nn.ModuleDict({"a": nn.ModuleDict({"wires": nn.Linear(8, 24)})})
    spec = AttentionSpec("a", heads=2, fused="wires")
    with pytest.raises(LayoutError, match="another layout or spec before it took, such as 'a'"):
        find_attention(model, layouts=[spec, AttentionSpec("a*", heads=2, fused="wires", order="k q v")])
