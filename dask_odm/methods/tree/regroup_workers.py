"""DC-SVM's tree levels: the nodes of every level are clusters of all rows, found anew.

Source: Hsieh, Si and Dhillon, *A divide-and-conquer solver for kernel support vector machines* (ICML 2014), algorithm
1. The client finds the clusters on a sample of rows. Tasks then assign every row to its cluster. The client holds only
row numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.row_sets import RowSet
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.partitioners import Groups, Partitioner
from dask_odm.typing import Array

READ_ROWS = 1024  # rows of a block that is read and assigned to clusters at a time


def groups_of_partition(partitions: Partitions, scaling: Scaling | StoredScaling, groups: Groups, number: int) -> Array:
    """Return the group of every row of a partition, int32 (n,)."""
    rows, _ = partitions.rows(number, number + 1, scaling, 0)
    found = [groups(rows.read(i, min(rows.n, i + READ_ROWS))) for i in range(0, rows.n, READ_ROWS)]
    return np.concatenate(found)


@dataclass(frozen=True, eq=False)
class Reclustering:
    """The callable ``regroup`` of `dask_odm.methods.tree.workers.grow_tree` that makes clusters the nodes of a level.

    ``nodes`` has the most nodes of every level, leaves first; empty clusters are left out. ``partitioner(count, seed)``
    makes a partitioner of ``count`` groups.
    """

    partitions: Partitions
    scaling: Scaling | StoredScaling
    nodes: Sequence[int]
    partitioner: Callable[[int, int], Partitioner]
    seed: int
    cluster: Cluster

    def __call__(self, number: int) -> list[RowSet] | None:
        """Return the clusters of level ``number``, counted from the leaves at 0; None if it is a single node."""
        counts = self.partitions.counts
        nodes = self.nodes[number]
        if nodes == 1:
            return None
        seed = int(np.random.SeedSequence([self.seed, 3, number]).generate_state(1)[0] >> 1)
        partitioner = self.partitioner(nodes, seed)
        self._require(partitioner)
        groups = partitioner.groups(self._sample(partitioner))
        arguments: list[Any] = [(self.partitions, self.scaling, groups, k) for k in range(len(counts))]
        of_row = np.concatenate(self.cluster.map_chunks(groups_of_partition, arguments, "clusters"))
        found = (np.flatnonzero(of_row == g) for g in range(groups.count))
        return [RowSet.at(positions, counts) for positions in found if len(positions)]

    def _require(self, partitioner: Partitioner) -> None:
        """Raise MemoryLimitError unless the sample's kernel matrix fits here, and a block's values fit every task."""
        d = self.partitions.features
        itemsize = self.partitions.dtype.itemsize
        sample = min(sum(self.partitions.counts), partitioner.sample_rows(d, itemsize))
        block = READ_ROWS * (2 * d * itemsize + (8 + itemsize) * sample)
        needed = 3 * 8 * sample * d + block + self.partitions.reading_bytes
        what = f"Finding clusters by {sample} rows"
        self.cluster.require(8 * sample * (sample + 2 * d), 1, what)
        self.cluster.require(needed, len(self.partitions.counts), what)

    def _sample(self, partitioner: Partitioner) -> Array:
        """Draw the sample of scaled rows from which the clusters are made."""
        partitions = self.partitions
        total = sum(self.partitions.counts)
        count = min(total, partitioner.sample_rows(partitions.features, partitions.dtype.itemsize))
        rng = np.random.default_rng(np.random.SeedSequence(partitioner.seed, spawn_key=(0,)))
        chosen = RowSet.at(np.sort(rng.choice(total, count, replace=False)), partitions.counts)
        rows, _ = chosen.rows(partitions, self.scaling, 0)
        return np.concatenate([rows.read(i, min(rows.n, i + READ_ROWS)) for i in range(0, rows.n, READ_ROWS)])
