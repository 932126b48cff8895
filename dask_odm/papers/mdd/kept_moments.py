"""The moments that a model keeps, so that more rows can be added to them with the bits of a fit of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.learning.problem.features import FeatureMap
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.mdd.moments import ORIGIN_ROWS, Embedding, MomentQuery, joined, point_near
from dask_odm.papers.mdd.sum_tree import MomentSums, Tail
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class KeptMoments:
    """The moments of all rows of a model of one shard, to which more rows can be added.

    ``bounds`` (2, d) are the least and the largest value of every feature, NaN if no scaling needed them. Rows are of
    the type ``dtype``, and ``sparse`` or dense; those without a weight are left out, or counted if ``in_store``.
    """

    query: MomentQuery
    sums: MomentSums
    bounds: Array
    dtype: str
    sparse: bool
    in_store: bool

    @property
    def targets(self) -> int:
        return len(self.query.y_origin)

    def with_rows(self, blocks: Iterable[RowBlock]) -> KeptMoments:
        """Return the moments with more rows behind the others, whose y is (n, t), and which have weights.

        They have the bits of a pass over all rows: the rows that are left of a piece go on where they ended.
        """
        tail = self.sums.tail
        blocks = iter(blocks)
        first = sum(1 << level for level, _ in self.sums.nodes) * self.query.block_rows
        begun = None
        if tail is not None:
            first = tail.rows.first
            begun = tail.begun.copy() if first % self.query.block_rows else None
            blocks = chain([tail.rows], blocks)
        query = self.query
        if first == 0:  # no row was summed, for which the origin would have to stay
            head = next(blocks)
            needed = min(ORIGIN_ROWS, query.block_rows)
            while len(head) < needed and (more := next(blocks, None)) is not None:
                head = joined(head, more)
            blocks = chain([head], blocks)
            origin, y_origin = point_near(head.X[:needed], head.y[:needed], head.weight[:needed])
            query = replace(query, embedding=replace(query.embedding, origin=origin), y_origin=y_origin)
        bounds = self.bounds.copy()
        added = query.sums(query.cut(_bounded(blocks, bounds), first), begun)
        return replace(self, query=query, sums=MomentSums(self.sums.nodes) + added, bounds=bounds)

    def attributes(self) -> dict[str, Any]:
        """Return fitted attributes: one array with k columns, and what `unpacked` needs to tell its rows apart."""
        k = self.query.k
        t = self.targets
        parts = [np.append(self.query.embedding.origin, [*self.query.y_origin, 0.0])[None]]
        parts.append(np.hstack([self.bounds, np.zeros((2, t + 1))]))
        parts += [self.sums.nodes[key][0, :k, :k] for key in self.sums.order()]
        tail = self.sums.tail
        begun = 0
        blocks = sum(1 << level for level, _ in self.sums.nodes)
        if tail is not None:
            begun = tail.rows.first - blocks * self.query.block_rows
            X = tail.rows.X.toarray() if self.sparse else tail.rows.X
            parts += [tail.begun[0, :k, :k]] if begun else []
            parts.append(np.column_stack([X, tail.rows.y, tail.rows.weight]))
        told = {
            "blocks": blocks, "block_rows": self.query.block_rows, "begun": begun, "targets": t, "dtype": self.dtype,
            "sparse": self.sparse, "in_store": self.in_store,
        }  # fmt: skip
        return {"moments_": np.vstack(parts), "moments_layout_": told}

    @classmethod
    def unpacked(cls, moments: Array, told: dict[str, Any], features: int) -> KeptMoments:
        """Undo `attributes`. Raises ValueError, KeyError or TypeError for moments of something else.

        The sums of the tail are those of its whole pieces, since `with_rows` takes its rows first.
        """
        block_rows = int(told["block_rows"])
        blocks = int(told["blocks"])
        begun = int(told["begun"])
        t = int(told["targets"])
        d = features
        k = d + t + 1
        levels = [level for level in range(blocks.bit_length()) if blocks >> level & 1][::-1]
        rest = 3 + k * (len(levels) + (begun > 0))
        if moments.ndim != 2 or moments.shape[1] != k or t < 1 or not 0 <= begun < block_rows or len(moments) < rest:
            raise ValueError("moments of another shape")
        query = MomentQuery(Embedding(FeatureMap(d, 0.0), moments[0, :d]), moments[0, d:-1], block_rows)

        def sums(at: int) -> Array:
            found = np.zeros((1, query.side, query.side))
            found[0, :k, :k] = moments[at : at + k]
            return found

        nodes = {}
        place = 0
        for i, level in enumerate(levels):
            nodes[level, place >> level] = sums(3 + k * i)
            place += 1 << level
        tail = None
        if len(moments) > rest or begun:
            X = moments[rest:, :d].astype(np.dtype(told["dtype"]))
            X = csr_array(X) if told["sparse"] else X
            rows = RowBlock(X, moments[rest:, d:-1], moments[rest:, -1], blocks * block_rows + begun)
            before = sums(rest - k) if begun else np.zeros((1, query.side, query.side))
            tail = Tail(blocks, before, before, rows)
        return cls(
            query, MomentSums(nodes, tail), moments[1:3, :d], str(told["dtype"]), bool(told["sparse"]),
            bool(told["in_store"]),
        )  # fmt: skip


def _bounded(blocks: Iterable[RowBlock], bounds: Array) -> Iterator[RowBlock]:
    """Yield the blocks; widen ``bounds`` (2, d) to their rows of positive weight, unless they are NaN."""
    for block in blocks:
        seen = block.X[np.flatnonzero(block.weight > 0)]
        if seen.shape[0] and not np.isnan(bounds).any():
            low, high = seen.min(axis=0), seen.max(axis=0)
            if issparse(seen):
                low, high = low.toarray().ravel(), high.toarray().ravel()
            np.minimum(bounds[0], low, out=bounds[0])
            np.maximum(bounds[1], high, out=bounds[1])
        yield block
