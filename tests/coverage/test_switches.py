"""Kinds are told apart by everything that an adapter decides, and by nothing that is a size."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from kappaone.coverage.structure import attention_structures, structure
from kappaone.coverage.switches import switches
from kappaone.layouts import AttentionSpec, find_attention


class Attend(nn.Module):
    def __init__(self, rows: int, width: int = 24, bias: bool = True) -> None:
        super().__init__()
        self.wires, self.out = nn.Linear(width, rows, bias=bias), nn.Linear(width, width)


def layout(order: str, heads: int = 4, kv_heads: int | None = None, width: int = 24, **options):
    size = width // heads
    rows = size * (heads + 2 * (kv_heads or heads))
    spec = AttentionSpec(heads=heads, kv_heads=kv_heads, fused="wires", order=order, o="out", **options)
    return find_attention(nn.ModuleList([Attend(rows, width)]), layouts=[replace(spec, match="0")])[0]


def test_sizes_do_not_count_and_decisions_do():
    base = layout("q k v")
    assert switches(base) == switches(layout("q k v", heads=2, width=16))
    others = [
        layout("k q v"),
        layout("head(q k v)"),
        layout("q k v", kv_heads=2),
        layout("group(q k v)", kv_heads=2),
        layout("q k v", kv_heads=1),
        layout("q k v", scale=1.0),
        layout("q k v", scale=0.3),
        layout("q k v", causal=True),
        layout("q k v", facts={"gate": True}),
        layout("q k v", facts={"extra": "a mask"}),
        layout("q k v", facts={"extra": "a table"}),
        layout("q k v", heads=1),
        replace(base, o=None),
        replace(base, output="heads"),
        replace(base, q=replace(base.q, bias=None, bias_starts=())),
        replace(base, q=replace(base.q, transposed=True)),
        replace(base, v=replace(base.v, size=3)),
        replace(base, source="another"),
    ]
    lines = [switches(item) for item in (base, *others)]
    assert len(set(lines)) == len(lines), sorted(lines)


def test_orders_are_written_as_they_lie():
    assert "q k v by heads in one weight" in switches(layout("q k v"))
    assert "v k q by heads in one weight" in switches(layout("v k q"))
    assert "(k q v) for each head in one weight" in switches(layout("head(k q v)"))
    assert "(q k v) for each group in one weight" in switches(layout("group(q k v)", kv_heads=2))


def test_structures_of_a_model_name_their_modules():
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, batch_first=True), 2)
    ((words, names),) = attention_structures(model).items()
    assert names == ["layers.0.self_attn", "layers.1.self_attn"]
    assert words == structure(model.layers[0].self_attn)


def test_a_switch_or_a_child_makes_another_structure():
    one, two = Attend(72), Attend(72, bias=False)
    assert structure(one) != structure(two)
    three = Attend(96, 32)
    assert structure(one) == structure(three)
    three.cosine = True
    assert structure(one) != structure(three)
    four = Attend(72)
    four.norm = nn.LayerNorm(4)
    assert structure(one) != structure(four)
