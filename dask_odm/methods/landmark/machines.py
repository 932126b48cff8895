"""Sums over rows of all machines of many classes, which share landmarks.

Machine j is the Nyström problem of `dask_odm.methods.landmark.problem` over the rows of its own classes. All rows of a
class have the same target and the same stiffness in a machine, up to their weights. So rows are taken class by class,
and scores and sums of all machines of a class are matrix products with the same kernel values K (n, r): with
coefficients A (machines, r), scores are ``K Aᵀ``, and sums ``Uᵀ K`` of their dual variables U (n, machines).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial, reduce
from itertools import pairwise
from operator import add
from typing import Any

import numpy as np

from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.learning.problem.nystrom_features import span_images, span_products
from dask_odm.linalg.row_passes import Passes, RowBlock, ThreadPasses
from dask_odm.methods.landmark.class_means import ClassSamples
from dask_odm.methods.landmark.query import TILE_BYTES, SpanQuery, row_blocks
from dask_odm.methods.landmark.sketch import PrioritySample
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class MachineSums:
    """Sums over rows of every machine: the loss (m,), and ``Uᵀ K`` (m, r), which is minus its gradient.

    ``curvatures`` (m, classes) are the sums of the losses' second derivatives over each class. ``outside`` tells, block
    by block, which margins lie below the band, and which above; see `MachineQuery.product`. Those of passes are in
    groups of blocks.
    """

    loss: Array
    image: Array
    curvatures: Array
    outside: tuple[Any, ...]

    def __add__(self, other: MachineSums) -> MachineSums:
        return MachineSums(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


@dataclass(frozen=True, eq=False)
class MachineQuery:
    """Sums of several machines over blocks of rows. Tasks carry it.

    ``span`` computes kernel values, and has the band of the loss. ``signs`` (classes, m) are the targets of the rows of
    a class in each machine, and ``stiffness`` (classes, m) their largest second derivatives for a weight of 1. It is
    zero if the machine leaves the class out. The targets of a block are codes of classes; a row with a negative code is
    dropped. Rows in memory are sorted by class.
    """

    span: SpanQuery
    signs: Array
    stiffness: Array

    @classmethod
    def of(cls, span: SpanQuery, settings: ODMSettings, positive: Array, weights: Array, totals: Array) -> MachineQuery:
        """Build the query of machines whose positive classes are ``positive`` (m,).

        ``weights`` (classes, m) are their class weights, zero for classes that a machine leaves out, and ``totals``
        (classes,) the sums of the row weights of each class.
        """
        unit = settings.stiffness / np.maximum(totals @ weights, np.finfo(float).tiny)
        signs = np.where(np.arange(len(totals))[:, None] == positive, 1.0, -1.0)
        return cls(replace(span, loss=BandLoss(settings, 1.0)), signs, unit * weights)

    def __getstate__(self) -> dict[str, Any]:
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def of_machines(self, some: Array | slice) -> MachineQuery:
        """Return the query of some of the machines."""
        return replace(self, signs=self.signs[:, some], stiffness=self.stiffness[:, some])

    @cached_property
    def machines(self) -> list[Array]:
        """Numbers of the machines that learn from each class."""
        return [np.flatnonzero(row) for row in self.stiffness]

    @property
    def width(self) -> int:
        """The most machines that learn from one class."""
        return max(map(len, self.machines))

    @property
    def tile_rows(self) -> int:
        """Number of rows whose kernel values are computed at a time."""
        return tile_rows(self.span.r, self.span.dtype.itemsize)

    def sums(self, blocks: Iterable[RowBlock], A: Array) -> MachineSums:
        """Return losses, sums and margins outside the band at coefficients ``A`` (m, r)."""
        total = reduce(add, (self._sums(block, A) for block in blocks))
        return replace(total, outside=(total.outside,))

    @np.errstate(over="ignore", invalid="ignore")  # set per thread; the solver finds what is not finite
    def _sums(self, block: RowBlock, A: Array) -> MachineSums:
        loss = np.zeros(len(A))
        image = np.zeros(A.shape)
        curvatures = np.zeros(self.stiffness.T.shape)
        outside = np.zeros((2, len(block), -(-self.width // 8)), np.uint8)
        settings = self.settings
        A = A.astype(self.span.dtype, copy=False)
        for rows, code, K in self._tiles(block):
            own = self.machines[code]
            margins, sign = self._margins(block, rows, code, own, K @ A[own].T)
            below, above = settings.outside(margins)
            stiffness = self._row_stiffness(block, rows, code, own)
            slope = (below - settings.upsilon * above) * stiffness
            curvature = ((below > 0) + K.dtype.type(settings.upsilon) * (above > 0)) * stiffness
            curvatures[own, code] += curvature.sum(axis=0, dtype=np.float64)
            loss[own] += 0.5 * np.einsum("ij,ij->j", slope, below - above, dtype=np.float64)
            part = np.zeros((len(own), self.span.r))
            span_images(K, slope * sign, part)
            image[own] += part
            for plane, each in zip(outside, (below, above), strict=True):
                bits = np.packbits(each > 0, axis=1)
                plane[rows, : bits.shape[1]] = bits
        return MachineSums(loss, image, curvatures, (outside,))

    @np.errstate(over="ignore", invalid="ignore")
    def product(self, blocks: Iterable[RowBlock], P: Array, some: Array, outside: Sequence[Array]) -> Array:
        """Return ``Kᵀ (c ∘ K p)`` for each p of ``P`` (k, r), summed in float64.

        ``some`` (k,) are the machines, in ascending order. The curvatures c follow from the margins ``outside`` the
        band that `sums` returned for these blocks.
        """
        image = np.zeros(P.shape)
        place = np.full(self.stiffness.shape[1], -1)
        place[some] = np.arange(len(some))
        # of each class: columns of its machines among those of `sums`, and rows of P
        columns = [np.flatnonzero(place[own] >= 0) for own in self.machines]
        wanted = np.array([len(each) > 0 for each in columns])
        for block, planes in zip(blocks, outside, strict=True):
            for rows, code, K in self._tiles(block, wanted):
                own = self.machines[code]
                at = columns[code]
                bits = np.unpackbits(planes[:, rows], axis=2, count=len(own)).astype(K.dtype)
                curvature = (bits[0] + K.dtype.type(self.settings.upsilon) * bits[1])[:, at]
                curvature *= self._row_stiffness(block, rows, code, own[at])
                part = np.zeros((len(at), self.span.r))
                span_products(K, curvature, P[place[own[at]]], part)
                image[place[own[at]]] += part
        return image

    def samples(self, blocks: Iterable[RowBlock], size: int, seed: int) -> ClassSamples:
        """Return up to ``size`` rows of every class, drawn by their weights."""
        return reduce(add, (self._samples(block, size, seed) for block in blocks))

    def _samples(self, block: RowBlock, size: int, seed: int) -> ClassSamples:
        found = {}
        for code in np.unique(block.y[block.y >= 0]).astype(int):
            weight = (block.y == code) * (block.weight if block.weight.size else 1.0)
            read = partial(self.span.read, block)
            found[code] = PrioritySample.draw(weight, block.y, block.first, read, size, seed)
        return ClassSamples(found)

    @property
    def settings(self) -> ODMSettings:
        assert isinstance(self.span.loss, BandLoss)
        return self.span.loss.settings

    def _margins(self, block: RowBlock, rows: Any, code: int, own: Array, scores: Array) -> tuple[Array, Array]:
        """Return the margins of some rows of a class with ``scores`` (rows, machines), and their signs."""
        sign = self.signs[code, own].astype(scores.dtype)
        return scores * sign, sign

    def _row_stiffness(self, block: RowBlock, rows: Any, code: int, own: Array) -> Array:
        """Return the largest second derivatives of some rows of a class, (1 or rows, machines)."""
        unit = self.stiffness[code, own][None].astype(self.span.dtype)
        return unit * block.weight[rows, None].astype(self.span.dtype) if block.weight.size else unit

    def _tiles(self, block: RowBlock, wanted: Array | None = None) -> Iterator[tuple[Any, int, Array]]:
        """Yield the places of some rows of one class in a block, the class, and the kernel values of these rows.

        Only ``wanted`` classes (classes,) are yielded, by default those of any machine. Tiles are the same in every
        pass, since BLAS rounds by place in a tile.
        """
        if wanted is None:
            wanted = np.array([len(own) > 0 for own in self.machines])
        order: Any = np.argsort(block.y, kind="stable") if self.span.streamed else None
        codes = (block.y if order is None else block.y[order]).astype(np.int64)
        step = self.tile_rows
        buffer = np.empty((min(step, len(codes)), self.span.r), self.span.dtype) if block.values is None else None
        for start in range(0, len(codes), step):
            stop = min(start + step, len(codes))
            here = codes[start:stop]
            if not wanted[here[here >= 0]].any():
                continue
            rows = slice(start, stop) if order is None else order[start:stop]
            K = self.span.tile(self.span.read(block, rows), buffer) if block.values is None else block.values[rows]
            ends = [0, *(np.flatnonzero(np.diff(here)) + 1).tolist(), len(here)]
            for first, last in pairwise(ends):
                code = int(here[first])
                if code >= 0 and wanted[code]:
                    some = slice(start + first, start + last)
                    yield some if order is None else order[some], code, K[first:last]


@dataclass(frozen=True, eq=False)
class TargetQuery(MachineQuery):
    """Sums of machines over the same rows, all of one class; block by block, y (n, t) has each machine's targets.

    ``columns`` (m,) are those of the machines. Labels are −1 or 1, and ``signs`` (1, m) are the weights of positive
    ones relative to the others. They are 0 for real targets.
    """

    columns: Array

    def of_machines(self, some: Array | slice) -> MachineQuery:
        return replace(super().of_machines(some), columns=self.columns[some])  # type: ignore[call-arg]

    def _targets(self, block: RowBlock, rows: Any, own: Array) -> Array:
        return block.y[rows].take(self.columns[own], axis=1)

    def _margins(self, block: RowBlock, rows: Any, code: int, own: Array, scores: Array) -> tuple[Array, Array]:
        y = self._targets(block, rows, own).astype(scores.dtype)
        return (scores * y, y) if self.signs.any() else (scores - y, np.ones((1, 1), scores.dtype))

    def _row_stiffness(self, block: RowBlock, rows: Any, code: int, own: Array) -> Array:
        unit = super()._row_stiffness(block, rows, code, own)
        if np.isin(self.signs, (0.0, 1.0)).all():
            return unit
        return unit * np.where(self._targets(block, rows, own) > 0, self.signs[0, own], 1.0).astype(unit.dtype)

    def _samples(self, block: RowBlock, size: int, seed: int) -> ClassSamples:
        weight = block.weight if block.weight.size else np.ones(len(block))
        read = partial(self.span.read, block)
        return ClassSamples({0: PrioritySample.draw(weight, np.ones(len(block)), block.first, read, size, seed)})

    def _tiles(self, block: RowBlock, wanted: Array | None = None) -> Iterator[tuple[Any, int, Array]]:
        step = self.tile_rows
        buffer = np.empty((step, self.span.r), self.span.dtype) if block.values is None else None
        for start in range(0, len(block), step):
            rows = slice(start, min(start + step, len(block)))
            kept = block.values
            yield rows, 0, self.span.tile(self.span.read(block, rows), buffer) if kept is None else kept[rows]


@dataclass(frozen=True, eq=False)
class MachineProblem:
    """All machines over all rows; every method takes one pass.

    ``passes`` are over blocks in the form that the query takes. ``exact`` are passes over the same rows without kept
    kernel values, for those in float64.
    """

    query: MachineQuery
    passes: Passes
    exact: Passes

    @classmethod
    def over_rows(
        cls, query: MachineQuery, rows: Any, codes: Array, weight: Array, budget: int, threads: int
    ) -> MachineProblem:
        """Build the problem over ``rows`` in memory, sorted by their ``codes`` (n,), as the kernel sees them.

        Their kernel values are kept if they fit ``budget`` bytes. Budget and threads never change the result.
        """
        query = replace(query, span=replace(query.span, scaling=None, streamed=False))
        blocks = row_blocks(rows, codes, weight)
        exact = ThreadPasses([[block] for block in blocks], threads)
        if len(rows) * query.span.value_bytes > budget:
            return cls(query, exact, exact)
        kept = query.span.kept(blocks, query.tile_rows, threads)
        passes = ThreadPasses([[block] for block in kept], threads)
        return cls(query, passes, exact if query.span.dtype != np.float64 else passes)

    @classmethod
    def over_passes(cls, query: MachineQuery, passes: Passes) -> MachineProblem:
        """Build the problem over passes of raw rows; the query has their scaling."""
        return cls(replace(query, span=replace(query.span, streamed=passes.streamed)), passes, passes)

    def sums(self, some: Array, A: Array, *, double: bool) -> MachineSums:
        """Return the sums of ``some`` machines (k,) at coefficients ``A`` (k, r).

        With ``double``, kernel values and sums are in float64 whatever the rows' dtype.
        """
        query = self.query.of_machines(some)
        query = replace(query, span=replace(query.span, double=double))
        passes = self.exact if double else self.passes
        return passes.run(query, MachineQuery.sums, A, nbytes=A.nbytes, kept="outside")

    def samples(self, size: int, seed: int) -> ClassSamples:
        """Return up to ``size`` rows of every class, as the kernel sees them, drawn by their weights."""
        return self.exact.run(self.query, MachineQuery.samples, size, seed)

    def product(self, of: Array, at: MachineSums, P: Array, some: Array) -> Array:
        """Return the products of `MachineQuery.product` for the machines ``of[some]``, with the sums ``at`` those."""
        query = self.query.of_machines(of)
        return self.passes.run(query, MachineQuery.product, P, some, of_groups=at.outside, nbytes=P.nbytes)


def tile_rows(r: int, itemsize: int) -> int:
    """Return the number of rows whose values at ``r`` landmarks are computed at a time."""
    # enough rows of every class for products of full speed
    return max(64, 8 * TILE_BYTES // (r * itemsize) // 4 * 4)
