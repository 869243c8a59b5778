"""Keyed streams: equal keys, equal numbers; anything else differs; golden hashes."""

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kappaone.errors import SpecError
from kappaone.streams import STREAM_VERSION, LayerStream, check_seed, generator

# sha256 of 1000 float64 numbers for (seed 0, "blocks.0.attn.qkv.weight", "q", 3), stream version 1.
GOLDEN = "41bccd612e96acfe"


def test_golden_numbers_of_stream_version_1():
    numbers = LayerStream(0, {"q": "blocks.0.attn.qkv.weight"}).normal((1000,), "q", 3)
    assert STREAM_VERSION == 1
    assert hashlib.sha256(numbers.astype("<f8").tobytes()).hexdigest()[:16] == GOLDEN


@given(
    st.lists(st.one_of(st.text(max_size=5), st.integers(-3, 3), st.none()), max_size=4),
    st.lists(st.one_of(st.text(max_size=5), st.integers(-3, 3), st.none()), max_size=4),
)
def test_streams_are_equal_only_for_equal_keys(a, b):
    same = np.array_equal(generator(1, *a).standard_normal(4), generator(1, *b).standard_normal(4))
    assert same == ([(type(x), x) for x in a] == [(type(x), x) for x in b])


def test_heads_and_roles_are_independent():
    stream = LayerStream(0, {"q": "w", "k": "w"})
    draws = np.stack([stream.normal((4000,), role, head) for role in "qk" for head in (None, 0, 1)])
    correlation = np.corrcoef(draws) - np.eye(len(draws))
    assert abs(correlation).max() < 0.08


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, True, "0", None])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(SpecError, match="integer"):
        check_seed(seed)


def test_global_random_state_is_not_read_or_moved():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()  # noqa: NPY002
    first = generator(5, "a").standard_normal(3)
    torch.manual_seed(99)
    assert np.array_equal(first, generator(5, "a").standard_normal(3))
    torch.set_rng_state(torch.tensor(before[2], dtype=torch.uint8))
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == before  # noqa: NPY002
