"""Attention from no library, in odd orders: refused, proposed from behaviour, then handled as the proposal says."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import kappaone
from kappaone.errors import LayoutError
from kappaone.layouts import AttentionSpec, find_attention, survey
from kappaone.layouts.propose import NoProposal, Proposal, propose
from kappaone.layouts.spec_file import read_specs


class Mixer(nn.Module):
    """softmax attention whose rows are read by a function of the projected tokens: (B, N, rows) -> q, k, v by head."""

    def __init__(self, rows, width, split, *, heads, value_dim, scale, out=True, inner_norm=False, causal=False):
        super().__init__()
        self.calm = nn.LayerNorm(width) if inner_norm else nn.Identity()
        self.wires = nn.Linear(width, rows)
        self.back = nn.Linear(heads * value_dim, width) if out else None
        self.split, self.scale, self.causal = split, scale, causal

    def forward(self, x):
        q, k, v = self.split(self.wires(self.calm(x)))
        logits = self.scale * q @ k.mT
        if self.causal:
            logits = logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), float("-inf"))
        mixed = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2)
        return mixed if self.back is None else self.back(mixed)


def interleaved(y):  # rows: head_dim outermost, then k q v, then heads
    k, q, v = y.unflatten(-1, (4, 3, 2)).permute(3, 0, 4, 1, 2)
    return q, k, v


def by_head(y):  # rows: head by head its v, q, k
    v, q, k = y.unflatten(-1, (3, 3, 4)).permute(3, 0, 2, 1, 4)
    return q, k, v


def grouped(y):  # rows: for each of 2 key/value heads its k, its 2 queries, its v
    k, q, v = y.unflatten(-1, (2, 4, 4)).split((1, 2, 1), -2)
    q, k, v = (t.flatten(2, 3).transpose(1, 2) for t in (q, k, v))
    return q, k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)


def modulo(y):  # rows q, k, v; query head h reads key/value head h mod 2
    q, k, v = y.unflatten(-1, (8, 4)).transpose(1, 2).split((4, 2, 2), 1)
    return q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)


def chunks(y):  # two chunks of two heads, each q, v, k
    q, v, k = y.unflatten(-1, (2, 3, 2, 3)).permute(3, 0, 2, 4, 1, 5).flatten(2, 3)
    return q, k, v


CASES = {
    "dim(k q v)": (Mixer, {"rows": 24, "width": 8, "split": interleaved, "heads": 2, "value_dim": 4, "scale": 0.5}, 8),
    "head(v q k)": (Mixer, {"rows": 36, "width": 12, "split": by_head, "heads": 3, "value_dim": 4, "scale": 0.5, "inner_norm": True}, 12),
    "group(k q v)": (Mixer, {"rows": 32, "width": 16, "split": grouped, "heads": 4, "value_dim": 4, "scale": 0.25, "causal": True}, 16),
    "q k v": (Mixer, {"rows": 32, "width": 16, "split": modulo, "heads": 4, "value_dim": 4, "scale": 0.5}, 16),
    "2(q v k)": (Mixer, {"rows": 36, "width": 12, "split": chunks, "heads": 4, "value_dim": 3, "scale": 3**-0.5, "out": False}, 12),
}  # fmt: skip


def model_and_example(order):
    make, options, width = CASES[order]
    torch.manual_seed(0)
    return nn.Sequential(make(**options), make(**options)), torch.randn(2, 6, width)


@pytest.mark.parametrize("order", CASES)
def test_an_unknown_layout_is_refused_then_proposed_then_set(order, tmp_path):
    model, example = model_and_example(order)
    with pytest.raises(LayoutError, match=r"kappaone\.propose"):
        kappaone.init_(model, "conditioned", seed=0, example=example)
    before = {name: p.clone() for name, p in model.named_parameters()}
    (found,) = propose(model, example)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert isinstance(found, Proposal)
    assert found.spec is not None and found.spec.order == order
    assert set(found.fits) == {"0", "1"}
    assert (found.spec.o is None) == (order == "2(q v k)")
    assert found.spec.facts == ({"kv_map": "modulo"} if order == "q k v" else {})
    assert found.layout.scale == pytest.approx(CASES[order][1]["scale"], rel=1e-4)

    pasted = eval(found.to_python(), {"kappaone": kappaone})  # noqa: S307
    (tmp_path / "layouts.toml").write_text(found.to_toml())
    assert read_specs(tmp_path / "layouts.toml") == [pasted] == [found.spec]
    report = kappaone.init_(model, "conditioned", seed=0, layouts=[pasted], example=example, verify=True)
    assert report.blocks_set == sum(
        layout.heads + 2 * layout.kv_heads for layout in find_attention(model, layouts=[pasted])
    )
    for layout in find_attention(model, layouts=[pasted]):
        W_Q = kappaone.layouts.blocks.stacked_blocks(model, layout, "q", dtype=torch.float64)
        eye = torch.eye(layout.head_dim, dtype=torch.float64).expand(layout.heads, -1, -1)
        assert torch.allclose(W_Q @ W_Q.mT, eye, atol=1e-6)


class Apart(nn.Module):
    """Separate weights, one of them a bare parameter stored (in, out), and normalized queries and keys."""

    def __init__(self, normalized):
        super().__init__()
        self.ask, self.offer, self.back = nn.Linear(8, 8), nn.Linear(8, 8, bias=False), nn.Linear(8, 8)
        self.say = nn.Parameter(torch.randn(8, 8) / 3)
        self.normalized = normalized

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in (self.ask(x), self.offer(x), x @ self.say.T))
        if self.normalized:
            q, k = nn.functional.normalize(q, dim=-1), nn.functional.normalize(k, dim=-1)
        return self.back(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("normalized", [False, True])
def test_separate_weights_and_normalized_queries(normalized):
    torch.manual_seed(0)
    (found,) = propose(nn.Sequential(Apart(normalized)), torch.randn(2, 5, 8))
    assert isinstance(found, Proposal)
    assert (found.spec.q, found.spec.k, found.spec.v, found.spec.o) == ("ask", "offer", "say", "back")
    assert found.spec.facts == ({"qk_norm": True} if normalized else {})


class Talking(nn.Module):
    def __init__(self):
        super().__init__()
        self.wires, self.back = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mix = nn.Parameter(torch.randn(2, 2))

    def forward(self, x):
        q, k, v = self.wires(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        p = torch.einsum("bhnm,hg->bgnm", (q @ k.mT / 2).softmax(-1), self.mix)
        return self.back((p @ v).transpose(1, 2).flatten(2))


class WithoutSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.to_qkv, self.back = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x):
        q, k, v = self.to_qkv(x).chunk(3, -1)
        return self.back(q @ (k.mT @ v) / x.shape[1])


@pytest.mark.parametrize(("make", "why"), [(Talking, "heads are mixed"), (WithoutSoftmax, "no rows that behave as")])
def test_what_no_layout_states_is_not_proposed(make, why):
    torch.manual_seed(0)
    (found,) = propose(nn.Sequential(make()), torch.randn(2, 5, 8))
    assert isinstance(found, NoProposal)
    assert why in found.why


def test_a_model_without_refused_attention_has_no_proposals():
    model = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    assert propose(model, torch.randn(1, 4, 8)) == []
    assert not survey(model).refused


def test_a_wrong_spec_is_contradicted_by_the_probe():
    model, example = model_and_example("head(v q k)")
    wrong = AttentionSpec("[01]", heads=3, fused="wires", order="head(v k q)", o="back")
    with pytest.raises(LayoutError, match="contradict"):
        kappaone.init_(model, "conditioned", seed=0, layouts=[wrong], example=example, verify=True)
