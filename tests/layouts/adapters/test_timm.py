"""timm's attention classes, each built alone and small: described, confirmed row by row, and told from wrong layouts."""

# ruff: noqa: E402 (timm is optional)
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from kappaone.layouts import AttentionLayout, survey
from kappaone.layouts.probe import verify

timm = pytest.importorskip("timm")

from timm.layers import (
    attention,
    attention2d,
    attention_pool,
    attention_pool2d,
    bottleneck_attn,
    diff_attention,
    halo_attn,
)
from timm.models import (
    beit,
    cait,
    convit,
    crossvit,
    davit,
    efficientformer,
    efficientformer_v2,
    eva,
    gcvit,
    gemma4_vit,
    hiera,
    hieradet_sam2,
    iformer,
    levit,
    lowformer,
    maxxvit,
    mvitv2,
    nextvit,
    pvt_v2,
    shvit,
    swin_transformer,
    swin_transformer_v2,
    swin_transformer_v2_cr,
    tiny_vit,
    tnt,
    twins,
    visformer,
    vision_transformer,
    vision_transformer_relpos,
    vision_transformer_sam,
    volo,
    xcit,
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One class: how it is built, what it is called with, and what its layout should say."""

    name: str
    build: Callable[[], nn.Module]
    inputs: tuple[Any, ...]
    facts: tuple[str, ...] = ()
    heads: int = 2


def _tokens(n: int = 16, width: int = 16, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, n, width, generator=torch.Generator().manual_seed(n + width))


def _map(side: int = 4, width: int = 16, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, width, side, side, generator=torch.Generator().manual_seed(side + width))


def _last(side: int = 4, width: int = 16) -> torch.Tensor:
    return _map(side, width).movedim(1, -1).contiguous()


_rel = partial(vision_transformer_relpos.RelPosBias, window_size=(4, 4), prefix_tokens=0)
_rope = torch.randn(16, 16, generator=torch.Generator().manual_seed(1))

CASES = [
    Case("plain", lambda: attention.Attention(16, 2, qkv_bias=True, qk_norm=True, norm_layer=nn.LayerNorm), (_tokens(),), ("qk_norm",)),
    Case("gated", lambda: attention.Attention(16, 2, gated=True, attn_head_dim=4), (_tokens(),), ("gate",)),
    Case("rope", lambda: attention.AttentionRope(16, 2, num_prefix_tokens=0, rotate_half=True), (_tokens(), _rope), ("rotary",)),
    Case("rope, grouped", lambda: attention.AttentionRope(16, 4, qkv_fused=False, num_kv_heads=2, num_prefix_tokens=0), (_tokens(), _rope[:, :8]), ("rotary",), 4),
    Case("EVA", lambda: eva.EvaAttention(16, 2, num_prefix_tokens=0, scale_norm=True, norm_layer=nn.LayerNorm), (_tokens(), _rope), ("rotary", "output_norm")),
    Case("EVA, apart", lambda: eva.EvaAttention(16, 2, num_prefix_tokens=0, qkv_fused=False, scale_norm=False), (_tokens(), _rope), ("rotary",)),
    Case("BEiT", lambda: beit.Attention(16, 2, qkv_bias=True, window_size=(3, 5)), (_tokens(),), ("position_bias",)),
    Case("Swin", lambda: swin_transformer.WindowAttention(16, 2, window_size=4), (_tokens(),), ("position_bias", "windows")),
    Case("Swin v2", lambda: swin_transformer_v2.WindowAttention(16, (4, 4), 2), (_tokens(),), ("cosine", "position_bias", "windows")),
    Case("Swin v2 CR", lambda: swin_transformer_v2_cr.WindowMultiHeadAttention(16, 2, (4, 4)), (_tokens(),), ("cosine", "position_bias", "windows")),
    Case("XCiT", lambda: xcit.XCA(16, 2), (_tokens(),), ("channel_attention", "cosine")),
    Case("CaiT", lambda: cait.TalkingHeadAttn(16, 2), (_tokens(),), ("talking_heads",)),
    Case("class attention", lambda: cait.ClassAttn(16, 2), (_tokens(),), ("one_query",)),
    Case("CrossViT", lambda: crossvit.CrossAttention(16, 2), (_tokens(),), ("one_query",)),
    Case("DaViT windows", lambda: davit.WindowAttention(16, (4, 4), 2), (_tokens(),), ("windows",)),
    Case("DaViT channels", lambda: davit.ChannelBlock(16, 2), (_map(),), ("channel_attention",)),
    Case("DaViT channels v2", lambda: davit.ChannelBlock(16, 2, v2=True), (_map(),), ("channel_attention",)),
    Case("differential", lambda: diff_attention.DiffAttention(16, 2), (_tokens(),), ("differential", "output_norm"), 4),
    Case("Hiera", lambda: hiera.MaskUnitAttention(16, 32, 2, q_stride=2), (_tokens(),), ("pooled",)),
    Case("Hiera, windows", lambda: hiera.MaskUnitAttention(16, 32, 2, 2, 4, True), (_tokens(),), ("pooled", "windows")),
    Case("Hiera of SAM 2", lambda: hieradet_sam2.MultiScaleAttention(16, 32, 2, nn.MaxPool2d(2, 2)), (_last(),), ("pooled",)),
    Case("SAM", lambda: vision_transformer_sam.Attention(16, 2, use_rel_pos=True, input_size=(4, 4)), (_last(),), ("relative",)),
    Case("relative positions", lambda: vision_transformer_relpos.RelPosAttention(16, 2, rel_pos_cls=_rel), (_tokens(),), ("position_bias",)),
    Case("MViT v2", lambda: mvitv2.MultiScaleAttention(16, 32, (4, 4), 2, kernel_q=(3, 3), kernel_kv=(3, 3), stride_kv=(2, 2), has_cls_token=False), (_tokens(), (4, 4)), ("pooled", "relative", "reduced_keys", "extra")),
    Case("Twins windows", lambda: twins.LocallyGroupedAttn(16, 2, ws=2), (_tokens(), (4, 4)), ("windows",)),
    Case("Twins", lambda: twins.GlobalSubSampleAttn(16, 2, sr_ratio=2), (_tokens(), (4, 4)), ("reduced_keys",)),
    Case("PVT v2", lambda: pvt_v2.Attention(16, 2, sr_ratio=2), (_tokens(), (4, 4)), ("reduced_keys",)),
    Case("VOLO class", lambda: volo.ClassAttention(16, 2), (_tokens(),), ("one_query",)),
    Case("NextViT", lambda: nextvit.EfficientAttention(16, head_dim=8, sr_ratio=2), (_tokens(),), ("reduced_keys",)),
    Case("TNT", lambda: tnt.Attention(16, 8, 2), (_tokens(),)),
    Case("ConViT", lambda: convit.GPSA(16, 2), (_tokens(),), ("extra",)),
    Case("ConViT, plain", lambda: convit.MHSA(16, 2), (_tokens(),)),
    Case("GC ViT", lambda: gcvit.WindowAttentionGlobal(16, 2, 4, use_global=False), (_tokens(),), ("position_bias", "windows")),
    Case("Gemma 4", lambda: gemma4_vit.Gemma4Attention(16, 4, 4, 2), (_tokens(), torch.ones(2, 16, 4), torch.zeros(2, 16, 4)), ("rotary", "qk_norm", "v_norm", "unscaled"), 4),
    Case("MaxViT", lambda: maxxvit.AttentionCl(16, dim_head=8, head_first=False), (_last(),)),
    Case("MaxViT, heads first", lambda: maxxvit.AttentionCl(16, dim_head=8), (_last(),)),
    Case("CoAtNet", lambda: maxxvit.Attention2d(16, dim_head=8), (_map(),)),
    Case("CoAtNet, roles first", lambda: maxxvit.Attention2d(16, dim_head=8, head_first=False), (_map(),)),
    Case("maps", lambda: attention2d.Attention2d(16, num_heads=2, head_first=True), (_map(),)),
    Case("Visformer", lambda: visformer.Attention(16, 2), (_map(),)),
    Case("LeViT", lambda: levit.Attention(16, 4, 2, 2.0, 4), (_tokens(),), ("position_bias", "projection_norm", "activated")),
    Case("LeViT, convolution", lambda: levit.Attention(16, 4, 2, 2.0, 4, use_conv=True), (_map(),), ("position_bias", "projection_norm", "activated")),
    Case("LeViT, downsampling", lambda: levit.AttentionDownsample(16, 24, 4, 2, resolution=4), (_tokens(),), ("position_bias", "projection_norm", "activated", "extra")),
    Case("EfficientFormer", lambda: efficientformer.Attention(16, 4, 2, 2, 4), (_tokens(),), ("position_bias",)),
    Case("TinyViT", lambda: tiny_vit.Attention(16, 8, 2, 1, (4, 4)), (_tokens(),), ("position_bias", "extra")),
    Case("EfficientFormer v2", lambda: efficientformer_v2.Attention2d(16, 8, 2, 2, 4), (_map(),), ("position_bias", "projection_norm", "activated", "talking_heads", "extra")),
    Case("EfficientFormer v2, downsampling", lambda: efficientformer_v2.Attention2dDownsample(16, 8, 2, 2, 4), (_map(),), ("position_bias", "projection_norm", "activated", "extra")),
    Case("bottleneck", lambda: bottleneck_attn.BottleneckAttn(16, feat_size=4, num_heads=2), (_map(),), ("relative",)),
    Case("bottleneck, pooled", lambda: bottleneck_attn.BottleneckAttn(16, feat_size=4, num_heads=2, stride=2), (_map(),), ("relative", "extra")),
    Case("halo", lambda: halo_attn.HaloAttn(16, num_heads=2, block_size=2, halo_size=1), (_map(),), ("relative", "windows")),
    Case("multi-query", lambda: attention2d.MultiQueryAttention2d(16, num_heads=2, kv_stride=2), (_map(),), ("reduced_keys",)),
    Case("multi-query, strides", lambda: attention2d.MultiQueryAttention2d(16, num_heads=2, query_strides=(2, 2)), (_map(),), ("extra",)),
    Case("iFormer", lambda: iformer.SHMA(16), (_map(),), ("projection_norm", "activated", "gate", "partial"), 1),
    Case("SHViT", lambda: shvit.SHSA(16, 4, 8), (_map(),), ("projection_norm", "activated", "extra"), 1),
    Case("LowFormer", lambda: lowformer.ConvAttention(64, 1.0, 1, 3, fuse_out_proj=True), (_map(4, 64),), ("extra",)),
    Case("LowFormer, apart", lambda: lowformer.ConvAttention(64, 1.0, 1, 3), (_map(4, 64),), ("extra",)),
    Case("learned query", lambda: attention_pool.AttentionPoolLatent(16, num_heads=2), (_tokens(),), ("one_query", "cross")),
    Case("CLIP's pool", lambda: attention_pool2d.AttentionPool2d(16, 4, head_dim=8), (_map(),), ("extra",)),
    Case("CLIP's pool, apart", lambda: attention_pool2d.AttentionPool2d(16, 4, head_dim=8, qkv_separate=True), (_map(),), ("extra",)),
    Case("rotary pool", lambda: attention_pool2d.RotAttentionPool2d(16, ref_feat_size=4, head_dim=8), (_map(),), ("rotary", "extra")),
    Case("parallel block", lambda: vision_transformer.ParallelScalingBlock(16, 2), (_tokens(),), ("parallel", "partial", "extra")),
    Case("parallel block, joint output", lambda: vision_transformer.ParallelScalingBlock(16, 2, fuse_out_proj=True, qkv_bias=True), (_tokens(),), ("parallel", "partial", "extra")),
    Case("parallel block, differential", lambda: vision_transformer.DiffParallelScalingBlock(16, 2), (_tokens(),), ("parallel", "partial", "extra", "differential", "output_norm"), 4),
]  # fmt: skip


def _made(case: Case) -> tuple[nn.Module, tuple[Any, ...], AttentionLayout]:
    torch.manual_seed(0)
    model = case.build()
    model.eval()  # some return nothing
    with torch.no_grad():
        for p in model.parameters():  # tables, gates and norms that start constant would hide what they do
            p.add_(0.1 * torch.randn(p.shape))
    found = survey(model)
    assert not found.refused, found.refused
    (layout,) = found.layouts
    return model, case.inputs, layout


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_described_and_confirmed(case: Case) -> None:
    model, inputs, layout = _made(case)
    assert (layout.heads, set(layout.facts)) == (case.heads, set(case.facts))
    report = verify(model, [layout], inputs)
    assert report.ok, str(report)


# Every witness of the probe: the output, the operands, channels, talking heads, a single query, joint weights.
WITNESSES = [
    "plain", "Hiera", "Hiera, windows", "MViT v2", "Twins windows", "Gemma 4", "LeViT", "iFormer", "XCiT", "CaiT",
    "class attention", "DaViT channels", "CoAtNet", "halo", "bottleneck, pooled", "LowFormer", "parallel block",
]  # fmt: skip


@pytest.mark.parametrize("case", [case for case in CASES if case.name in WITNESSES], ids=lambda case: case.name)
def test_a_wrong_layout_is_told(case: Case) -> None:
    model, inputs, layout = _made(case)
    if layout.kv_heads == layout.heads:
        assert not verify(model, [replace(layout, q=layout.k, k=layout.q)], inputs).ok
    if layout.q.size == layout.v.size:
        assert not verify(model, [replace(layout, k=layout.v, v=layout.k)], inputs).ok
    if layout.q.size == layout.v.size and layout.kv_heads == layout.heads:
        assert not verify(model, [replace(layout, q=layout.v, v=layout.q)], inputs).ok
    if layout.heads > 1:
        backwards = replace(layout.v, starts=layout.v.starts[::-1])
        assert not verify(model, [replace(layout, v=backwards)], inputs).ok


def test_rows_of_davit_play_other_roles_than_their_names_say() -> None:
    _, _, layout = _made(next(case for case in CASES if case.name == "DaViT channels"))
    assert (layout.v.starts[0], layout.q.starts[0], layout.k.starts[0]) == (0, 16, 32)


def test_what_levit_remembers_in_evaluation_mode_is_not_left_behind() -> None:
    model, inputs, layout = _made(next(case for case in CASES if case.name == "LeViT"))
    verify(model, [layout], inputs)
    assert not model.attention_bias_cache
