"""Clusters against scikit-learn's k-means and slow sums; deals of them have every row once."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dask_odm.engine.partitioners import ClusterPartitioner, GroupDealer, MeansPartitioner, k_means
from dask_odm.kernels import RBF, Linear


def far_groups(n: int = 300, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``count`` groups that do not overlap, and the group of each."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, count, n)
    return rng.normal(size=(count, 4))[group] * 10 + rng.normal(size=(n, 4)), group


def test_k_means_ends_where_scikit_learn_s_rounds_change_nothing():
    X = np.random.default_rng(1).normal(size=(400, 3))
    K = X @ X.T
    labels = k_means(K.__matmul__, K.diagonal(), 6, seed=3)
    np.testing.assert_array_equal(labels, k_means(lambda V: X @ (X.T @ V), (X**2).sum(axis=1), 6, seed=3))
    means = np.array([X[labels == c].mean(axis=0) for c in range(6)])
    theirs = KMeans(6, init=means, n_init=1, max_iter=1, algorithm="lloyd").fit(X)
    np.testing.assert_array_equal(theirs.labels_, labels)
    np.testing.assert_allclose(theirs.cluster_centers_, means, atol=1e-6)
    several = KMeans(6, n_init=5, random_state=0).fit(X)
    ours = sum(((X[labels == c] - means[c]) ** 2).sum() for c in range(6))
    assert ours < 1.15 * several.inertia_, "no worse than a good start"


@pytest.mark.parametrize("kernel", [Linear(), RBF(1.0, 0.01)], ids=lambda k: k.name)
def test_groups_that_lie_apart_are_found(kernel):
    X, group = far_groups()
    K = kernel.tile(X, X)
    labels = k_means(K.__matmul__, K.diagonal(), 5, seed=0)
    assert adjusted_rand_score(labels, group) > 0.99


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_rest_go_to_the_nearest_mean_of_the_kernel_s_space(dtype):
    """Distances written out, for every cluster and row."""
    X = far_groups(2300)[0].astype(dtype)
    groups = ClusterPartitioner(RBF(1.0, 0.02), 7, 1).groups(X[:200])
    K = np.exp(-0.02 * ((X[:, None].astype(float) - X[None, :200]) ** 2).sum(axis=2)) + 1.0
    distances = np.empty((len(X), groups.count))
    for c in range(groups.count):
        own = np.flatnonzero(groups.labels == c)
        distances[:, c] = 2.0 - 2.0 * K[:, own].mean(axis=1) + K[np.ix_(own, own)].mean()
    order = np.sort(distances, axis=1)
    clear = order[:, 1] - order[:, 0] > 1e-5
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(groups(X)[clear], distances.argmin(axis=1)[clear])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(groups))(X), groups(X))


def test_means_are_those_of_the_clusters_and_rows_go_to_the_nearest():
    X = far_groups(900)[0].astype(np.float32)
    partitioner = MeansPartitioner(5, 3, 0)
    groups = partitioner.groups(X[:300])
    theirs = KMeans(5, init=groups.rows, n_init=1, max_iter=1).fit(X[:300].astype(float))
    np.testing.assert_allclose(groups.rows, theirs.cluster_centers_, atol=1e-5)
    np.testing.assert_array_equal(groups(X), theirs.predict(X.astype(float)))
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(groups))(X), groups(X))
    sizes = np.bincount(groups(X), minlength=5)
    dealt, _ = partitioner.dealer(tuple(sizes.tolist())).assign(groups(X), np.zeros(5, int))
    for c in range(5):  # every partition has its share of every cluster
        share = np.bincount(dealt[groups(X) == c], minlength=3)
        assert share.max() - share.min() <= 1


def test_groups_that_are_partitions_have_every_place_once():
    groups = np.random.default_rng(0).choice([0, 2, 3], 500)
    sizes = tuple(np.bincount(groups, minlength=5).tolist())
    dealer = GroupDealer(sizes, 7, skip_empty=True)
    partition, place = dealer.assign(groups, np.zeros(5, int))
    assert dealer.counts == (sizes[0], sizes[2], sizes[3]), "a group without a row is no partition"
    np.testing.assert_array_equal(partition, np.array([0, -1, 1, 2])[groups])
    for k, count in enumerate(dealer.counts):
        np.testing.assert_array_equal(np.sort(place[partition == k]), np.arange(count))
    assert (np.diff(place[partition == 0]) < 0).any(), "places are at random"


@pytest.mark.parametrize(("rows", "most"), [(np.zeros((50, 3)), 1), (np.repeat(np.eye(3), 20, axis=0), 3)])
def test_no_more_clusters_than_rows_that_differ(rows, most):
    for kernel in (Linear(), RBF()):
        K = kernel.tile(rows, rows)
        assert set(k_means(K.__matmul__, K.diagonal(), 8, seed=0).tolist()) == set(range(most))
