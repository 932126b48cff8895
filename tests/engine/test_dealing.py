"""Dealing: a bijection, every row once, every group and every class spread evenly."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_odm.engine.partitioners import EvenDealer, permute


@given(n=st.integers(1, 3000), key=st.integers(0, 2**32 - 1))
def test_permute_is_a_bijection(n, key):
    image = permute(np.arange(n), n, key)
    assert image.dtype == np.int64
    np.testing.assert_array_equal(np.sort(image), np.arange(n))


@pytest.mark.parametrize("n", [1 << 16, (1 << 16) + 1, 100_003])
def test_permute_of_many(n):
    np.testing.assert_array_equal(np.sort(permute(np.arange(n), n, 7)), np.arange(n))


def test_permute_of_a_few_out_of_very_many():
    n = 10**12
    image = permute(np.arange(1000), n, 3)
    assert len(set(image.tolist())) == 1000
    assert 0 <= image.min() <= image.max() < n
    assert image.max() > n / 2, "they are spread over the whole range"


def test_permute_asks_for_no_order_and_changes_nothing():
    ranks = np.array([5, 2, 9, 0])
    whole = permute(np.arange(10), 10, 1)
    np.testing.assert_array_equal(permute(ranks, 10, 1), whole[ranks])
    assert ranks.tolist() == [5, 2, 9, 0]
    assert permute(np.empty(0, np.int64), 5, 1).shape == (0,)


def test_permute_looks_random():
    n = 4096
    images = [permute(np.arange(n), n, key) for key in range(20)]
    assert len({tuple(image[:8]) for image in images}) == 20
    identity = np.arange(n)
    for image in images:
        assert abs(np.corrcoef(identity, image)[0, 1]) < 0.1
        assert np.count_nonzero(image == identity) < 12
        dealt = image[: n // 2] % 16  # a class-sorted stratum: where do its first rows go?
        assert np.abs(np.bincount(dealt, minlength=16) - n / 32).max() < 60


def deal(sizes: list[int], parts: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray, EvenDealer]:
    strata = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    partitioner = EvenDealer(tuple(sizes), parts, seed)
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


@given(
    strata=st.lists(st.integers(0, 4), min_size=1, max_size=20),
    before=st.lists(st.integers(0, 100), min_size=5, max_size=5),
)
def test_ranks_count_on(strata, before):
    dealer = EvenDealer((121,) * 5, 7, 3)
    seen, expected = Counter(dict(enumerate(before))), []
    for s in strata:
        expected += dealer.partition_of(np.array([seen[s]]), s).tolist()
        seen[s] += 1
    assert dealer.assign(np.array(strata), np.array(before))[0].tolist() == expected


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


def test_seed_decides():
    one, same, other = (deal([50, 50], 4, seed)[3].assign(np.zeros(50, int), np.zeros(2, int)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)


def test_strata_are_not_permuted_alike():
    """Equal keys for all strata would put equal ranks of all strata together."""
    partitioner = EvenDealer((64, 64), 4, 0)
    first, second = (partitioner.assign(np.full(64, s), np.zeros(2, int))[0] for s in (0, 1))
    assert 4 < np.count_nonzero(first == second) < 32


@pytest.mark.parametrize("parts", [2, 16, 61])
def test_class_sorted_rows_come_out_balanced(parts):
    n = 61 * 200
    y = np.repeat([0, 1], [n // 3, n - n // 3])
    partitioner = EvenDealer((n,), parts, 11)
    partition, place = partitioner.assign(np.zeros(n, int), np.zeros(1, int))
    for k in range(0, parts, 7):
        own = np.flatnonzero(partition == k)
        halves = [y[own[half]].mean() for half in (place[own] < len(own) / 2, place[own] >= len(own) / 2)]
        assert abs(halves[0] - halves[1]) < 4.5 * np.sqrt(2 / 9 * 4 / len(own)), "and mixed within a partition"
    share = np.bincount(partition, weights=y, minlength=parts) / np.bincount(partition, minlength=parts)
    spread = np.sqrt(2 / 9 / (n / parts))  # standard deviation of the share of n / parts random rows
    assert np.abs(share - y.mean()).max() < 4.5 * spread


def test_without_a_shuffle_rows_of_a_group_go_round():
    groups = np.repeat([0, 1], [7, 5])
    dealer = EvenDealer((7, 5), 3, seed=0, shuffled=False)
    partition, _ = dealer.assign(groups, np.zeros(2, int))
    np.testing.assert_array_equal(partition, np.arange(12) % 3)
