"""Why a weight is no plain parameter: real torch modules, and stand-ins that carry what quantisation libraries put there."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils._pytree import tree_map

from kappaone.layouts.stored import is_wrapper, why_no_weight, why_quantised


class Wrapped(torch.Tensor):
    """As torchao's tensors: says it is bfloat16, holds int8 and a scale, computes by __torch_dispatch__."""

    @staticmethod
    def __new__(cls, codes, scale):
        return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=torch.bfloat16)

    def __init__(self, codes, scale):
        self.codes, self.scale = codes, scale

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return cls(args[0].codes, args[0].scale)
        plain = tree_map(lambda x: (x.codes * x.scale).bfloat16() if isinstance(x, cls) else x, (args, kwargs or {}))
        return func(*plain[0], **plain[1])


def wrapped() -> nn.Parameter:
    return nn.Parameter(Wrapped(torch.ones(8, 4, dtype=torch.int8), 0.1), requires_grad=False)


@pytest.mark.filterwarnings("ignore")
def test_modules_whose_weight_is_made_anew_or_packed():
    dynamic = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8)), {nn.Linear}, dtype=torch.qint8)[0]
    assert why_no_weight(dynamic) == "dynamically quantised (packed in _packed_params)"
    static = torch.ao.nn.quantized.Linear(8, 8)
    assert why_no_weight(static) == "statically quantised (packed in _packed_params)"
    assert "weight norm of the old style" in why_no_weight(nn.utils.weight_norm(nn.Linear(4, 4)))
    assert "spectral norm of the old style" in why_no_weight(nn.utils.spectral_norm(nn.Linear(4, 4)))
    pruned = nn.Linear(4, 4)
    prune.l1_unstructured(pruned, "weight", 0.5)
    assert "pruned" in why_no_weight(pruned)
    two = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    nn.utils.parametrizations.spectral_norm(two)
    assert why_no_weight(two) == "parametrized by _WeightNorm, _SpectralNorm"
    attention = nn.utils.parametrizations.weight_norm(nn.MultiheadAttention(8, 2), "in_proj_weight")
    assert why_no_weight(attention, "in_proj_weight") == "parametrized by _WeightNorm"
    gptq = nn.Module()
    gptq.register_buffer("qweight", torch.zeros(4, 4, dtype=torch.int32))
    assert why_no_weight(gptq) == "quantised (packed in qweight)"


def test_plain_modules_and_what_is_no_module():
    for plain in (nn.Linear(4, 4), nn.LayerNorm(4), nn.ReLU(), None, torch.zeros(2)):
        assert why_no_weight(plain) is None


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.float8_e5m2])
def test_storage_dtypes_of_quantisation(dtype):
    weight = nn.Parameter(torch.zeros(4, 4).to(dtype), requires_grad=False)
    assert str(dtype) in why_quantised(weight)
    assert ("fp8" in why_quantised(weight)) == dtype.is_floating_point


def test_four_bit_weights_carry_a_quant_state():
    weight = nn.Parameter(torch.zeros(8, 1, dtype=torch.uint8), requires_grad=False)
    weight.quant_state = None
    assert "4 bits" in why_quantised(weight)


def test_tensors_that_compute_their_values():
    assert "Wrapped" in why_quantised(wrapped())
    assert is_wrapper(wrapped()) and not is_wrapper(nn.Parameter(torch.zeros(2)))

    class Marked(torch.Tensor):
        """A subclass that only overrides functions holds its own numbers."""

    assert why_quantised(torch.zeros(2, 2).as_subclass(Marked)) is None
