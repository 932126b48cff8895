"""Passes over a store that choose landmarks, in bounded memory, one for every block of proposals.

A task runs the race of `kernels.pivots` over a run of chunks, and returns keys and numbers of its first rows. Random
numbers depend on seed, turn and chunk, and the first rows of all are the same however chunks are grouped. So landmarks
do not depend on the workers, and equal those of rows in memory that are cut into the same chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.targets import Targets
from dask_odm.data.store.store import Store, StoreBlock
from dask_odm.engine.cluster import Cluster
from dask_odm.kernels.base import BLOCK
from dask_odm.kernels.pivots import RACES, Proposals, Race, most_proposals
from dask_odm.typing import Array


def proposal_bytes(store: Store, count: int, itemsize: int, method: str) -> int:
    """Return the peak bytes of one task: a chunk with columns and keys; with its rows, row blocks and landmarks too."""
    chunk = store.chunk_nbytes + (80 + 16 * store.targets) * store.chunk_rows + 32 * most_proposals(count)
    if not RACES[method].reads_rows:
        return chunk
    rows = store.chunk_rows * store.features * itemsize
    block = 8 * BLOCK * (3 * count + 5 * store.features)
    landmarks = 8 * (4 * count**2 + 4 * count * store.features)
    return chunk + 3 * rows + block + landmarks


@dataclass(frozen=True, eq=False)
class StorePivots:
    """The rows of a store that ``labelling`` keeps, as a `dask_odm.kernels.pivots.PivotRows`.

    Rows are cast to ``dtype``, then scaled.
    """

    store: Store
    labelling: Targets
    scaling: Scaling
    cluster: Cluster
    dtype: np.dtype[Any]

    @property
    def n(self) -> int:
        return self.store.rows

    def require(self, count: int, method: str) -> None:
        """Raise MemoryLimitError, with both figures, unless choosing ``count`` landmarks fits."""
        what = f"Choosing {count} landmarks"
        store = self.store
        # their rows are gathered when they are chosen
        needed = max(proposal_bytes(store, count, self.dtype.itemsize, method), store.readers * store.chunk_nbytes)
        self.cluster.require(needed, min(store.n_chunks, self.cluster.tasks), what, ("fewer landmarks",))

    def run(self, race: Race) -> Proposals:
        chunks = np.array_split(np.arange(self.store.n_chunks), min(self.store.n_chunks, self.cluster.tasks))
        shared = self.store, self.labelling, self.scaling, self.dtype, race
        arguments = [(part.tolist(),) for part in chunks]
        return Proposals.merged(self.cluster.map_chunks(propose, arguments, "landmarks", *shared), race.most)

    def take(self, numbers: Array) -> Array:
        return self.scaling(self.raw(numbers))

    def raw(self, numbers: Array) -> Array:
        """Return the rows at ``numbers``, not scaled; each chunk that holds any is read once more."""
        order = np.argsort(numbers)
        rows = np.empty((len(numbers), self.store.features), self.dtype)
        rows[order] = np.concatenate([b.X for b in gathered(self.store, self.cluster, numbers[order], "landmarks")])
        return rows


def gathered(store: Store, cluster: Cluster, numbers: Array, phase: str) -> list[StoreBlock]:
    """Return the rows at ascending ``numbers`` in a few blocks, as workers read them."""
    parts = np.array_split(numbers, max(1, min(cluster.tasks, len(numbers))))
    return cluster.map_chunks(Store.read_rows, [(part,) for part in parts], phase, store)


def propose(
    store: Store, labelling: Targets, scaling: Scaling, dtype: np.dtype[Any], race: Race, chunks: list[int]
) -> Proposals:
    """Return the proposals of a run of chunks; this is a task."""
    buffer = store.buffer()
    found = None
    for i in chunks:
        block = store.read(i, buffer) if race.reads_rows else store.read_columns(i)
        keep = np.flatnonzero(labelling(block)[0])
        X = block.X[keep]
        if race.reads_rows:
            X = X.astype(dtype, copy=False)
            scaling(X, X)
        own = race.chunk(X, block.first + keep, i)
        found = Proposals.merged([own] if found is None else [found, own], race.most)
    assert found is not None
    return found
