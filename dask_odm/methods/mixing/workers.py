"""Parameter mixing on rounds: groups of shards stay with their workers, and two sums travel in each epoch.

An epoch of `dask_odm.methods.mixing.solver` is two questions. The first sends w; every shard makes its pass and keeps
its own w, and the moments of all shards are added up pair by pair. The second sends their mean and variance; the
shards' exponentials are added up relative to the largest. Only the workers hold more than one shard's w.

Shards are asked in groups, because a task takes milliseconds and the pass of a small shard takes less. The groups, and
the tree by which their answers are added up, follow from the number of shards alone. So the result does not depend on
the workers. Rows in memory are gathered once, shard by shard. Rows of a store are read from its partitions in every
pass, through the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Protocol

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import StoredPartitions
from dask_odm.data.store.chunks import read_plain_chunk
from dask_odm.data.store.layout import CHECKSUM_BYTES
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.rounds import Rounds
from dask_odm.linalg.jit import frozen
from dask_odm.linalg.row_passes import rows_between
from dask_odm.methods.mixing.online_passes import LocalRule, mark_nonzero, warm_up_passes
from dask_odm.methods.mixing.solver import Centre, Mixture, Moments
from dask_odm.typing import Array

MOST_GROUPS = 32  # groups of shards, which are the tasks of an epoch
DENSE_BYTES = 4 << 20  # bytes of sparse rows that are made dense at a time, if scaling moves their zeros
CHECKPOINT_EVERY = 4  # epochs between checkpoints; a worker that dies costs its shards so many at most
ADVICE = "Use fewer shards (n_shards), fewer threads a worker or more memory."

Block = tuple[Any, Array, Array]  # rows, y (±1) and weights; empty weights stand for 1


class Shards(Protocol):
    """Reader of the rows of every shard, held by this process or carried by tasks."""

    @property
    def counts(self) -> tuple[int, ...]: ...
    @property
    def features(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def reading_bytes(self) -> int:
        """Bytes that a task holds while it reads, besides the rows it keeps."""
        ...

    @property
    def kept_bytes(self) -> int:
        """Bytes of rows that all shards together keep between questions."""
        ...

    def hold(self, first: int, last: int) -> Shards:
        """Return the shards ``first:last``, numbered from 0, with their rows gathered if they are in memory."""
        ...

    def blocks(self, k: int) -> Iterator[Block]:
        """Yield the scaled rows of shard ``k`` in order; a block is valid until the next one."""
        ...


@dataclass(frozen=True, eq=False)
class ShardsInMemory:
    """Shards of raw rows ``X`` (n, d) in memory, dense or CSR.

    ``order`` (n,) has the row numbers shard by shard. An empty ``weight`` stands for weights of 1.
    """

    X: Any
    y: Array
    weight: Array
    order: Array
    counts: tuple[int, ...]
    scaling: Scaling | None

    @property
    def features(self) -> int:
        return int(self.X.shape[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.X.dtype)

    @property
    def reading_bytes(self) -> int:
        return 2 * DENSE_BYTES if issparse(self.X) else 0

    @property
    def kept_bytes(self) -> int:
        size = 16 * self.X.nnz if issparse(self.X) else self.X.nbytes
        return int(size) + 32 * len(self.y)

    def hold(self, first: int, last: int) -> HeldShards:
        begin = sum(self.counts[:first])
        bounds = [0, *accumulate(self.counts[first:last])]
        rows = self.order[begin : begin + bounds[-1]]
        # all at once, since the system allocates one large array in large pages, faster than many small ones
        X = self._rows(rows)
        y = self.y[rows]
        weight = self.weight[rows] if self.weight.size else self.weight
        found = tuple((rows_between(X, a, b), y[a:b], weight[a:b]) for a, b in pairwise(bounds))
        return HeldShards(found, self.features, self.dtype, None if self._is_scaled else self.scaling)

    @property
    def _is_scaled(self) -> bool:
        """Whether `hold` scales the rows. It scales sparse rows only if their zeros stay zeros."""
        return self.scaling is None or not issparse(self.X) or not self.scaling.shift.any()

    def _rows(self, rows: Array) -> Any:
        X = self.X[rows] if issparse(self.X) else self.X.take(rows, axis=0)  # four times as fast as by brackets
        if self.scaling is None or not self._is_scaled:
            return X
        if not issparse(X):
            return self.scaling(X, X)
        data = (X.data * self.scaling.factor[X.indices]).astype(X.dtype)
        return csr_array((data, X.indices, X.indptr), shape=X.shape)

    def blocks(self, k: int) -> Iterator[Block]:
        return self.hold(k, k + 1).blocks(0)


@dataclass(frozen=True, eq=False)
class HeldShards:
    """Shards gathered in memory. Their rows are scaled, except for sparse rows whose zeros would not stay zeros."""

    found: tuple[Block, ...]
    features: int
    dtype: np.dtype[Any]
    scaling: Scaling | None
    reading_bytes: int = 0
    kept_bytes: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        return tuple(len(y) for _, y, _ in self.found)

    def hold(self, first: int, last: int) -> HeldShards:
        return HeldShards(self.found[first:last], self.features, self.dtype, self.scaling)

    def blocks(self, k: int) -> Iterator[Block]:
        X, y, weight = self.found[k]
        if self.scaling is None:
            yield X, y, weight
            return
        step = max(1, DENSE_BYTES // max(1, X.shape[1] * X.dtype.itemsize))
        for start in range(0, len(y), step):
            part = slice(start, start + step)
            dense = np.ascontiguousarray(X[part].toarray())
            yield self.scaling(dense, dense), y[part], weight[part]  # empty weights stay empty


@dataclass(frozen=True, eq=False)
class ShardsOnDisk:
    """Shards on disk, which are the partitions ``first:last`` of ``partitions``."""

    partitions: StoredPartitions
    scaling: StoredScaling | None
    first: int
    last: int
    kept_bytes: int = 0

    @property
    def counts(self) -> tuple[int, ...]:
        return self.partitions.counts[self.first : self.last]

    @property
    def features(self) -> int:
        return self.partitions.features

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.partitions.dtype

    @property
    def reading_bytes(self) -> int:
        return self.partitions.reading_bytes + 32 * self.partitions.chunk_rows

    def hold(self, first: int, last: int) -> ShardsOnDisk:
        return ShardsOnDisk(self.partitions, self.scaling, self.first + first, self.first + last)

    def blocks(self, k: int) -> Iterator[Block]:
        partitions = self.partitions
        layout = self.partitions.array("X")
        raw = np.empty(layout.chunk_nbytes + CHECKSUM_BYTES, np.uint8)
        scaled = np.empty(0, layout.dtype)
        if self.scaling is not None:
            scaled = np.empty(layout.chunks, layout.dtype)
        for number, count in partitions.pieces(self.first + k, self.first + k + 1):
            X = read_plain_chunk(partitions.path, layout, number, raw)[:count]
            if self.scaling is not None:
                X = self.scaling(X, scaled[:count])
            columns = [read_plain_chunk(partitions.path, partitions.array(n), number)[:count] for n in ("y", "weight")]
            yield X, columns[0].astype(np.float64), columns[1]


# Questions to groups of shards ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class GroupOfShards:
    """The shards ``first:last``, with all that their task needs."""

    shards: Shards
    first: int
    last: int
    rule: LocalRule
    constant: bool

    @property
    def k(self) -> int:
        return self.shards.features + self.constant


def hold_group(group: GroupOfShards) -> GroupOfShards:
    """Return the group with its rows gathered."""
    held = group.shards.hold(group.first, group.last)
    return GroupOfShards(held, 0, group.last - group.first, group.rule, group.constant)


def begin_group(group: GroupOfShards) -> Array:
    """Return the first state of a group: no shard has made a pass yet."""
    return np.empty((0, group.k))


@dataclass(frozen=True, eq=False)
class Contents:
    """Counts of shards that have each feature (k,), and of negative and positive rows of each shard (m, 2)."""

    present: Array
    rows: Array

    def __add__(self, other: Contents) -> Contents:
        return Contents(self.present + other.present, np.concatenate([self.rows, other.rows]))


def contents_of_group(group: GroupOfShards, walked: Array, message: Any) -> Contents:
    """Count the `Contents` of a group."""
    present = np.ones(group.k, np.int64) * group.last
    rows = np.zeros((group.last, 2), np.int64)
    present[: group.shards.features] = 0
    for s in range(group.last):
        found = np.zeros(group.shards.features, np.bool_)
        for X, y, _ in group.shards.blocks(s):
            positive = int(np.count_nonzero(y > 0))
            rows[s] += [len(y) - positive, positive]
            if issparse(X):
                found[X.indices[X.data != 0]] = True
            else:
                mark_nonzero(frozen(X), found)
        present[: group.shards.features] += found
    return Contents(present, rows)


def walk_group(group: GroupOfShards, walked: Array, message: tuple[Array, int]) -> tuple[Array, Moments]:
    """Make a pass of every shard of a group from the common w. Returns the shards' weights (m, k) and their moments."""
    w, epoch = message
    ends = np.repeat(w[None], group.last, axis=0)
    counted = np.zeros((group.last, 2))
    for s, count in enumerate(group.shards.counts):
        seen = epoch * count
        for X, y, weight in group.shards.blocks(s):
            counted[s] += group.rule.walk(X, y, weight, ends[s], seen)
            seen += len(y)
    with np.errstate(over="ignore", invalid="ignore"):  # for this thread; the solver raises if weights overflow
        return ends, Moments.of(ends, counted)


