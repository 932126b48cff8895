"""Shards with wrong labels, for experiments: dealing rows to shards, and falsifying the labels of some.

Settings of Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence
Minimization Principle*, section 6.1: some shards have all labels flipped, or random ones with a share of positives of
their own. A row's random label depends on the seed and the row's number, so a store gets the same labels as memory.
"""

from __future__ import annotations

import os
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.arguments import FROM_0, FROM_1, checked
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError
from dask_odm.linalg.rows import uniforms_of

POSITIVE = (0.1, 0.9)  # the smallest and the largest share of positives in shards with random labels
_checked = checked(flipped=[Integral], random=[Integral], positive=["array-like"], random_state=[FROM_0])


@checked(n_samples=[FROM_1], n_shards=[FROM_1], random_state=[FROM_0])
def deal_shards(n_samples: int, n_shards: int, *, random_state: int = 0) -> NDArray[np.int64]:
    """Deal rows to shards at random. The sizes of shards differ by at most one.

    Parameters
    ----------
    n_samples, n_shards : rows and shards, at least one row a shard
    random_state : int from 0

    Returns
    -------
    int64 array of shape (n_samples,), numbers from 0 to n_shards − 1

    Raises
    ------
    InputError
        A parameter is out of its range.
    """
    if not 1 <= n_shards <= n_samples:
        raise InputError(
            f"n_shards of deal_shards must be at least 1 and at most n_samples, {n_samples}. Got {n_shards} instead."
        )
    return np.random.default_rng(random_state).permutation(np.arange(n_samples) % n_shards)


@_checked
def contaminate_labels(
    y: Any,
    shard: Any,
    *,
    flipped: int = 0,
    random: int = 0,
    positive: tuple[float, float] = POSITIVE,
    random_state: int = 0,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Falsify the labels of some shards, for data of two classes.

    Parameters
    ----------
    y, shard : arrays of shape (n,)
        Labels, and the shard of every row.
    flipped : int
        Number of shards, drawn at random, whose labels are swapped for the other class.
    random : int
        Number of further shards whose labels are drawn at random.
    positive : tuple of two floats
        The smallest and the largest share of the second class in the shards with random labels. The shares of these
        shards are evenly spaced.
    random_state : int from 0

    Returns
    -------
    labels : array of shape (n,), of the dtype of y
    bad : array of the shards whose labels were changed, sorted

    Raises
    ------
    InputError
        Not two classes, lengths that differ, or more bad shards than there are.
    """
    classes, codes = np.unique(np.asarray(y), return_inverse=True)
    lies, bad = _lies(codes, len(classes), shard, flipped, random, positive, random_state)
    return classes[lies], bad


@_checked
def contaminate_store(
    source: str | os.PathLike[str] | Store,
    path: str | os.PathLike[str],
    shard: Any,
    *,
    flipped: int = 0,
    random: int = 0,
    positive: tuple[float, float] = POSITIVE,
    random_state: int = 0,
    overwrite: bool = False,
) -> tuple[Store, NDArray[Any]]:
    """Copy a store, with labels of some shards falsified as by `contaminate_labels`. Unknown labels stay unknown.

    Parameters
    ----------
    source : store of two classes, by path or open
    path : folder to write the copy to
    shard : array of shape (rows,)
    flipped, random, positive, random_state
        As `contaminate_labels` has them.
    overwrite : replace an existing store

    Returns
    -------
    store : Store
    bad : array of the shards whose labels were changed, sorted

    Raises
    ------
    InputError
        As `contaminate_labels`; or the output exists.
    StoreError
        The source is damaged, or the output cannot be written.
    """
    store = source if isinstance(source, Store) else Store.open(source)
    store.require_classes("contaminate_store")
    classes = store.facts.classes or ()
    lies, bad = _lies(store.read_column("y"), len(classes), shard, flipped, random, positive, random_state)
    with StoreWriter(path, dtype=store.dtype.name, chunk_rows=store.chunk_rows, overwrite=overwrite) as writer:
        for block in store.blocks():
            writer.append(block.X, lies[block.first : block.first + block.X.shape[0]], block.weight)
        writer.prepare(
            list(classes),
            feature_names=store.feature_names,
            source=f"{store.source}, contaminated",
            text=store.text_recipe,
            columns=store.column_recipe,
        )
        return writer.publish(), bad


def _lies(
    truth: Any, classes: int, shard: Any, flipped: int, random: int, positive: tuple[float, float], random_state: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return false codes of rows, given the true ones, 0, 1 or −1 (unknown), and the shards that have them."""
    names, at = np.unique(np.asarray(shard), return_inverse=True)
    rows = len(truth)
    if classes != 2:
        raise InputError(f"labels of two classes are needed to make some wrong. Got {classes}.")
    if at.shape != (rows,):
        raise InputError(f"shard must hold one label for each of the {rows} rows. Got shape {at.shape}.")
    if flipped < 0 or random < 0 or flipped + random > len(names):
        raise InputError(
            f"flipped and random must not be negative, and at most {len(names)}, the number of shards, together. "
            f"Got {flipped} and {random}."
        )
    if not 0.0 <= positive[0] <= positive[1] <= 1.0:
        raise InputError(f"positive must be two shares of rows in ascending order. Got {positive!r}.")
    chosen = np.random.default_rng(random_state).permutation(len(names))[: flipped + random]
    share = np.full(len(names), np.nan)
    share[chosen[flipped:]] = np.linspace(*positive, random)
    drawn = uniforms_of(np.arange(rows), random_state) < share[at]
    lies = np.where(np.isin(at, chosen[:flipped]), 1 - truth, np.where(np.isnan(share[at]), truth, drawn))
    return np.where(truth < 0, truth, lies).astype(truth.dtype), names[np.sort(chosen)]
