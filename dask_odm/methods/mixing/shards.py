"""Shards of the training data, dealt at random or by a column that says who sent each row."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import StoredPartitions, distinct_values
from dask_odm.engine.partition.dealing import GroupDealer
from dask_odm.engine.partition.random import RandomPartitioner
from dask_odm.engine.shuffle import GroupOfNumber, GroupOfValue, partition_store, partition_store_by
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error, distinct
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.mixing.settings import MixingFit
from dask_odm.methods.mixing.workers import Shards, ShardsInMemory, ShardsOnDisk
from dask_odm.typing import Array

MOST_SENDERS = 1 << 16  # most distinct values of a column of shards; a column of more is a mistake


@dataclass(frozen=True, eq=False)
class NamedShards:
    """Shards with their names, which are the user's labels or numbers.

    ``scaling`` is that of raw rows; a feature that names shards is scaled to 0. ``folder`` is for the fit's scratch
    files, and all workers see it; it is None in memory.
    """

    shards: Shards
    names: list[Any]
    scaling: Scaling | None
    folder: str | None


@contextmanager
def shards_of(data: TrainingData, fit: MixingFit) -> Iterator[NamedShards]:
    """Make the shards of a fit. Shards of a store are on disk, within the ``with`` block only.

    Raises InputError if there are fewer than two shards, or more shards than rows, or if a shard has no row that takes
    part.
    """
    scaling = _scaling(data, fit)
    if isinstance(data, MemoryData):
        yield _in_memory(data, fit, scaling)
        return
    assert isinstance(data, StoredData)
    with scratch_folder() as folder:
        yield _on_disk(data, fit, scaling, folder)


def fingerprint_of(data: TrainingData, fit: MixingFit) -> str:
    """Return the fingerprint by which a checkpoint recognises the rows and their shards."""
    if fit.shard is None:
        return data.fingerprint()
    labels = fit.shard
    content = repr(labels.tolist()).encode() if labels.dtype == object else np.ascontiguousarray(labels).tobytes()
    return f"{data.fingerprint()} {labels.dtype.str} {hashlib.sha256(content).hexdigest()}"


def _scaling(data: TrainingData, fit: MixingFit) -> Scaling | None:
    feature = fit.shard_feature
    d = data.features
    if feature is not None and not 0 <= feature < d:
        raise InputError(f"shard_feature must be the number of a feature, from 0 to {d - 1}. Got {feature} instead.")
    if feature is not None and d == 1:
        raise InputError("shard_feature is the only feature: nothing is left to learn from.")
    if fit.run.scale is None and feature is None:
        return None
    scaling = Scaling(np.zeros(d), np.ones(d))
    if fit.run.scale is not None:
        scaling = Scaling.of_features(data.statistics(), fit.run.scale)
    if feature is not None:
        scaling.factor[feature] = scaling.shift[feature] = 0.0
    return scaling


def _in_memory(data: MemoryData, fit: MixingFit, scaling: Scaling | None) -> NamedShards:
    held = data.held
    n = data.rows
    if fit.shard is None and fit.shard_feature is None:
        count = fit.count_for(n)
        names = list(range(count))
        dealer = RandomPartitioner(count, fit.run.seed).dealer((n,))
        counts = dealer.counts
        order = _order_of(*dealer.assign(np.zeros(n, np.int32), np.arange(n)), dealer.counts)
    else:
        names, codes = _codes_in_memory(data, fit)
        counts = tuple(np.bincount(codes, minlength=len(names)).tolist())
        _require_rows(names, counts)
        order = GroupDealer(counts, fit.run.seed).order(codes, CPU_COUNT)
    weight = held.total_weights
    weight = np.empty(0) if (weight == 1.0).all() else weight
    return NamedShards(ShardsInMemory(held.X, held.y, weight, order, counts, scaling), names, scaling, None)


def _order_of(partition: Array, place: Array, counts: tuple[int, ...]) -> Array:
    """Return the row numbers, partition by partition, each in the order of its places."""
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    order = np.empty(len(place), np.int64)
    order[starts[partition] + place] = np.arange(len(place))
    return order


def _codes_in_memory(data: MemoryData, fit: MixingFit) -> tuple[list[Any], Array]:
    """Return the names of the shards, and the number of each row's shard."""
    if fit.shard is not None:
        names, codes = _codes_of(fit.shard, data.given.shape[0])
        return names, codes[data.held.kept]
    X: Any = data.held.X
    column = X[:, [fit.shard_feature]].toarray().ravel() if issparse(X) else X[:, fit.shard_feature]
    values, codes = distinct(column)
    return _names_of_values(values), codes


