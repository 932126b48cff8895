"""Columns mapped to the ranks of their values, as trees see them: piecewise linear through quantiles of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.store.statistics import EntryStatistics, Statistics, StatisticsAccumulator
from dask_odm.linalg.jit import Emitted, compiled_in_order, frozen, inlined, pointer
from dask_odm.typing import Array

QUANTILES = 254  # of a column, at most; its ends and zero are knots, too
MOST_KNOTS = QUANTILES + 3  # of a column, which two searches of 16 numbers tell apart
LEAST_QUANTILES = 30  # of a column of very many, whose knots would take more memory than landmarks
WIDEST = 3.0  # most deviations of a normal score from its mean
SAMPLED_ROWS = 1 << 15  # with which ranks are off by less than the distance of two quantiles
SAMPLED_ENTRIES = 1 << 20  # of fewer rows, if they have more
PIECE_ENTRIES = 1 << 16  # that are sorted at a time, or mapped


def sampled_rows(width: float) -> int:
    """Return of how many rows of so many entries the ranks are taken; of at most as many they are exact."""
    return min(SAMPLED_ROWS, max(1024, int(SAMPLED_ENTRIES / max(1.0, width))))


def ranks_bytes(d: int, width: float) -> int:
    """Return the most bytes of the ranks of ``d`` columns of rows with ``width`` entries, and of their file."""
    found = min(d * quantiles(d), int(sampled_rows(width) * width))
    return (2 * 16 + 32) * (found + 3 * d) + 8 * (found + 35 * d)  # with lines between knots, and what is searched


def quantiles(d: int) -> int:
    """Return the quantiles of each of ``d`` columns."""
    return min(QUANTILES, max(LEAST_QUANTILES, PIECE_ENTRIES * 4 // d))


@dataclass(frozen=True, eq=False)
class Ranks:
    """Map of column j through the ``knots`` and ``levels`` from ``bounds[j]`` to ``bounds[j + 1]``, both ascending.

    It is linear between knots, and constant beyond the least and the largest, so that levels are at most 1 apart. Zero
    has the level 0, or is below or above all knots. Knots and levels are float64, and ``bounds`` (d + 1,) int64.
    """

    bounds: Array
    knots: Array
    levels: Array
    _searched: dict[Any, tuple[Array, Array]] = field(init=False, repr=False, default_factory=dict)
    parts: ClassVar[tuple[str, ...]] = ("rank_bounds", "rank_knots", "rank_levels")

    @classmethod
    def of_rows(cls, X: Any, weight: Array, statistics: Statistics) -> Ranks:
        """Return the ranks of a sample ``X`` (n, d), dense or CSR, with row weights; ``statistics`` are of all rows.

        A level is the normal score of the middle rank among the values that are not zero, moved and stretched so that
        the whole range is 1. Dense and sparse rows have the same levels, and so do 0 and 1 in a column of these.
        """
        d = X.shape[1]
        X = X.tocsc() if issparse(X) else X
        step = max(1, PIECE_ENTRIES * d // max(X.nnz if issparse(X) else X.size, d))
        parts = quantiles(d)
        found = [_piece(X, weight, statistics, slice(j, min(j + step, d)), parts) for j in range(0, d, step)]
        counts, knots, levels = map(np.concatenate, zip(*found, strict=True))
        return cls(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), knots, levels)

    def __call__(self, X: Array, out: Array, shift: Array, factor: Array) -> Array:
        """Write ``(levels − shift) · factor`` of the rows ``X`` (n, d) to ``out``, which may be X, and return it."""
        if X.dtype not in self._searched:
            self._searched[X.dtype] = self._searched_by(X.dtype)
        searched = self._searched[X.dtype]
        of_columns = frozen(self.bounds), self._lines, frozen(shift), frozen(factor)
        _rank_rows(frozen(np.ascontiguousarray(X)), *searched, *of_columns, out)
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.bounds, self.knots, self.levels)

    def _searched_by(self, dtype: Any) -> tuple[Array, Array]:
        """Return where the table of each column starts, (d,), and all tables of knots as numbers of ``dtype``.

        A table has 16 of the knots, and then all knots above the first, of which those are each 16th. NaN fill it up.
        """
        counts = np.diff(self.bounds)
        sizes = 32 + (counts - 1) // 16 * 16
        starts = np.cumsum(sizes) - sizes
        reached = self.knots.astype(dtype)  # numbers of the rows reach the same knots if these are rounded up
        reached = np.where(reached < self.knots, np.nextafter(reached, np.inf, dtype=dtype), reached)
        tables = np.full(sizes.sum(), np.nan, dtype)
        place = np.arange(len(reached)) - np.repeat(self.bounds[:-1], counts) - 1
        first = np.repeat(starts, counts)
        tables[(first + 16 + place)[place >= 0]] = reached[place >= 0]
        each = place % 16 == 15
        each &= place >= 0
        tables[(first + place // 16)[each]] = reached[each]
        return frozen(starts), frozen(tables)

    def entries(self, X: Any) -> Array:
        """Return the levels of the stored entries of a CSR array ``X`` (n, d), float64; zeros have 0."""
        out = np.empty(X.nnz)
        columns = frozen(X.indices.astype(np.int32, copy=False))
        _rank_entries(frozen(X.data), columns, frozen(self.bounds), frozen(self.knots), self._lines, out)
        return out

    @cached_property
    def _lines(self) -> Array:
        """What is read of a knot, side by side: the knot, the distance of the next one, and the level and its rise."""
        with np.errstate(over="ignore"):
            gaps, rises = np.diff(self.knots, append=np.inf), np.diff(self.levels, append=0.0)
        lines = np.column_stack([self.knots, gaps, self.levels, rises])
        lines[self.bounds[1:] - 1, 1::2] = 1.0, 0.0  # the last knot of a column
        return frozen(lines.ravel())

    def same(self, other: Ranks | None) -> bool:
        """Return whether the ``other`` ones map all columns alike."""
        return other is not None and all(map(np.array_equal, self.arrays().values(), other.arrays().values()))

    def statistics(self, X: Any, weight: Array) -> Statistics:
        """Return the statistics of the levels of a sample ``X`` (n, d), with the ends of all of them."""
        gathered: EntryStatistics | StatisticsAccumulator
        if issparse(X):
            gathered = EntryStatistics(X.shape[1])
            gathered.update(csr_array((self.entries(X), X.indices, X.indptr), shape=X.shape), weight)
        else:
            d = X.shape[1]
            gathered = StatisticsAccumulator(d)
            step = max(1, PIECE_ENTRIES // d)
            for rows in (slice(start, start + step) for start in range(0, len(X), step)):
                out = np.empty_like(X[rows], order="C")
                gathered.update(self(X[rows], out, np.zeros(d), np.ones(d)), weight[rows])
        first, last = self.bounds[:-1], self.bounds[1:] - 1
        return replace(gathered.result(), minimum=self.levels[first], maximum=self.levels[last], ranks=self)

    def arrays(self) -> dict[str, Array]:
        """Return what `of_arrays` makes the ranks of: arrays of a model's record."""
        return dict(zip(self.parts, (self.bounds, self.knots, self.levels), strict=True))

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any], d: int) -> Ranks:
        """Build the ranks of ``d`` columns from their `arrays`; raise ValueError if they do not fit each other."""
        found = cls(*(arrays[name] for name in cls.parts))
        bounds, knots, levels = found.bounds, found.knots, found.levels
        shaped = bounds.dtype == np.int64 and bounds.shape == (d + 1,) and knots.dtype == levels.dtype == np.float64
        shaped = shaped and knots.shape == levels.shape == (bounds[-1],)
        counts = np.diff(bounds)
        if not shaped or bounds[0] != 0 or counts.min() < 1 or counts.max() > MOST_KNOTS:
            raise ValueError(f"ranks of shapes {bounds.shape}, {knots.shape} and {levels.shape} for {d} features")
        within = np.ones(len(knots) - 1, bool)
        within[bounds[1:-1] - 1] = False  # between a column and the next one
        ascending = (np.diff(knots) > 0) | ~within, (np.diff(levels) >= 0) | ~within
        if not np.isfinite(knots).all() or not np.isfinite(levels).all() or not np.all(ascending):
            raise ValueError("ranks that do not ascend")
        return found


