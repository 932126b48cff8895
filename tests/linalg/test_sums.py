"""The fixed tree of sums: independent of how the parts are cut into aligned runs, and holding few at a time."""

import time
from itertools import chain, pairwise

import numpy as np
import pytest

from dask_odm.linalg.row_passes import summed_by_threads, tree_nodes, tree_sum


def test_tree_sum_is_the_same_tree_however_it_is_cut():
    parts = np.random.default_rng(0).standard_normal(64) * 10.0 ** np.arange(-8, 8).repeat(4)
    whole = tree_sum(parts.tolist())
    for cut in (1, 2, 4, 8, 16, 32, 64):
        assert tree_sum([tree_sum(part.tolist()) for part in np.split(parts, cut)]) == whole
    assert whole == pytest.approx(parts.sum())


def test_nodes_of_any_runs_join_to_the_same_tree():
    rng = np.random.default_rng(0)
    parts = rng.standard_normal(64) * 10.0 ** np.arange(-8, 8).repeat(4)
    for _ in range(20):
        cuts = [0, *np.sort(rng.choice(np.arange(1, 64), rng.integers(0, 20), replace=False)).tolist(), 64]
        runs = [tree_nodes((0, i, float(parts[i])) for i in range(a, b)) for a, b in pairwise(cuts)]
        assert max(map(len, runs)) <= 10
        joined = [tree_nodes(chain.from_iterable(runs[i : i + 3])) for i in range(0, len(runs), 3)]
        assert tree_nodes(chain.from_iterable(joined)) == [(6, 0, tree_sum(parts.tolist()))]


def test_tree_sum_adds_pair_by_pair():
    """In order, 1e16 would swallow one 1 after the other."""
    assert tree_sum([1e16, -1e16, 1.0, 1.0]) == 2.0
    assert tree_sum([1.0, 1e16, 1.0, -1e16]) == 0.0
    assert tree_sum(iter("abcd")) == "abcd"


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_sum_the_same_tree(threads):
    parts = np.random.default_rng(0).standard_normal(64) * 10.0 ** np.arange(-8, 8).repeat(4)
    assert summed_by_threads(lambda i: (time.sleep(0.001 * (i % 3)), parts[i])[1], 64, threads) == tree_sum(parts)
    assert summed_by_threads("abcdefgh".__getitem__, 8, threads) == "abcdefgh"
    assert summed_by_threads(lambda i: "a", 1, threads) == "a"
    with pytest.raises(ZeroDivisionError):
        summed_by_threads(lambda i: 1 // (i - 1), 4, threads)
