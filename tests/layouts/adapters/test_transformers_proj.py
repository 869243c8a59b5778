"""q_proj, k_proj, v_proj: facts are those of the forward, wrong layouts are caught, what is unknown is not described."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from kappaone.layouts import find_attention
from kappaone.layouts.adapters.mentions import mentions
from kappaone.layouts.find import survey
from kappaone.layouts.probe import verify
from kappaone.layouts.running import run
from kappaone.layouts.site import Site
from tests.conformance.rows_proj import LAYOUTS, MODELS

CASES = {case.name: case for case in [*MODELS, *LAYOUTS]}


def _swapped(layout, one, other):
    return replace(layout, **{one: layout.role(other), other: layout.role(one)})


@pytest.mark.parametrize("name", ["Qwen3-Next, gate rows among the queries, one layer of two", "GPT-J, partly turned"])
def test_wrong_layouts_are_caught(name):
    case = CASES[name]
    model, example = case.model(), case.input()
    layout = find_attention(model, example)[0]
    assert verify(model, [layout], example).ok
    wrong = [_swapped(layout, "k", "v")]
    if layout.heads == layout.kv_heads:
        wrong += [_swapped(layout, "q", "k"), _swapped(layout, "q", "v")]
    turned = layout.q.starts[1:] + layout.q.starts[:1]
    wrong.append(replace(layout, q=replace(layout.q, starts=turned)))
    for layer in wrong:
        assert not verify(model, [layer], example).ok


def test_rows_of_the_gate_are_no_query_rows():
    case = CASES["Qwen3-Next, gate rows among the queries, one layer of two"]
    model, example = case.model(), case.input()
    (layout,) = find_attention(model, example)
    assert layout.q.starts == (0, 16, 32, 48) and layout.q.size == 8
    gate = replace(layout, q=replace(layout.q, starts=(8, 24, 40, 56)))
    verdicts = verify(model, [gate], example).verdicts
    assert not any(verdict.ok for verdict in verdicts if verdict.expected_role == "q")


@pytest.mark.parametrize("name", ["DeepSeek V3, latent queries", "DeepSeek V2, plain queries"])
def test_the_latent_layout_holds_keys_and_values_head_by_head(name):
    case = CASES[name]
    model, example = case.model(), case.input()
    layout = find_attention(model, example)[0]
    assert layout.k.starts == (0, 11, 22, 33) and layout.v.starts == (6, 17, 28, 39)
    assert layout.k.inner == layout.v.inner and layout.k.inner.size == 10
    assert (layout.q.inner is None) == ("plain" in name)
    wrong = replace(layout, k=replace(layout.k, starts=tuple(s + 5 for s in layout.k.starts)))
    assert not verify(model, [wrong], example).ok
    assert not verify(model, [_swapped(layout, "k", "v")] if layout.k.size == layout.v.size else [wrong], example).ok


class _Scales(TorchFunctionMode):
    """The factors that fused attention is called with."""

    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.scaled_dot_product_attention:
            self.heard.append(kwargs.get("scale"))
        return func(*args, **(kwargs or {}))


def test_the_scale_is_the_one_that_is_used():
    from transformers import FalconH1Config, FalconH1Model

    case = CASES["OLMo 2, norms over all heads"]
    model, example = case.model(), case.input()
    with torch.no_grad(), _Scales() as scales:
        run(model, example)
    layers = find_attention(model)
    assert scales.heard == [pytest.approx(layer.scale) for layer in layers]
    config = FalconH1Config(
        hidden_size=32,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        intermediate_size=40,
        num_hidden_layers=1,
        vocab_size=50,
        mamba_d_ssm=16,
        mamba_n_heads=2,
        mamba_d_head=8,
        mamba_d_state=8,
        key_multiplier=0.25,
        pad_token_id=0,
    )
    (layout,) = find_attention(FalconH1Model(config))
    assert layout.scale == pytest.approx(0.25 * 8**-0.5)


def test_layers_without_rotary_embeddings_say_so():
    from transformers import Cohere2Config, Cohere2Model, SmolLM3Config, SmolLM3Model

    sizes = {
        "hidden_size": 32,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "vocab_size": 50,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    smol = find_attention(SmolLM3Model(SmolLM3Config(**sizes, no_rope_layers=[1, 0])))
    assert [layer.facts.get("rotary", False) for layer in smol] == [True, False]
    kinds = ["sliding_attention", "full_attention"]
    cohere = find_attention(Cohere2Model(Cohere2Config(**sizes, layer_types=kinds, sliding_window=3)))
    assert [layer.facts.get("rotary", False) for layer in cohere] == [True, False]
    assert [layer.facts.get("windows", False) for layer in cohere] == [True, False]


def test_cross_attention_is_stated_and_nothing_else():
    layers = find_attention(CASES["BART, encoder, decoder and what lies between"].model())
    assert {layer.name.rpartition(".")[2]: layer.facts.get("cross", False) for layer in layers} == {
        "self_attn": False,
        "encoder_attn": True,
    }


def test_projections_with_positions_added_are_told_from_rotary_ones():
    from transformers import DetrConfig
    from transformers.models.detr.modeling_detr import DetrSelfAttention

    config = DetrConfig(d_model=32, encoder_attention_heads=4)
    (layout,) = find_attention(DetrSelfAttention(config, 32, 4))
    assert "rotary" not in layout.facts and "positions are added" in layout.facts["extra"]


def _llama(change):
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaAttention

    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    return change(LlamaAttention)(LlamaConfig(**sizes), 0)


def _more_in_the_forward(kind):
    class Changed(kind):
        def __init__(self, *args):
            super().__init__(*args)
            self.strength = nn.Parameter(torch.ones(8))

        def forward(self, hidden_states, position_embeddings=None, **kwargs):
            return self.o_proj(self.v_proj(hidden_states).repeat(1, 1, 2) * self.strength.repeat(4))

    return Changed


def _another_attribute(kind):
    class Changed(kind):
        def forward(self, hidden_states, position_embeddings=None, **kwargs):
            return self.o_proj(self.q_proj(hidden_states) * self.temper)

        def __init__(self, *args):
            super().__init__(*args)
            self.temper = 2.0

    return Changed


def _another_function(kind):
    class Changed(kind):
        def forward(self, hidden_states, position_embeddings=None, **kwargs):
            return self.o_proj(
                _mixed(self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states))
            )

    return Changed


def _mixed(q, k, v):
    return q


def _renamed(kind):
    return type("FSDPSomething", (kind,), {})


@pytest.mark.parametrize("change", [_more_in_the_forward, _another_attribute, _another_function])
def test_a_forward_that_does_something_else_is_not_described(change):
    assert not survey(_llama(change)).layouts


def test_a_renamed_class_is_described():
    (layout,) = survey(_llama(_renamed)).layouts
    assert layout.facts == {"rotary": True}


def test_mentions_reach_into_methods_and_under_decorators():
    def decorated(function):
        import functools

        return functools.wraps(function)(lambda *args: function(*args))

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = 1, nn.Linear(2, 2)

        @decorated
        def forward(self, x):
            return self.inside(x)

        def inside(self, x):
            return self.two(F.relu(x))

    said = mentions(Site("", Odd(), {}))
    assert said is not None and said.own == {"two"} and said.functions == {"F"}
    assert {"relu", "inside"} <= said.words
