"""What is heard equals attention written by hand, in float64, from each library's own weights.

The oracle takes the module's input and output by hooks of its own and the weights by their names in that library; it
knows nothing of layouts. From the recorded q, k, v, mask and scale it must get the module's output.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from kappaone.errors import MeasureError
from kappaone.layouts import find_attention
from kappaone.layouts.capture import Heard, _recorded, record
from tests.conformance.rows import BY_HAND, LAYOUTS, MODELS, _hf

CASES = {case.name: case for case in MODELS}


def _heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def _linear(x: Tensor, layer: nn.Module) -> Tensor:
    out = x @ layer.weight.double().T
    return out if layer.bias is None else out + layer.bias.double()


def _rotated(x: Tensor, base: float = 10000.0) -> Tensor:
    n, d = x.shape[-2:]
    angle = torch.arange(n, dtype=torch.float64)[:, None] * base ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
    first, second = x[..., : d // 2], x[..., d // 2 :]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def by_hand(module: nn.Module, queries: Tensor, keys: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v of (B, heads, N, d), by the names that the library gives its weights."""
    if hasattr(module, "in_proj_weight"):
        weights, biases = module.in_proj_weight.double().chunk(3), module.in_proj_bias.double().chunk(3)
        inputs = (queries, keys, keys)
        return tuple(_heads(x @ w.T + b, heads) for x, w, b in zip(inputs, weights, biases, strict=True))
    if hasattr(module, "qkv"):
        q, k, v = (_heads(part, heads) for part in _linear(queries, module.qkv).chunk(3, -1))
        norms = [
            (lambda x: x) if isinstance(n, nn.Identity) else (lambda x, n=n: nn.functional.layer_norm(x, x.shape[-1:], n.weight.double(), n.bias.double(), n.eps))
            for n in (module.q_norm, module.k_norm)
        ]  # fmt: skip
        return norms[0](q), norms[1](k), v
    if hasattr(module, "c_attn"):
        out = queries @ module.c_attn.weight.double() + module.c_attn.bias.double()
        return tuple(_heads(part, heads) for part in out.chunk(3, -1))
    names = ("q_proj", "k_proj", "v_proj") if hasattr(module, "q_proj") else ("query", "key", "value")
    size = getattr(module, names[0]).weight.shape[0] // heads
    q, k, v = (_heads(_linear(queries, getattr(module, n)), getattr(module, n).weight.shape[0] // size) for n in names)
    return (_rotated(q), _rotated(k), v) if hasattr(module, "num_key_value_groups") and "Llama" in type(module).__name__ else (q, k, v)  # fmt: skip


def project(module: nn.Module, mixed: Tensor) -> Tensor:
    """The library's output projection, if the module has it."""
    if hasattr(module, "c_proj"):
        return mixed @ module.c_proj.weight.double() + module.c_proj.bias.double()
    for name in ("out_proj", "proj", "o_proj"):
        if hasattr(module, name):
            return _linear(mixed, getattr(module, name))
    return mixed


def heard_by_hand(model: nn.Module, names: list[str], example) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """(queries' tokens, keys' tokens, output) of modules, as their own hooks see them."""
    seen: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    def hook(name):
        def note(module, args, kwargs, out):
            tensors = [
                t for t in (*args, *kwargs.values()) if isinstance(t, Tensor) and t.is_floating_point() and t.ndim == 3
            ]
            keys = tensors[1] if hasattr(module, "in_proj_weight") and len(tensors) > 1 else tensors[0]
            out = out[0] if isinstance(out, tuple) else out
            turned = getattr(module, "batch_first", True) is False
            seen[name] = tuple((t.transpose(0, 1) if turned else t).double() for t in (tensors[0], keys, out))

        return note

    handles = [model.get_submodule(name).register_forward_hook(hook(name), with_kwargs=True) for name in names]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    with torch.no_grad():
        model.eval()
        if isinstance(example, dict):
            model(**example)
        else:
            model(*example) if isinstance(example, tuple) else model(example)
    torch.backends.mha.set_fastpath_enabled(fast)
    for handle in handles:
        handle.remove()
    return seen


def check(model: nn.Module, example) -> dict:
    layouts = find_attention(model)
    recorded = record(model, layouts, example)
    seen = heard_by_hand(model, [layout.name for layout in layouts], example)
    for layout in layouts:
        got, (queries, keys, output) = recorded[layout.name], seen[layout.name]
        module = model.get_submodule(layout.name)
        q, k, v = by_hand(module, queries, keys, layout.heads)
        for name, ours, hand in (("q", got.q, q), ("k", got.k, k), ("v", got.v, v)):
            torch.testing.assert_close(ours.double(), hand, rtol=1e-5, atol=1e-5, msg=f"{layout.name}: {name}")
        torch.testing.assert_close(got.tokens.double(), queries)
        torch.testing.assert_close(got.kv_tokens.double(), keys)
        k, v = (t.repeat_interleave(layout.heads // t.shape[1], 1) for t in (k, v))
        logits = got.scale * q @ k.mT + (0 if got.mask is None else got.mask.double())
        mixed = logits.softmax(-1) @ v
        hand = project(module, mixed.transpose(1, 2).flatten(-2))
        torch.testing.assert_close(output, hand, rtol=1e-4, atol=1e-5, msg=f"{layout.name}: output")
    return recorded


@pytest.mark.parametrize("name", [case.name for case in BY_HAND])
def test_recorded_calls_are_attention_by_hand(name):
    case = CASES[name]
    check(case.model(), case.input())


def _pair(config: str, kind: str, **options):
    models = []
    for implementation in ("sdpa", "eager"):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            models.append(_hf(config, kind, attn_implementation=implementation, **options)())
    return models


@pytest.mark.parametrize(
    ("config", "kind", "options", "padded"),
    [
        ("GPT2Config", "GPT2Model", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}, False),
        ("GPT2Config", "GPT2Model", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 16}, True),
        ("BertConfig", "BertModel", {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40}, True),
    ],
    ids=["GPT-2", "GPT-2 padded", "BERT padded"],
)  # fmt: skip
def test_eager_and_sdpa_say_the_same(config, kind, options, padded):
    sdpa, eager = _pair(config, kind, vocab_size=50, bos_token_id=1, eos_token_id=2, **options)
    example = {"input_ids": torch.tensor([[3, 7, 9, 2], [5, 4, 8, 6]])}
    if padded:
        example["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    one, two = check(sdpa, example), check(eager, example)
    for name, first in one.items():
        second = two[name]
        assert first.scale == pytest.approx(second.scale)
        for role in "qkv":
            torch.testing.assert_close(getattr(first, role), getattr(second, role), rtol=1e-5, atol=1e-5)
        shape = (2, first.q.shape[1], 4, 4)
        closed = [
            torch.zeros(shape, dtype=torch.bool) if r.mask is None else (r.mask == float("-inf")).expand(shape)
            for r in (first, second)
        ]
        assert torch.equal(*closed)
        assert bool(closed[0][1, :, :, 3].all()) == padded or not padded


def _encoder(batch_first: bool) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=batch_first)
        return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("masks", ["none", "padding", "causal", "both", "additive"])
def test_masks_of_torch_layers(batch_first, masks):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
    example = {"src": x if batch_first else x.transpose(0, 1)}
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    future = torch.ones(5, 5, dtype=torch.bool).triu(1)
    if masks in ("padding", "both"):
        example["src_key_padding_mask"] = padding
    if masks in ("causal", "both"):
        example["mask"] = future
    if masks == "additive":
        example["mask"] = torch.linspace(-1, 1, 25).reshape(5, 5)
    found = check(_encoder(batch_first), example)
    for call in found.values():
        closed = torch.zeros(2, 4, 5, 5, dtype=torch.bool)
        if call.mask is not None:
            closed = (call.mask == float("-inf")).expand(2, 4, 5, 5)
        expected = torch.zeros(2, 1, 5, 5, dtype=torch.bool)
        if masks in ("padding", "both"):
            expected = expected | padding[:, None, None, :]
        if masks in ("causal", "both"):
            expected = expected | future
        assert torch.equal(closed, expected.expand(2, 4, 5, 5))
        if masks == "none":
            assert call.mask is None


def test_cross_attention_reads_keys_elsewhere():
    case = CASES["torch decoder"]
    model, example = case.model(), case.input()
    found = record(model, find_attention(model), example)
    cross = found["layers.0.multihead_attn"]
    assert cross.q.shape[-2] == 5
    assert cross.k.shape[-2] == cross.v.shape[-2] == cross.kv_tokens.shape[1] == 7
    assert torch.equal(cross.kv_tokens, example[1])


def test_a_shared_layer_counts_its_calls():
    layer = nn.MultiheadAttention(8, 2, batch_first=True)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            y = self.layer(x, x, x)[0]
            return self.layer(y, y, y)[0]

    x = torch.randn(1, 3, 8, generator=torch.Generator().manual_seed(0))
    (call,) = record(Twice(), find_attention(Twice()), x).values()
    assert call.calls == 2
    assert torch.equal(call.tokens, x)


def test_what_cannot_be_heard_is_an_error():
    class Silent(nn.MultiheadAttention):
        def forward(self, x):
            return x

    model = Silent(8, 2)
    with pytest.raises(MeasureError, match="neither scaled_dot_product_attention nor softmax"):
        record(model, find_attention(model), torch.ones(1, 3, 8))
    with pytest.raises(MeasureError, match="failed on the example"):
        record(nn.Sequential(nn.MultiheadAttention(8, 2)), find_attention(nn.Sequential(nn.MultiheadAttention(8, 2))), torch.ones(1, 3, 8))  # fmt: skip
    extra = nn.MultiheadAttention(8, 2, add_bias_kv=True)
    with pytest.raises(MeasureError, match="adds rows"):
        record(extra, find_attention(extra), (torch.ones(3, 1, 8),) * 3)


def test_an_example_that_reaches_nothing_gives_nothing():
    model = nn.ModuleDict({"idle": nn.MultiheadAttention(8, 2)})
    model.forward = lambda x: x
    assert record(model, find_attention(model), torch.ones(1)) == {}


def test_cross_attention_is_recorded_with_the_tokens_that_its_keys_read():
    """T5: the decoder's second attention asks with the decoder's tokens and reads what the encoder gave."""
    case = CASES["T5, encoder and decoder"]
    model, example = case.model().eval(), case.input()
    layouts = [layout for layout in find_attention(model) if layout.facts.get("cross")]
    seen = {}

    def note(module, args, kwargs, out):
        seen["queries"], seen["keys"], seen["output"] = args[0] if args else kwargs["hidden_states"], kwargs, out[0]

    layer = model.get_submodule(layouts[0].name)
    handle = layer.register_forward_hook(note, with_kwargs=True)
    with torch.no_grad():
        model(**example)
    handle.remove()
    queries, keys = seen["queries"].double(), seen["keys"]["key_value_states"].double()
    got = record(model, layouts, example)[layouts[0].name]
    torch.testing.assert_close(got.tokens.double(), queries)
    torch.testing.assert_close(got.kv_tokens.double(), keys)
    assert got.tokens.shape != got.kv_tokens.shape
    q, k, v = (
        (tokens @ weight.weight.double().T).unflatten(-1, (4, 6)).transpose(1, 2)
        for tokens, weight in ((queries, layer.q), (keys, layer.k), (keys, layer.v))
    )
    torch.testing.assert_close(got.k.double(), k, rtol=1e-5, atol=1e-5)
    mixed = (q @ k.mT).softmax(-1) @ v
    hand = mixed.transpose(1, 2).flatten(-2) @ layer.o.weight.double().T
    torch.testing.assert_close(seen["output"].double(), hand, rtol=1e-4, atol=1e-5)


def test_tokens_that_come_first_are_turned():
    """XLNet takes (token, batch, width)."""
    case = {row.name: row for row in LAYOUTS}["XLNet, parameters of three axes"]
    model, example = case.model().eval(), case.input()
    layouts = find_attention(model)
    got = record(model, layouts, example)[layouts[0].name]
    tokens = model.word_embedding(example["input_ids"]).double()
    torch.testing.assert_close(got.tokens.double(), tokens)
    hand = torch.einsum("bnw,whd->bhnd", tokens, model.layer[0].rel_attn.q.double())
    torch.testing.assert_close(got.q.double(), hand, rtol=1e-5, atol=1e-6)


def test_values_from_other_tokens_are_not_measured():
    case = {row.name: row for row in LAYOUTS}["GPT-BigCode, head by head"]
    model = case.model()
    layouts = find_attention(model)
    layout = layouts[0]
    heard = Heard(read={(layout.name, role): torch.randn(1, 3, layout.width) for role in "qkv"})
    heard.sdpa = {"query": torch.randn(1, 4, 3, 4), "key": torch.randn(1, 4, 3, 4), "value": torch.randn(1, 4, 3, 4)}
    with pytest.raises(MeasureError, match="other tokens than its keys"):
        _recorded(model, layout, heard)
