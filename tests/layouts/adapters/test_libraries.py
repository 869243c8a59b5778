"""Layouts of other libraries: what the conformance rows do not show, and that wrong layouts are caught."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from kappaone.apply import init_
from kappaone.layouts import AttentionLayout, AttentionSpec, find_attention, survey
from kappaone.layouts.blocks import block_view, parameters_by_name
from kappaone.layouts.layout import RoleRows
from kappaone.layouts.probe import verify
from tests.conformance import rows_libraries
from tests.layouts import copied
from tests.layouts.models import Fused, tokens

CASES = {case.name: case for case in [*rows_libraries.MODELS, *rows_libraries.LAYOUTS]}
WRONG = [
    "copied nanoGPT",
    "torchvision Swin",
    "x-transformers, values normalized",
    "vit-pytorch, normalized weights",
    "open_clip, normalized inside",
    "diffusers Wan",
]


@pytest.mark.parametrize("name", WRONG)
def test_wrong_layouts_are_caught(name: str) -> None:
    case = CASES[name]
    model, example = case.model(), case.input()
    layout = find_attention(model, example)[0]
    turned = replace(layout.v, starts=layout.v.starts[1:] + layout.v.starts[:1])
    for wrong in (
        replace(layout, q=layout.k, k=layout.q),
        replace(layout, v=layout.k, k=layout.v),
        replace(layout, q=layout.v, v=layout.q),
        replace(layout, v=turned),
    ):
        assert verify(model, [wrong], example).wrong
    if layout.fused():
        shifted = replace(layout.q, starts=tuple(start + 1 for start in layout.q.starts))
        assert verify(model, [replace(layout, q=shifted)], example, rows_per_head=None).wrong


def test_key_value_heads_taken_for_consecutive_ones_are_caught() -> None:
    case = CASES["x-transformers, kv heads modulo"]
    model, example = case.model(), case.input()
    layout = find_attention(model, example)[0]
    wrong = verify(model, [replace(layout, facts={})], example).wrong
    assert {verdict.expected_role for verdict in wrong} == {"k", "v"}


@pytest.mark.parametrize(
    "kind", [copied.NanoGPTSwapped, copied.NanoGPTInterleaved, copied.LlamaModulo, copied.LucidInterleaved]
)
def test_copies_with_the_same_shapes_and_another_order_are_refused(kind: type[nn.Module]) -> None:
    model = nn.Sequential(kind())
    found = survey(model, torch.randn(2, 6, 16))
    assert not found.layouts
    assert [item.name for item in found.refused] == ["0"]


@pytest.mark.parametrize(
    ("options", "outside"),
    [
        ({"attn_sigmoid": True}, True),
        ({"attn_hard": True}, True),
        ({"attn_laser": True}, False),
        ({"attn_selective": True}, False),
        ({"attn_orthog_projected_values": True}, False),
    ],
    ids=str,
)
def test_x_transformers_without_a_softmax_of_its_own_is_named(options: dict[str, Any], outside: bool) -> None:
    model = rows_libraries._x_transformers(**options)()
    found = survey(model)
    assert not found.layouts
    assert len(found.outside if outside else found.refused) == 2


def test_mixed_heads_are_confirmed_whether_they_are_mixed_yet_or_not() -> None:
    case = CASES["x-transformers, talking heads"]
    model, example = case.model(), case.input()
    layouts = find_attention(model)
    assert verify(model, layouts, example).ok
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "talking_heads" in name:
                weight.normal_()
    assert verify(model, layouts, example).ok
    swapped = [replace(layout, q=layout.k, k=layout.q) for layout in layouts]
    assert not verify(model, swapped, example).ok


def test_streams_of_a_joint_attention_are_two_layouts() -> None:
    model = rows_libraries._sd3()
    example = rows_libraries._text_to_image(hidden_states=torch.randn(2, 4, 8, 8), pooled_projections=torch.randn(2, 8))
    layouts = find_attention(model, example)
    assert [layout.name for layout in layouts[:2]] == ["transformer_blocks.0.attn", "transformer_blocks.0.attn[added]"]
    assert layouts[1].q.parameter == "transformer_blocks.0.attn.add_q_proj.weight"
    assert layouts[3].output == "heads"  # the last block does not project its added stream
    assert verify(model, layouts, example, rows_per_head=1).ok
    # The added stream's values count among those of the first one, its queries do not.
    exchanged = [replace(layouts[0], q=layouts[1].q)]
    assert not verify(model, exchanged, example).ok


def test_the_fused_weights_are_described_where_the_processor_reads_them() -> None:
    model = rows_libraries._unet(fused=True)()
    for layout in find_attention(model):
        assert layout.v.parameter.endswith("to_kv.weight" if layout.facts.get("cross") else "to_qkv.weight")
    plain = rows_libraries._unet(fused=False)()
    assert all(layout.v.parameter.endswith("to_v.weight") for layout in find_attention(plain))


def test_copies_of_fused_weights_are_set_too() -> None:
    model = rows_libraries._unet(fused=True)()
    init_(model, "conditioned", seed=0)
    for layout in find_attention(model):
        module = model.get_submodule(layout.name)
        if layout.facts.get("cross"):
            assert torch.equal(module.to_kv.weight, torch.cat([module.to_k.weight, module.to_v.weight]))
        else:
            parts = [module.to_q.weight, module.to_k.weight, module.to_v.weight]
            assert torch.equal(module.to_qkv.weight, torch.cat(parts))


def test_linear_attention_of_diffusers_is_outside_by_its_processor() -> None:
    library = pytest.importorskip("diffusers.models.attention_processor")
    attention = library.Attention(16, heads=4, dim_head=4, processor=library.SanaLinearAttnProcessor2_0())
    found = survey(nn.Sequential(attention))
    assert not found.layouts
    assert [item.name for item in found.outside] == ["0"]


def test_cosines_of_open_clip_are_confirmed_where_its_product_is_mended(monkeypatch: pytest.MonkeyPatch) -> None:
    # open_clip 3.3 calls torch.bmm on four axes there, which torch refuses.
    monkeypatch.setattr(torch, "bmm", torch.matmul)
    model = rows_libraries._open_clip(scale_cosine_attn=True)()
    layouts = find_attention(model)
    assert layouts[0].facts["cosine"]
    assert layouts[0].scale is None
    assert verify(model, layouts, torch.randn(2, 6, 16), rows_per_head=None).ok


@pytest.mark.parametrize("order", ["4(q k v)", "k v q", "k q v"])
def test_orders_of_other_frameworks_by_a_spec(order: str) -> None:
    """Megatron interleaves by tensor-parallel rank; metaseq stores keys first."""
    hand = order if "(" not in order else "head(q k v)"  # four ranks of one head each
    model = Fused(hand, 4, 4, 3, 12)
    spec = AttentionSpec("", heads=4, fused="wires", order=order, o="out")
    report = verify(model, find_attention(model, layouts=[spec]), tokens(2, 6, 12), rows_per_head=None)
    assert len(report.verdicts) == 36
    assert not report.wrong


class Banks(nn.Module):
    """modded-nanogpt's way: the weights of all layers in two stacks, handed to attentions that hold none."""

    def __init__(self, layers: int = 3, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.qk_bank = nn.Parameter(torch.randn(layers, 2 * width, width) * 0.1)
        self.vo_bank = nn.Parameter(torch.randn(layers, 2, width, width) * 0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for qk, (v, o) in zip(self.qk_bank, self.vo_bank, strict=True):
            parts = nn.functional.linear(x, torch.cat([qk, v])).chunk(3, -1)
            q, k, v_ = (t.unflatten(-1, (self.heads, self.size)).transpose(1, 2) for t in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v_, is_causal=True).transpose(1, 2).flatten(2)
            x = x + y @ o
        return x


def test_banks_over_layers_by_layouts_with_axes() -> None:
    model, width, size = Banks(), 16, 4

    def rows(name: str, first: int, axes: int) -> RoleRows:
        return RoleRows(name, tuple(range(first, first + width, size)), size, width, axes=axes)

    layouts = [
        AttentionLayout(
            f"[{layer}]",
            "Banks",
            "by hand",
            q=rows("qk_bank", layer * 2 * width, 2),
            k=rows("qk_bank", layer * 2 * width + width, 2),
            v=rows("vo_bank", layer * 2 * width, 3),
        )
        for layer in range(3)
    ]
    before = model.vo_bank.detach().clone()
    init_(model, "orthogonal(parts=qkv)", seed=0, layouts=layouts, overwrite=True)
    parameters = parameters_by_name(model)
    for layer, layout in enumerate(layouts):
        for role, weight in (
            ("q", model.qk_bank[layer, :width]),
            ("k", model.qk_bank[layer, width:]),
            ("v", model.vo_bank[layer, 0]),
        ):
            stacked = torch.cat(
                [block_view(parameters[layout.role(role).parameter], layout.role(role), role, h) for h in range(4)]
            )
            assert torch.equal(stacked, weight)
            assert torch.allclose(weight @ weight.T, torch.eye(width) * (weight @ weight.T)[0, 0], atol=1e-5)
        assert torch.equal(model.vo_bank[layer, 1], before[layer, 1])


def test_multihead_attention_says_where_its_keys_come_from() -> None:
    decoder = nn.TransformerDecoderLayer(16, 4, 32, batch_first=True)
    said = {layout.name: layout.facts.get("cross", False) for layout in find_attention(decoder)}
    assert said == {"self_attn": False, "multihead_attn": True}
    wide = nn.MultiheadAttention(16, 4, kdim=12, vdim=8, batch_first=True, add_bias_kv=True, add_zero_attn=True)
    facts = find_attention(wide)[0].facts
    assert facts["cross"]
    assert facts["bias_kv"]
    assert facts["add_zero_attn"]


def test_a_processor_of_somebodys_own_is_refused() -> None:
    import diffusers

    class Interleaved:
        def __call__(self, attn: Any, hidden_states: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            q, k, v = (
                f(hidden_states).unflatten(-1, (-1, attn.heads)).permute(0, 3, 1, 2)
                for f in (attn.to_q, attn.to_k, attn.to_v)
            )
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            out: torch.Tensor = attn.to_out[0](mixed.permute(0, 2, 3, 1).flatten(2))
            return out

    attention = diffusers.models.attention_processor.Attention(query_dim=16, heads=2, dim_head=8)
    assert find_attention(nn.Sequential(attention))[0].source == "diffusers.attention"
    attention.set_processor(Interleaved())
    found = survey(nn.Sequential(attention))
    assert not found.layouts and [item.name for item in found.refused] == ["0"]


def test_a_copy_is_read_by_its_code_although_vit_pytorch_is_loaded() -> None:
    import vit_pytorch  # noqa: F401

    assert not survey(nn.Sequential(copied.LucidSwapped())).layouts