@np.errstate(over="ignore", invalid="ignore")  # of a column whose width is not finite
def _piece(X: Any, weight: Array, statistics: Statistics, columns: slice, parts: int) -> tuple[Array, Array, Array]:
    """Return counts, knots and levels of some columns of dense or CSC rows, for so many quantiles."""
    from scipy.special import ndtri  # not at the top: tasks load this module

    low, high = statistics.minimum[columns], statistics.maximum[columns]
    numbers = np.arange(len(low))
    some = X[:, columns]
    if issparse(some):
        values, of, mass = some.data, np.repeat(numbers, np.diff(some.indptr)), weight[some.indices]
    else:
        values, of, mass = some.T.ravel(), np.repeat(numbers, len(some)), np.tile(weight, len(numbers))
    values = np.concatenate([values, low, high, np.clip(0.0, low, high)])  # the last is what zero is mapped like
    of = np.concatenate([of, np.tile(numbers, 3)])
    mass = np.concatenate([np.where(values[: len(mass)] == 0, 0.0, mass), np.zeros(3 * len(numbers))])
    order = np.lexsort((values, of))
    values, of, mass = values[order], of[order], mass[order]
    starts = np.flatnonzero(np.r_[True, (np.diff(of) > 0) | (np.diff(values) > 0)])
    values, of, mass = values[starts], of[starts], np.add.reduceat(mass, starts)
    is_first, is_last = np.r_[True, np.diff(of) > 0], np.r_[np.diff(of) > 0, True]
    before = np.cumsum(mass) - mass
    before -= before[is_first][of]
    total = (before + mass)[is_last][of]
    width = np.where(high > low, high - low, 1.0)[of]  # of a column with zeros alone in the sample
    rank = np.where(total > 0, (before + 0.5 * mass) / np.where(total > 0, total, 1.0), (values - low[of]) / width)
    level = np.clip(ndtri(rank), -WIDEST, WIDEST)
    least, most = level[is_first], level[is_last]
    level = (level - least[of]) / np.where(most > least, most - least, 1.0)[of]
    bucket = np.floor(0.5 * (rank + level) * parts)  # levels are farther apart than ranks at the ends
    zero = values == np.clip(0.0, low, high)[of]
    kept = is_first | is_last | zero | np.r_[True, np.diff(bucket) != 0]
    return np.bincount(of[kept], minlength=len(numbers)), values[kept], (level - level[zero][of])[kept]