def _codes_of(shard: Array, rows: int) -> tuple[list[Any], Array]:
    if len(shard) != rows:
        raise InputError(f"shard must hold one label for each of the {rows} rows. Got {len(shard)} labels instead.")
    values, codes = as_input_error(lambda: distinct(shard))
    _require_several(len(values))
    return values.tolist(), codes


def _names_of_values(values: Array) -> list[Any]:
    """Return the values of a feature as names of shards, as ints if all are whole."""
    _require_several(len(values))
    whole = bool((values == np.rint(values)).all()) and float(np.abs(values).max()) < 2**53
    return (values.astype(np.int64) if whole else values).tolist()


def _require_several(count: int) -> None:
    if count < 2:
        raise InputError(
            "all rows are in one shard, and nothing can be mixed; two are needed, and more to tell the bad ones."
        )
    if count > MOST_SENDERS:
        raise InputError(
            f"the rows are in {count} shards, more than {MOST_SENDERS}: name a column that says who sent a row."
        )


def _require_rows(names: list[Any], counts: tuple[int, ...]) -> None:
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if empty:
        more = f" ({len(empty) - 1} more have none either)" if len(empty) > 1 else ""
        raise InputError(
            f"shard {empty[0]!r} has no row with a label and a positive weight{more}; leave its rows out, or join it "
            "to another."
        )


def _on_disk(data: StoredData, fit: MixingFit, scaling: Scaling | None, folder: str) -> NamedShards:
    names, partitions = _partitions(data, fit, folder)
    path = os.path.join(folder, "scaling.npz")
    if scaling is not None:
        np.savez(path, shift=scaling.shift, factor=scaling.factor)
    stored = None if scaling is None else StoredScaling(path)
    shards = ShardsOnDisk(partitions, stored, 0, len(partitions.counts))
    return NamedShards(shards, names, scaling, folder)


def _partitions(data: StoredData, fit: MixingFit, folder: str) -> tuple[list[Any], StoredPartitions]:
    """Copy the rows to ``folder``, with a partition for each shard, and return the shards' names and the partitions."""
    store = data.store
    targets = data.targets
    cluster = data.cluster
    dtype = fit.run.dtype
    if fit.shard is None and fit.shard_feature is None:
        count = fit.count_for(data.labelled_rows)
        plain = Scaling(np.zeros(store.features), np.ones(store.features))
        dealt = RandomPartitioner(count, fit.run.seed)
        return list(range(count)), partition_store(store, targets, plain, dealt, folder, cluster, dtype)
    path = os.path.join(folder, "shards.npy")
    group_of: GroupOfNumber | GroupOfValue
    if fit.shard is not None:
        names, codes = _codes_of(fit.shard, store.rows)
        np.save(path, codes)
        group_of = GroupOfNumber(path)
    else:
        assert fit.shard_feature is not None
        chunks = [(store, targets, fit.shard_feature, c) for c in range(store.n_chunks)]
        values = np.unique(np.concatenate(cluster.map_chunks(distinct_values, chunks, "shards")))
        names = _names_of_values(values)
        np.save(path, values)
        group_of = GroupOfValue(path, fit.shard_feature)
    asked = store, targets, group_of, len(names), fit.run.seed, folder, cluster, dtype
    partitions = partition_store_by(*asked)
    _require_rows(names, partitions.counts)
    return names, partitions
