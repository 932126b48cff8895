"""Clients on the workers: the rows of two hulls stay with clients, which answer the server's questions.

Each client has about as many consecutive rows, however the rows are cut into chunks. The caller chooses the number of
clients, whatever the number of workers. There is a task for every worker thread, and neighbouring clients share it,
since a task costs as much as the work of many clients. This changes neither the messages nor any bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import Columns
from dask_odm.engine.rounds import Rounds
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.saddle.client_hulls import begin_all
from dask_odm.papers.saddle.client_rows import ClientRows, ClientState, Preparation


def row_ranges(rows: int, clients: int) -> list[tuple[int, int]]:
    """Return the first row and the end of every client's range."""
    return list(pairwise(rows * j // clients for j in range(clients + 1)))


@dataclass(frozen=True, eq=False)
class StoreRange:
    """The rows ``start:stop`` of a store, as a task of a client carries them; iterating gives copies of raw rows."""

    store: Store
    columns: Columns
    start: int
    stop: int

    def __iter__(self) -> Iterator[RowBlock]:
        store = self.store
        buffer = store.buffer()
        for i in range(self.start // store.chunk_rows, -(-self.stop // store.chunk_rows)):
            block = store.read(i, buffer)
            y, weight = self.columns(block)
            rows = slice(max(self.start - block.first, 0), self.stop - block.first)
            yield RowBlock(block.X[rows].copy(), y[rows], weight[rows])


def groups_of(
    cluster: Cluster,
    preparation: Preparation,
    sources: Sequence[Iterable[RowBlock]],
    states: Sequence[ClientState] | None = None,
    scratch: str | None = None,
) -> Rounds:
    """Provide groups of clients on a cluster's workers, or by threads of this process.

    There is one of ``sources`` for each client, and one of ``states`` in a resumed run. ``scratch`` is as in `Rounds`.
    """
    count = len(sources)
    groups = [slice(a, b) for a, b in row_ranges(count, min(count, cluster.slots))]
    return Rounds(
        cluster,
        [list(sources[group]) for group in groups],
        begin_all,
        name="clients",
        hold=partial(prepare_all, preparation),
        states=None if states is None else [list(states[group]) for group in groups],
        checkpoint_every=64,  # steps, which are repeated if a worker dies; a checkpoint takes as long as two
        scratch=scratch,
    )


def prepare_all(preparation: Preparation, sources: Sequence[Iterable[RowBlock]]) -> list[ClientRows]:
    """Prepare the rows of some clients."""
    return [preparation(blocks) for blocks in sources]
