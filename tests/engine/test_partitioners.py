"""Clusters against scikit-learn's k-means and slow sums; dealing is a bijection that spreads every group evenly."""

import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from dask_odm.engine import partitioners
from dask_odm.kernels import RBF, Linear


def far_groups(n: int = 300, count: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``count`` groups that do not overlap, and the group of each."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, count, n)
    return rng.normal(size=(count, 4))[group] * 10 + rng.normal(size=(n, 4)), group


def test_k_means_ends_where_scikit_learn_s_rounds_change_nothing():
    X = np.random.default_rng(1).normal(size=(400, 3))
    K = X @ X.T
    labels = partitioners.k_means(K.__matmul__, K.diagonal(), 6, seed=3)
    np.testing.assert_array_equal(labels, partitioners.k_means(lambda V: X @ (X.T @ V), (X**2).sum(axis=1), 6, seed=3))
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
    labels = partitioners.k_means(K.__matmul__, K.diagonal(), 5, seed=0)
    assert adjusted_rand_score(labels, group) > 0.99


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_rest_go_to_the_nearest_mean_of_the_kernel_s_space(dtype):
    """Distances written out, for every cluster and row."""
    X = far_groups(2300)[0].astype(dtype)
    groups = partitioners.ClusterPartitioner(RBF(1.0, 0.02), 7, 1).groups(X[:200])
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
    partitioner = partitioners.MeansPartitioner(5, 3, 0)
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
    dealer = partitioners.GroupDealer(sizes, 7, skip_empty=True)
    partition, place = dealer.assign(groups, np.zeros(5, int))
    assert dealer.counts == (sizes[0], sizes[2], sizes[3]), "a group without a row is no partition"
    np.testing.assert_array_equal(partition, np.array([0, -1, 1, 2])[groups])
    for k, count in enumerate(dealer.counts):
        np.testing.assert_array_equal(np.sort(place[partition == k]), np.arange(count))
    assert (np.diff(place[partition == 0]) < 0).any(), "places are at random"


def test_groups_that_are_not_shuffled_keep_the_order_of_their_rows():
    codes = np.random.default_rng(0).integers(0, 3, 1000)
    codes[:400].sort()
    dealer = partitioners.GroupedPartitioner(None, 3, 7, shuffled=False).dealer(tuple(np.bincount(codes).tolist()))
    before = np.zeros(3, np.int64)
    parts = []
    for rows in (slice(0, 250), slice(250, 1000)):
        parts.append(dealer.assign(codes[rows], before))
        before += np.bincount(codes[rows], minlength=3)
    partition, place = (np.concatenate(each) for each in zip(*parts, strict=True))
    np.testing.assert_array_equal(partition, codes)
    for k in range(3):
        np.testing.assert_array_equal(place[partition == k], np.arange(np.count_nonzero(codes == k)))


@pytest.mark.parametrize(("rows", "most"), [(np.zeros((50, 3)), 1), (np.repeat(np.eye(3), 20, axis=0), 3)])
def test_no_more_clusters_than_rows_that_differ(rows, most):
    for kernel in (Linear(), RBF()):
        K = kernel.tile(rows, rows)
        assert set(partitioners.k_means(K.__matmul__, K.diagonal(), 8, seed=0).tolist()) == set(range(most))


# Dealing ---------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 3000), key=st.integers(0, 2**32 - 1))
@example(n=1 << 16, key=7)
@example(n=(1 << 16) + 1, key=7)
@example(n=100_003, key=7)
def test_permute_is_a_bijection(n, key):
    image = partitioners.permute(np.arange(n), n, key)
    assert image.dtype == np.int64
    np.testing.assert_array_equal(np.sort(image), np.arange(n))


def test_permute_of_a_few_out_of_very_many():
    n = 10**12
    image = partitioners.permute(np.arange(1000), n, 3)
    assert len(set(image.tolist())) == 1000
    assert 0 <= image.min() <= image.max() < n
    assert image.max() > n / 2, "they are spread over the whole range"


def test_permute_asks_for_no_order_and_changes_nothing():
    ranks = np.array([5, 2, 9, 0])
    whole = partitioners.permute(np.arange(10), 10, 1)
    np.testing.assert_array_equal(partitioners.permute(ranks, 10, 1), whole[ranks])
    assert ranks.tolist() == [5, 2, 9, 0]
    assert partitioners.permute(np.empty(0, np.int64), 5, 1).shape == (0,)


def test_permute_looks_random():
    n = 4096
    images = [partitioners.permute(np.arange(n), n, key) for key in range(20)]
    assert len({tuple(image[:8]) for image in images}) == 20
    identity = np.arange(n)
    for image in images:
        assert abs(np.corrcoef(identity, image)[0, 1]) < 0.1
        assert np.count_nonzero(image == identity) < 12
        dealt = image[: n // 2] % 16  # a class-sorted stratum: where do its first rows go?
        assert np.abs(np.bincount(dealt, minlength=16) - n / 32).max() < 60


def deal(
    sizes: list[int], parts: int, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray, partitioners.EvenDealer]:
    strata = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    partitioner = partitioners.EvenDealer(tuple(sizes), parts, seed)
    partition, place = partitioner.assign(strata, np.zeros(len(sizes), np.int64))
    return strata, partition, place, partitioner


@given(
    sizes=st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(sum),
    parts=st.integers(1, 17),
    seed=st.integers(0, 2**31),
)
def test_every_stratum_is_dealt_evenly(sizes, parts, seed):
    strata, partition, place, partitioner = deal(sizes, parts, seed)
    assert (partition.dtype, place.dtype) == (np.int32, np.int64)
    assert 0 <= partition.min() <= partition.max() < parts
    found = np.bincount(partition, minlength=parts)
    assert found.max() - found.min() <= 1, "sizes differ by at most one"
    assert tuple(found.tolist()) == partitioner.counts
    for k in range(parts):
        np.testing.assert_array_equal(np.sort(place[partition == k]), np.arange(found[k]), "every place once")
    for s, size in enumerate(sizes):
        share = np.bincount(partition[strata == s], minlength=parts)
        assert set(share.tolist()) <= {size // parts, -(-size // parts)}
        np.testing.assert_array_equal(partitioner.partition_of(np.arange(size), s), partition[strata == s])


@pytest.mark.parametrize("cut", [1, 7, 100, 499])
def test_dealing_in_pieces_is_dealing_at_once(cut):
    sizes = [100, 300, 1, 99]
    strata, partition, place, partitioner = deal(sizes, 8, 5)
    before, pieces = np.zeros(4, np.int64), []
    for start in range(0, len(strata), cut):
        piece = strata[start : start + cut]
        pieces.append(partitioner.assign(piece, before))
        before += np.bincount(piece, minlength=4)
    np.testing.assert_array_equal(np.concatenate(pieces, axis=1), [partition, place])


def test_strata_are_not_permuted_alike():
    """Equal keys for all strata would put equal ranks of all strata together."""
    partitioner = partitioners.EvenDealer((64, 64), 4, 0)
    first, second = (partitioner.assign(np.full(64, s), np.zeros(2, int))[0] for s in (0, 1))
    assert 4 < np.count_nonzero(first == second) < 32


@pytest.mark.parametrize("parts", [2, 16, 61])
def test_class_sorted_rows_come_out_balanced(parts):
    n = 61 * 200
    y = np.repeat([0, 1], [n // 3, n - n // 3])
    partitioner = partitioners.EvenDealer((n,), parts, 11)
    partition, place = partitioner.assign(np.zeros(n, int), np.zeros(1, int))
    for k in range(0, parts, 7):
        own = np.flatnonzero(partition == k)
        halves = [y[own[half]].mean() for half in (place[own] < len(own) / 2, place[own] >= len(own) / 2)]
        assert abs(halves[0] - halves[1]) < 4.5 * np.sqrt(2 / 9 * 4 / len(own)), "and mixed within a partition"
    share = np.bincount(partition, weights=y, minlength=parts) / np.bincount(partition, minlength=parts)
    spread = np.sqrt(2 / 9 / (n / parts))  # standard deviation of the share of n / parts random rows
    assert np.abs(share - y.mean()).max() < 4.5 * spread
