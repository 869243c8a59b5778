import math

import pytest
import torch

from kappaone.conditioning import attention_activity

from .oracles import F64, causal_mask


def test_against_plain_loops():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(7, 4, generator=g), torch.randn(7, 4, generator=g)
    found = attention_activity(q, k, scale=0.5, mask=causal_mask(7).float())
    squares, freedom, entropies, relative = 0.0, 0, [], []
    for i in range(7):
        logits = [0.5 * float(q[i].double() @ k[j].double()) for j in range(i + 1)]
        mean = sum(logits) / len(logits)
        squares += sum((x - mean) ** 2 for x in logits)
        freedom += len(logits) - 1
        weights = [math.exp(x) for x in logits]
        p = [w / sum(weights) for w in weights]
        entropies.append(-sum(x * math.log(x) for x in p))
        if i:
            relative.append(entropies[-1] / math.log(i + 1))
    assert found.logit_std == pytest.approx(math.sqrt(squares / freedom), rel=1e-12)
    assert found.attention_entropy == pytest.approx(sum(entropies) / 7, rel=1e-12)
    assert found.relative_entropy == pytest.approx(sum(relative) / 6, rel=1e-12)


def test_a_rows_mean_does_not_count():
    g = torch.Generator().manual_seed(0)
    q, k = torch.randn(5, 3, dtype=F64, generator=g), torch.randn(6, 3, dtype=F64, generator=g)
    shift = torch.randn(5, 1, dtype=F64, generator=g) * 10
    plain, moved = (attention_activity(q, k, scale=1.0, mask=m) for m in (None, shift.expand(5, 6)))
    assert moved.logit_std == pytest.approx(plain.logit_std, rel=1e-12)
    assert moved.attention_entropy == pytest.approx(plain.attention_entropy, rel=1e-12)


def test_estimates_the_spread_of_normal_logits():
    """Not biased by the centring: independent logits of standard deviation 0.7, three keys a row."""
    logits = 0.7 * torch.randn(20000, 3, dtype=F64, generator=torch.Generator().manual_seed(0))
    zeros = torch.zeros(20000, 1, dtype=F64), torch.zeros(3, 1, dtype=F64)
    assert attention_activity(*zeros, scale=1.0, mask=logits).logit_std == pytest.approx(0.7, rel=0.01)


def test_single_keys_have_no_spread():
    found = attention_activity(torch.ones(2, 1), torch.ones(1, 1), scale=1.0)
    assert math.isnan(found.logit_std)
    assert math.isnan(found.relative_entropy)
    assert found.attention_entropy == 0.0
