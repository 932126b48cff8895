"""Clients: who has which rows, rows made ready, and the same bits on any workers, whoever dies."""

import numpy as np
import pytest

from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.cluster import Cluster
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.saddle.client_hulls import ClientHulls
from dask_odm.papers.saddle.client_rows import Preparation, tell_facts
from dask_odm.papers.saddle.workers import StoreRange, groups_of, row_ranges
from hull_problems import hulls
from small_problems import blobs
from small_stores import store_of


@pytest.mark.parametrize(("rows", "clients"), [(10, 3), (7, 7), (1000, 20), (5, 1)])
def test_clients_have_all_rows_and_about_as_many_each(rows, clients):
    ranges = row_ranges(rows, clients)
    assert [i for a, b in ranges for i in range(a, b)] == list(range(rows))
    sizes = [b - a for a, b in ranges]
    assert max(sizes) - min(sizes) <= 1


def test_rows_of_a_store_are_read_however_it_is_cut(tmp_path):
    X, y = blobs(100, 3, seed=0)
    weight = np.arange(100.0)
    for chunk_rows in (7, 30, 100):
        store = store_of(tmp_path / f"{chunk_rows}.zarr", X, y, weight=weight, chunk_rows=chunk_rows)
        for start, stop in [(0, 100), (6, 8), (13, 14), (29, 95)]:
            blocks = list(StoreRange(Store.open(store.path), StoreBlock.columns, start, stop))
            np.testing.assert_array_equal(np.concatenate([b.X for b in blocks]), X[start:stop].astype(store.dtype))
            np.testing.assert_array_equal(np.concatenate([b.y for b in blocks]), (y[start:stop] > 0).astype(int))
            np.testing.assert_array_equal(np.concatenate([b.weight for b in blocks]), weight[start:stop])


def test_answers_come_client_by_client_whoever_shares_a_task():
    X, y = blobs(60, 3, seed=0)
    problem, codes = hulls(X, y, 0.8), (y > 0).astype(np.int8)
    preparation = Preparation.of(problem)
    sources = [[RowBlock(X[a:b], codes[a:b], np.empty(0))] for a, b in row_ranges(60, 5)]
    found = []
    for threads in (1, 2, 4, 9):
        groups = groups_of(Cluster(None, 1, threads, 1 << 30, 1 << 30), preparation, sources)
        clients = ClientHulls(groups, 5, problem, preparation)
        counts = [facts[:2].tolist() for facts in clients.ask(tell_facts)]
        assert [sum(each) for each in counts] == [12] * 5
        found.append((counts, clients.rounds, clients.floats))
    assert all(each == found[0] for each in found)
    assert found[0][1:] == (1, 5 * 3)