@inlined
def _between(x: float, at: int, lines: Array) -> float:
    """Return the level of ``x``, of which the knot ``at`` is the last one below, or the first one of its column."""
    share = min(max((x - lines[4 * at]) / lines[4 * at + 1], 0.0), 1.0)
    return lines[4 * at + 2] + share * lines[4 * at + 3]


@Emitted
def _reached(typing: Any, knots: Any, at: Any, x: Any) -> Any:
    """Return how many of the 16 numbers of ``knots`` from ``at`` on are at most ``x``; none that is NaN."""
    from llvmlite import ir
    from numba import types

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        table, at, x = given
        lanes = ir.VectorType(x.type, 16)
        held = builder.load(builder.bitcast(builder.gep(table, [at]), lanes.as_pointer()), align=4)
        nothing = ir.Constant(lanes, ir.Undefined)
        first = ir.Constant(ir.VectorType(ir.IntType(32), 16), None)
        each = builder.shuffle_vector(builder.insert_element(nothing, x, ir.IntType(32)(0)), nothing, first)
        reached = builder.bitcast(builder.fcmp_ordered("<=", held, each), ir.IntType(16))
        return builder.zext(builder.ctpop(reached), ir.IntType(64))

    return types.int64(knots, at, x), generate


@compiled_in_order
def _rank_rows(
    X: Array, starts: Array, tables: Array, bounds: Array, lines: Array, shift: Array, factor: Array, out: Array
) -> None:
    """Map some rows at a time, a column after the other: 16 of its knots tell which 16 others tell where a value is."""
    count = 512
    x, at = np.empty(count), np.empty(count, np.int64)
    given, searched, of_knots = pointer(X), pointer(tables), pointer(lines)
    for start in range(0, X.shape[0], count):
        rows = min(count, X.shape[0] - start)
        for j in range(X.shape[1]):
            for i in range(rows):
                value = given[(start + i) * X.shape[1] + j]
                some = 16 * _reached(searched, starts[j], value)
                at[i] = bounds[j] + some + _reached(searched, starts[j] + 16 + some, value)
                x[i] = value
            for i in range(rows):
                out[start + i, j] = (_between(x[i], at[i], of_knots) - shift[j]) * factor[j]


@compiled_in_order
def _rank_entries(data: Array, indices: Array, bounds: Array, knots: Array, lines: Array, out: Array) -> None:
    """Map the entries of CSR rows."""
    for e in range(data.size):
        x = np.float64(data[e])
        at = bounds[indices[e]]
        left = bounds[indices[e] + 1] - at
        while left > 1:
            half = left >> 1
            at += half * (knots[at + half] <= x)
            left -= half
        out[e] = _between(x, at, lines)
