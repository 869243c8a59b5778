"""Layouts of transformers beyond q_proj: right ones are confirmed in the conformance suite, wrong ones are caught here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from kappaone.errors import LayoutError
from kappaone.laws import fitting
from kappaone.layouts import find_attention
from kappaone.layouts.blocks import parameters_by_name, stacked_blocks
from kappaone.layouts.find import survey
from kappaone.layouts.probe import verify
from tests.conformance.rows_transformers import LAYOUTS, MODELS

CASES = {case.name: case for case in [*MODELS, *LAYOUTS]}
MUTABLE = [
    "GPT-NeoX, head by head",
    "Falcon, groups",
    "CodeGen, four chunks of q, v, k",
    "XLNet, parameters of three axes",
    "DeBERTa v2, positions projected by the same weights",
    "Longformer, windows",
    "ConvBERT, a convolution beside the heads",
    "Swin v2, cosines",
]


def _swapped(layout, one, other):
    return replace(layout, **{one: layout.role(other), other: layout.role(one)})


def _fewer_heads(layout):
    """Pairs of neighbouring heads taken for one, where their rows are neighbours."""

    def merged(rows):
        return replace(rows, starts=rows.starts[::2], size=2 * rows.size, bias_starts=rows.bias_starts[::2])

    return replace(layout, q=merged(layout.q), k=merged(layout.k), v=merged(layout.v), o=layout.o and merged(layout.o))


_QUICK = ("GPT-NeoX, head by head", "XLNet, parameters of three axes")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in MUTABLE]
)
def test_wrong_layouts_are_caught(name):
    case = CASES[name]
    model, example = case.model(), case.input()
    layout = find_attention(model, example)[0]
    assert verify(model, [layout], example).ok
    wrong = [_swapped(layout, "k", "v")]
    if layout.heads == layout.kv_heads:
        wrong += [_swapped(layout, "q", "k"), _swapped(layout, "q", "v")]
        turned = layout.k.starts[1:] + layout.k.starts[:1]
        wrong.append(replace(layout, k=replace(layout.k, starts=turned)))
        if layout.q.starts[1] - layout.q.starts[0] == layout.q.size * layout.q.step:
            wrong.append(_fewer_heads(layout))
    for layer in wrong:
        assert not verify(model, [layer], example).ok


def test_head_by_head_is_not_taken_for_thirds():
    case = CASES["GPT-NeoX, head by head"]
    model, example = case.model(), case.input()
    layout = find_attention(model)[0]
    rows = layout.heads * layout.head_dim
    thirds = {
        role: replace(layout.role(role), starts=tuple(range(i * rows, (i + 1) * rows, layout.head_dim)))
        for i, role in enumerate("qkv")
    }
    with pytest.raises(LayoutError, match="contradict"):
        verify(model, [replace(layout, **thirds)], example).require()


@pytest.mark.parametrize("name", list(CASES))
def test_fresh_weights_follow_the_laws_that_are_stated(name):
    model = CASES[name].model()
    parameters = parameters_by_name(model)
    for layout in find_attention(model):
        for role in "qkv":
            rows = layout.role(role)
            if layout.laws:
                assert fitting(layout.laws, stacked_blocks(model, layout, role).detach().numpy().ravel())
            if rows.bias is not None and layout.zero_bias:
                assert float(parameters[rows.bias].detach().abs().max()) == 0


def test_cross_attention_and_its_scale_are_facts():
    case = CASES["T5, encoder and decoder"]
    layers = {layout.name: layout for layout in find_attention(case.model())}
    crossing = [name for name, layout in layers.items() if layout.facts.get("cross")]
    assert crossing == ["decoder.block.0.layer.1.EncDecAttention"]
    assert {layout.scale for layout in layers.values()} == {1.0}


class _Bare(nn.Module):
    """Looks like timm's attention: no configuration of transformers is around it."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.head_dim, self.scale = 4, 8, 8**-0.5
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)


def test_a_fused_qkv_outside_transformers_is_nobody_elses():
    import transformers  # noqa: F401  its adapters are asked

    found = survey(nn.Sequential(_Bare()))
    assert not found.layouts and found.refused[0].why == "has qkv"


def test_what_no_layout_states_is_named():
    import transformers

    wide = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 40, "num_hidden_layers": 1}
    squeeze = transformers.SqueezeBertModel(transformers.SqueezeBertConfig(**wide, embedding_size=32, vocab_size=50))
    assert {item.why.partition(":")[0] for item in survey(squeeze).refused} == {"grouped convolutions"}
    whole = {"q_groups": 1, "k_groups": 1, "v_groups": 1}
    plain = transformers.SqueezeBertModel(
        transformers.SqueezeBertConfig(**wide, **whole, embedding_size=32, vocab_size=50)
    )
    assert "grouped" not in str(survey(plain).refused)
    luke = transformers.LukeModel(
        transformers.LukeConfig(**wide, vocab_size=50, entity_vocab_size=20, entity_emb_size=8)
    )
    assert "four query projections" in survey(luke).refused[0].why
    yoso = transformers.YosoModel(transformers.YosoConfig(**wide, vocab_size=50))
    assert "hashes" in survey(yoso).outside[0].why and not survey(yoso).refused


def test_nystrom_is_exact_where_every_token_is_a_landmark():
    import transformers

    wide = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "intermediate_size": 40,
        "num_hidden_layers": 1,
        "vocab_size": 50,
    }
    for landmarks, method in ((4, "nystrom"), (8, None)):
        config = transformers.NystromformerConfig(**wide, num_landmarks=landmarks, segment_means_seq_len=8)
        (layout,) = find_attention(transformers.NystromformerModel(config))
        assert layout.facts.get("approximate") == method


def test_what_a_module_reads_twice_is_changed_once():
    """DeBERTa projects positions by the weights of q and k: a query row then moves what every token's key asks."""
    case = CASES["DeBERTa v2, positions projected by the same weights"]
    model, example = case.model(), case.input()
    layers = find_attention(model, example)
    with torch.no_grad():
        before = model(**example)[0]
    assert verify(model, layers, example, rows_per_head=None).ok
    with torch.no_grad():
        assert torch.equal(model(**example)[0], before)