def mix_group(group: GroupOfShards, walked: Array, centre: Centre) -> Mixture:
    """Return the mixture of a group."""
    return centre.mixture(walked)


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Number of rows of every shard that w gets wrong, (m,)."""

    wrong: Array

    def __add__(self, other: Verdicts) -> Verdicts:
        return Verdicts(np.concatenate([self.wrong, other.wrong]))


def judge_group(group: GroupOfShards, walked: Array, w: Array) -> Verdicts:
    """Count the rows of each shard of a group that w gets wrong; a score above 0 predicts the positive class."""
    wrong = np.zeros(group.last, np.int64)
    d = group.shards.features
    intercept = float(w[d]) if group.constant else 0.0
    for s in range(group.last):
        for X, y, _ in group.shards.blocks(s):
            wrong[s] += np.count_nonzero((X @ w[:d].astype(X.dtype) + X.dtype.type(intercept) > 0) != (y > 0))
    return Verdicts(wrong)


class ShardRounds:
    """A `dask_odm.methods.mixing.solver.MixingProblem` over a cluster's workers, or threads of this process.

    ``constant`` adds a constant feature of 1. ``scratch`` is a folder that all workers see, for checkpoints of the
    rounds. Raises MemoryLimitError if a worker cannot hold its shards.
    """

    def __init__(
        self, cluster: Cluster, shards: Shards, rule: LocalRule, constant: bool, scratch: str | None = None
    ) -> None:
        self.shards = len(shards.counts)
        self.k = shards.features + constant
        count = min(self.shards, MOST_GROUPS)
        bounds = [self.shards * g // count for g in range(count + 1)]
        groups = [GroupOfShards(shards, a, b, rule, constant) for a, b in pairwise(bounds)]
        self._require(cluster, shards, count)
        warm_up_passes(shards.dtype, rule)
        asked = {"hold": hold_group, "checkpoint_every": CHECKPOINT_EVERY, "scratch": scratch}
        self._rounds = Rounds(cluster, groups, begin_group, name="shards", **asked)  # type: ignore[arg-type]
        self.contents: Contents = self._rounds.read_sum(contents_of_group)

    def _require(self, cluster: Cluster, shards: Shards, groups: int) -> None:
        """Raise MemoryLimitError unless a worker can hold two states of its groups, and a task the answers of two."""
        each = -(-self.shards // groups) * self.k * 8
        held = 2 * each * (-(-groups // cluster.slots)) + shards.kept_bytes // cluster.workers // cluster.threads
        needed = held + each + 16 * 8 * self.k + shards.reading_bytes
        cluster.require(needed, cluster.slots, f"Mixing {self.shards} shards of {self.k} weights", ADVICE)

    @property
    def rows(self) -> int:
        return int(self.contents.rows.sum())

    def present(self) -> Array:
        return self.contents.present

    def walk(self, w: Array, epoch: int) -> Moments:
        moments: Moments = self._rounds.ask_sum(walk_group, (w, epoch))
        return moments

    def mix(self, centre: Centre) -> Mixture:
        mixture: Mixture = self._rounds.read_sum(mix_group, centre)
        return mixture

    def judge(self, w: Array) -> Array:
        """Count the rows of every shard that ``w`` gets wrong, (M,)."""
        verdicts: Verdicts = self._rounds.read_sum(judge_group, w)
        return verdicts.wrong
