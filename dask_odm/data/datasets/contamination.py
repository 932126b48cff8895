"""Shards with wrong labels, for experiments: dealing rows to shards, and falsifying the labels of some.

Settings of Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence
Minimization Principle*, section 6.1: some shards have all labels flipped, or random ones with a share of positives of
their own. A row's random label depends on the seed and the row's number, so a store gets the same labels as memory.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.errors import InputError
from dask_odm.linalg.rows import uniforms_of

POSITIVE = (0.1, 0.9)  # the smallest and the largest share of positives in shards with random labels


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
        Number of shards, drawn at random, whose labels become the other class's.
    random : int
        Number of further shards, whose labels are drawn at random.
    positive : tuple of two floats
        The smallest and the largest share of the second class in them; the shares are spread evenly.
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
    labels = np.asarray(y)
    classes, codes = np.unique(labels, return_inverse=True)
    lies = _Lies(len(classes), len(labels), shard, flipped, random, positive, random_state)
    return classes[lies.told(codes, 0)], lies.bad


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
    classes = store.classes or ()
    lies = _Lies(len(classes), store.rows, shard, flipped, random, positive, random_state)
    with StoreWriter(path, dtype=store.dtype.name, chunk_rows=store.chunk_rows, overwrite=overwrite) as writer:
        for block in store.blocks():
            writer.append(block.X, lies.told(block.y, block.first), block.weight)
        names = None if store.feature_names is None else list(store.feature_names)
        return writer.finish(list(classes), feature_names=names, source=f"{store.source}, contaminated"), lies.bad


class _Lies:
    """Rule of false labels: which shards are flipped, and which are random with what share of positives."""

    def __init__(
        self,
        classes: int,
        rows: int,
        shard: Any,
        flipped: int,
        random: int,
        positive: tuple[float, float],
        random_state: int,
    ) -> None:
        names, self._codes = np.unique(np.asarray(shard), return_inverse=True)
        if classes != 2:
            raise InputError(f"labels of two classes are needed to make some wrong. Got {classes}.")
        if self._codes.shape != (rows,):
            raise InputError(f"shard must hold one label for each of the {rows} rows. Got shape {self._codes.shape}.")
        if flipped < 0 or random < 0 or flipped + random > len(names):
            raise InputError(
                f"flipped and random must not be negative, and at most {len(names)}, the number of shards, together. "
                f"Got {flipped} and {random}."
            )
        if not 0.0 <= positive[0] <= positive[1] <= 1.0:
            raise InputError(f"positive must be two shares of rows in ascending order. Got {positive!r}.")
        chosen = np.random.default_rng(random_state).permutation(len(names))[: flipped + random]
        self.bad = names[np.sort(chosen)]
        self._seed = random_state
        self._flips = np.isin(np.arange(len(names)), chosen[:flipped])
        self._share = np.full(len(names), np.nan)
        self._share[chosen[flipped:]] = np.linspace(*positive, random)

    def told(self, truth: Any, first: int) -> NDArray[Any]:
        """Return false codes of rows ``first`` on, given the true ones: 0, 1 or −1 (unknown)."""
        codes = np.array(truth)
        shard = self._codes[first : first + len(codes)]
        drawn = uniforms_of(first + np.arange(len(codes)), self._seed) < self._share[shard]
        lies = np.where(self._flips[shard], 1 - codes, np.where(np.isnan(self._share[shard]), codes, drawn))
        return np.where(codes < 0, codes, lies).astype(codes.dtype)
