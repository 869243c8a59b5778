"""Whether weights follow a law, against samples of it and of others."""

import numpy as np
import pytest
import torch

from kappaone.laws import Law, fitting, moments

NORMAL, UNIFORM = Law("normal", 0.02, "a"), Law("uniform", 0.05, "b")


@pytest.mark.parametrize("law", [NORMAL, UNIFORM])
@pytest.mark.parametrize("n", [64, 4096, 65536])
def test_a_law_fits_its_own_draws_and_no_other(law, n):
    rng = np.random.default_rng(0)
    fits = [law.fits(law.draw(rng, (n,))) for _ in range(200)]
    assert all(fits)
    other = UNIFORM if law is NORMAL else NORMAL
    assert not any(other.fits(law.draw(rng, (n,))) for _ in range(50))


def test_draws_have_the_stated_std():
    rng = np.random.default_rng(1)
    for law in (NORMAL, UNIFORM):
        assert law.draw(rng, (200_000,)).std() == pytest.approx(law.std, rel=0.01)


def test_trained_weights_are_recognised():
    rng = np.random.default_rng(0)
    assert fitting([NORMAL, UNIFORM], 0.02 * rng.standard_t(4, 8192)) is None
    assert fitting([NORMAL, UNIFORM], 0.02 * rng.standard_normal(8192) + 0.003) is None


def test_timm_sampler_leaves_entries_at_its_bound():
    """layouts.md D18: timm's erfinv sampler gives exact -2.0 in float32 once in 2^24 draws, in bfloat16 often."""
    values = NORMAL.draw(np.random.default_rng(0), (65536,))
    values[:3] = -2.0
    assert not NORMAL.fits(values)
    assert Law("normal", 0.02, "timm", bound=2.0).fits(values)


def test_timm_bf16_default_is_still_recognised():
    from timm.layers.weight_init import trunc_normal_

    torch.manual_seed(0)
    weight = trunc_normal_(torch.empty(192, 192, dtype=torch.bfloat16), std=0.02).double().numpy().ravel()
    assert Law("normal", 0.02, "timm", bound=2.0).fits(weight), moments(weight)
