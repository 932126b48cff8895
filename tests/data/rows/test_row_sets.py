"""Sets of rows of partitions, in memory and on disk, against plain indexing of all rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_odm.data.rows.memory import MemoryPartitions
from dask_odm.data.rows.row_sets import RowSet, merged_span, overlaps
from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.engine.partitioners import RandomPartitioner
from dask_odm.engine.shuffle import Shuffle
from small_problems import blobs
from small_stores import store_of
from tree_jobs import HERE

COUNTS = (4, 1, 6, 3)
PLAIN = Scaling(np.zeros(3), np.array([2.0, 1.0, 0.5]))


@given(st.sets(st.integers(0, 13)))
def test_positions_are_what_a_set_was_made_of(chosen):
    positions = np.array(sorted(chosen), np.int64)
    rows = RowSet.at(positions, COUNTS)
    np.testing.assert_array_equal(rows.positions(COUNTS), positions)
    assert rows.size(COUNTS) == len(positions)


def test_whole_partitions_take_no_memory():
    assert RowSet.whole(1, 3).pieces == RowSet.at(np.arange(4, 11), COUNTS).pieces == ((1, 3, None),)
    assert RowSet.whole(1, 3).span == (1, 3)
    mixed = RowSet.at(np.array([0, 1, 2, 3, 4, 7, 8, 11, 12, 13]), COUNTS)
    assert [(a, b, None if c is None else c.tolist()) for a, b, c in mixed.pieces] == [
        (0, 2, None),
        (2, 3, [2, 3]),
        (3, 4, None),
    ]
    assert mixed.span is None


@pytest.mark.parametrize("stored", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_rows_and_labels(tmp_path, stored, memory):
    X, y = blobs(500)
    store = store_of(tmp_path / "a.zarr", X, y, chunk_rows=60)
    partitions = Shuffle(store, TwoClasses(), str(tmp_path), HERE).by_partitioner(RandomPartitioner(7, 0), PLAIN)
    every, _ = partitions.rows(0, 7, PLAIN, 0)
    X, (y, weight) = every.read(0, 500), partitions.labels(0, 7)
    if not stored:
        partitions = MemoryPartitions(X, y, weight, np.arange(500), partitions.counts)
    rng = np.random.default_rng(1)
    for positions in (
        np.sort(rng.choice(500, 211, replace=False)),
        np.concatenate([np.arange(100), np.arange(300, 500)]),
        np.array([3, 499]),
        np.arange(500),
    ):
        chosen = RowSet.at(positions, partitions.counts)
        rows, held = chosen.rows(partitions, PLAIN, memory)
        assert (rows.n, rows.d, rows.dtype) == (len(positions), 3, X.dtype)
        assert held in (0, X[positions].nbytes)
        np.testing.assert_array_equal(rows.read(0, rows.n), X[positions])
        for start in range(0, rows.n, 37):
            stop = min(rows.n, start + 37)
            np.testing.assert_array_equal(rows.read(start, stop), X[positions[start:stop]])
        np.testing.assert_array_equal(chosen.labels(partitions), (y[positions], weight[positions]))


def test_sets_beside_each_other():
    a, b, c = RowSet.whole(0, 2), RowSet.whole(2, 3), RowSet.at(np.array([0, 12]), COUNTS)
    assert merged_span([a, b]) == (0, 3)
    assert merged_span([a]) == (0, 2)
    assert merged_span([b, a]) is merged_span([a, c]) is merged_span([]) is None
    assert overlaps([a, b, c], [RowSet.whole(0, 1), RowSet.whole(1, 3), RowSet.whole(3, 4)]) == [[0, 1], [1], [0, 2]]
