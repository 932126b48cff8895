"""Targets: what is learned about each row, by hand and row by row; folds, whatever the chunks."""

import pickle

import dask
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_odm.data.rows.targets import ManyClasses, RealValues, Targets, TwoClasses, folds_of
from dask_odm.data.store.store import StoreBlock

CODES = np.array([0, 1, -1, 2, 1], np.int8)
WEIGHT = np.array([1.0, 0.0, 2.0, 4.0, 3.0])
REAL = np.array([0.5, np.nan, -2.0, 0.0, 7.0])


def block(y: np.ndarray, weight: np.ndarray | None = None, first: int = 0) -> StoreBlock:
    return StoreBlock(np.zeros((len(y), 1)), y, weight, first)


def test_columns_of_all_rows_are_the_stores_own():
    for targets in (TwoClasses(), ManyClasses((1.0, 2.0, 3.0))):
        whole = block(CODES, WEIGHT)
        y, weight = targets.columns(whole)
        assert y is whole.y
        assert weight is whole.weight
        assert len(targets.columns(block(CODES))[1]) == 0
    known = block(np.array([0.5, 1.5]))
    assert RealValues().columns(known)[0] is known.y


@pytest.mark.parametrize("given_weight", [None, WEIGHT])
@pytest.mark.parametrize("targets", [TwoClasses((0.0, 2.0)), ManyClasses((1.0, 0.0, 5.0))])
def test_columns_of_classes_say_who_is_left_out(targets, given_weight):
    seen = block(CODES, given_weight, first=3)
    keep = targets(seen)[0]
    y, weight = targets.columns(seen)
    assert y.dtype == CODES.dtype
    own = np.ones(5) if len(weight) == 0 else weight
    np.testing.assert_array_equal((y >= 0) & (own > 0), keep)
    np.testing.assert_array_equal(y[keep], CODES[keep])
    assert (len(weight) == 0) == (given_weight is None)


@pytest.mark.parametrize("given_weight", [None, WEIGHT])
def test_columns_of_real_values_weigh_nothing_where_left_out(given_weight):
    targets = RealValues()
    seen = block(REAL, given_weight)
    keep = targets(seen)[0]
    y, weight = targets.columns(seen)
    np.testing.assert_array_equal(weight > 0, keep)
    np.testing.assert_array_equal(y[keep], REAL[keep])
    assert np.isfinite(y).all()


@pytest.mark.parametrize("targets", [TwoClasses((0.5, 1.0)), ManyClasses((1.0, 2.0)), RealValues()])
def test_targets_are_values(targets: Targets):
    again = pickle.loads(pickle.dumps(targets))
    assert again == targets
    assert dask.base.tokenize(again) == dask.base.tokenize(targets)
    assert dask.base.tokenize(targets) != dask.base.tokenize(TwoClasses())


def test_partitions_hold_y_in_the_smallest_type():
    assert [TwoClasses().y_type, ManyClasses((1.0,) * 128).y_type, ManyClasses((1.0,) * 129).y_type] == [
        "int8", "int8", "int32"
    ]  # fmt: skip
    assert RealValues().y_type == "float64"


@given(st.integers(2, 12), st.integers(0, 2**64), st.integers(0, 300), st.integers(0, 300))
def test_folds_are_the_same_whatever_the_chunks(of, seed, n, cut):
    whole = folds_of(np.arange(n), of, seed)
    assert set(whole.tolist()) <= set(range(of))
    np.testing.assert_array_equal(folds_of(np.arange(n)[cut:], of, seed), whole[cut:])


@pytest.mark.parametrize("seed", [0, 1, 2**40])
@pytest.mark.parametrize("of", [2, 5, 10])
def test_folds_are_of_near_equal_sizes_and_independent_of_order(of, seed):
    n = 100_000
    fold = folds_of(np.arange(n), of, seed)
    deviation = np.sqrt(n / of * (1 - 1 / of))
    assert (np.abs(np.bincount(fold, minlength=of) - n / of) < 5 * deviation).all()
    every_third = np.bincount(fold[::3], minlength=of)  # as rows in a repeating order would have it
    assert (np.abs(every_third - n / 3 / of) < 5 * deviation).all()
    assert abs((fold == folds_of(np.arange(n), of, seed + 1)).mean() - 1 / of) < 0.02
