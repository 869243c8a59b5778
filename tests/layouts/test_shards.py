"""Where a block's parts lie: index arithmetic against arrays of indices (whole models: tests/apply/test_shards.py)."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from kappaone.layouts.layout import RoleRows
from kappaone.layouts.shards import _cut, _flat, _runs, bias_pieces, check_shards, is_sharded, local, pieces, whole

subsets = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)).map(sorted)))


@given(subsets, st.integers(0, 10), st.integers(1, 4), st.integers(1, 12))
def test_cut_finds_every_common_index(held, start, step, count):
    size, indices = held
    span = slice(start, start + (count - 1) * step + 1, step)
    here, block = np.array(indices), list(range(span.start, span.stop, span.step))
    found = [
        (int(here[i]), at)
        for there, place in _cut(_runs(here), span)
        for i, at in zip(range(*there.indices(size)), range(*place.indices(count)), strict=True)
    ]
    assert sorted(found) == [(index, block.index(index)) for index in block if index in indices]


@given(st.tuples(subsets, subsets, subsets))
def test_flat_reads_several_dimensions_as_one(dims):
    shape = [size for size, _ in dims]
    grid = np.arange(np.prod(shape)).reshape(shape)
    expected = grid[np.ix_(*[np.array(held, int) for _, held in dims])].reshape(-1).tolist()
    found = [i for run in _flat([_runs(np.array(held)) for _, held in dims], shape) for i in run]
    assert found == expected


def test_a_plain_weight_is_one_piece():
    weight, bias = torch.arange(24.0).reshape(6, 4), torch.arange(6.0)
    rows = RoleRows("w", (1, 2), 2, 4, bias="b", bias_starts=(1, 2), step=3)
    (piece,) = pieces(weight, rows, "q", 1)
    assert torch.equal(piece.view, weight[[2, 5]])
    piece.view.zero_()
    assert weight[[2, 5]].eq(0).all() and weight[[0, 1, 3, 4]].ne(0).sum() == 15
    (part,) = bias_pieces(bias, rows, 0)
    assert part.view.tolist() == [1.0, 4.0]
    assert local(weight).data_ptr() == whole(weight).data_ptr() == weight.data_ptr()
    assert not is_sharded(weight) and not is_sharded(nn.Parameter(weight))
    check_shards("w", weight)
