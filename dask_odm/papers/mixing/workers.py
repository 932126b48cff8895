"""Parameter mixing on rounds: groups of shards stay with their workers, and two sums travel in each epoch.

An epoch of `dask_odm.papers.mixing.solver` is two questions. The first sends w; every shard makes its pass and keeps
its own w, and the moments of all shards are added up pair by pair. The second sends their mean and variance; the
shards' exponentials are added up relative to the largest. Only the workers hold more than one shard's w.

Shards are asked in groups, because a task takes milliseconds and the pass of a small shard takes less. The groups, and
the tree by which their answers are added up, follow from the number of shards alone. So the result does not depend on
the workers. Rows of a store are read from its partitions in every pass, through the page cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.rounds import Rounds
from dask_odm.papers.mixing.mixtures import Centre, Mixture, Moments
from dask_odm.papers.mixing.online_passes import LocalRule
from dask_odm.typing import Array


def shard_groups(shards: int) -> int:
    """Return the number of groups of shards, which are the tasks of an epoch: at most 32."""
    return min(shards, 32)


def require_memory(cluster: Cluster, shards: int, k: int, kept: int, reading: int) -> None:
    """Raise MemoryLimitError unless a worker can hold two states of its groups, and a task the answers of two.

    ``k`` is the number of weights. All workers keep ``kept`` bytes of rows, and a task holds ``reading`` bytes more.
    """
    groups = shard_groups(shards)
    each = -(-shards // groups) * k * 8
    held = 2 * each * (-(-groups // cluster.slots)) + kept // cluster.workers // cluster.threads
    needed = held + each + 16 * 8 * k + reading
    cluster.require(needed, cluster.slots, f"Mixing {shards} shards of {k} weights", ("fewer shards (n_shards)",))


@dataclass(frozen=True, eq=False)
class GroupOfShards:
    """The shards of some ``numbers``, with all that their task needs; rows in memory are scaled already."""

    partitions: Partitions
    scaling: Scaling | StoredScaling | None
    numbers: range
    rule: LocalRule
    constant: bool

    @property
    def d(self) -> int:
        return self.partitions.features

    @property
    def k(self) -> int:
        return self.d + self.constant

    def blocks(self) -> Iterator[tuple[int, Iterator[tuple[Any, Array, Array]]]]:
        """Yield the place of every shard in the group, with blocks of its rows, y (±1) and weights."""
        for s, number in enumerate(self.numbers):
            yield s, self.partitions.blocks(number, self.scaling)

    # What `dask_odm.engine.rounds.Rounds` begins with, and asks

    def begin(self) -> Array:
        """Return the first state: no shard has made a pass yet."""
        return np.empty((0, self.k))

    def contents(self, walked: Array, message: Any) -> tuple[Array, Array]:
        """Count the shards that have each feature (k,), and the negative and positive rows of each shard (m, 2)."""
        present = np.zeros(self.k, np.int64)
        present[self.d :] = len(self.numbers)
        rows = np.zeros((len(self.numbers), 2), np.int64)
        for s, blocks in self.blocks():
            found = np.zeros(self.d, np.bool_)
            for X, y, _ in blocks:
                positive = int(np.count_nonzero(y > 0))
                rows[s] += [len(y) - positive, positive]
                if issparse(X):
                    found[X.indices[X.data != 0]] = True
                else:
                    found |= X.any(axis=0)
            present[: self.d] += found
        return present, rows

    def walk(self, walked: Array, message: tuple[Array, int]) -> tuple[Array, Moments]:
        """Make a pass of every shard from the common w. Returns the shards' weights (m, k) and their moments."""
        w, epoch = message
        ends = np.repeat(w[None], len(self.numbers), axis=0)
        counted = np.zeros((len(self.numbers), 2))
        for s, blocks in self.blocks():
            seen = epoch * self.partitions.counts[self.numbers[s]]
            for X, y, weight in blocks:
                counted[s] += self.rule.walk(X, y, weight, ends[s], seen)
                seen += len(y)
        with np.errstate(over="ignore", invalid="ignore"):  # for this thread; the solver raises if weights overflow
            return ends, Moments.of(ends, counted)

    def mix(self, walked: Array, centre: Centre) -> Mixture:
        """Return the mixture of the shards."""
        return centre.mixture(walked)

    def judge(self, walked: Array, w: Array) -> Array:
        """Count the rows of each shard that w gets wrong, (m,).

        As in a prediction, a score above 0 is the positive class, and 0 the negative one.
        """
        wrong = np.zeros(len(self.numbers), np.int64)
        intercept = float(w[self.d]) if self.constant else 0.0
        for s, blocks in self.blocks():
            for X, y, _ in blocks:
                scores = X @ w[: self.d].astype(X.dtype) + X.dtype.type(intercept)
                wrong[s] += np.count_nonzero((scores > 0) != (y > 0))
        return wrong


class ShardRounds:
    """The sums that parameter mixing needs of shards, whose rows stay with workers, or threads of this process.

    The partitions are the ``shards``, of ``k`` weights each. ``constant`` adds a constant feature of 1. ``scratch`` is
    a folder that all workers see, for checkpoints of the rounds. ``present`` (k,) counts the shards that have each
    feature, and ``rows`` (M, 2) each shard's negative and positive rows.
    """

    def __init__(
        self,
        cluster: Cluster,
        partitions: Partitions,
        scaling: Scaling | StoredScaling | None,
        rule: LocalRule,
        constant: bool,
        scratch: str | None = None,
    ) -> None:
        self.shards = len(partitions.counts)
        self.k = partitions.features + constant
        count = shard_groups(self.shards)
        bounds = [self.shards * g // count for g in range(count + 1)]
        groups = [GroupOfShards(partitions, scaling, range(a, b), rule, constant) for a, b in pairwise(bounds)]
        # compiled once here, for the threads, and for workers on this machine, which load it from disk
        rule.walk(np.zeros((1, 1), partitions.dtype), np.ones(1), np.ones(1), np.zeros(1), 0)
        # a worker that dies costs its shards four epochs at most
        self._rounds = Rounds(cluster, groups, GroupOfShards.begin, name="shards", checkpoint_every=4, scratch=scratch)
        present, rows = zip(*self._rounds.read(GroupOfShards.contents), strict=True)
        self.present: Array = sum(present)
        self.rows = np.concatenate(rows)

    def walk(self, w: Array, epoch: int) -> Moments:
        """Make a pass of every shard from ``w``. The shards keep the w that each ends with."""
        return self._rounds.ask(GroupOfShards.walk, (w, epoch), summed=True)

    def mix(self, centre: Centre) -> Mixture:
        """Mix the weights that the shards' passes ended with."""
        return self._rounds.read(GroupOfShards.mix, centre, summed=True)

    def judge(self, w: Array) -> Array:
        """Count the rows of every shard that ``w`` gets wrong, (M,)."""
        return np.concatenate(self._rounds.read(GroupOfShards.judge, w))
