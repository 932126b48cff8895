"""Choose landmarks: uniformly, or by randomly pivoted Cholesky, in blocks with rejection.

Sources: Chen, Epperly, Tropp and Webber, *Randomly pivoted Cholesky* (2023); Epperly, Tropp and Webber, *Embrace
rejection* (2024). A row's residual is the part of its κ(x, x) that the pivots so far do not explain. The next pivot is
drawn in proportion to the residuals. Here a block of proposals is drawn by the residuals before the block. Each
proposal in turn is accepted with probability (its residual now)/(its residual before the block). The distribution of
the pivots does not depend on the size of a block. So blocks are large: proposals cost little compared with the pass
over all rows that each block takes.

Departure from the papers: a block is drawn without replacement, by a race of exponential variates, so that chunks of
rows can run it independently. A rejected row gets its second chance in the next block.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from dask_odm.errors import NO_ROWS, InputError
from dask_odm.kernels.base import BLOCK, Kernel
from dask_odm.kernels.landmarks import VANISHES, Landmarks, rank_floor
from dask_odm.linalg.csr_rows import stacked_rows
from dask_odm.linalg.rows import RowsOfMatrix
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.typing import Array

_FIRST = 64  # pivots of the first block if ``trace`` decides on their number; each block doubles it
_PANEL = 128  # proposals that are decided on before the residuals of the others are updated


@dataclass(frozen=True, eq=False)
class Proposals:
    """Rows that were drawn: their keys of the race (ascending) and numbers, both (b,).

    ``seen`` counts the rows that they were drawn from, and ``totals`` has the residual of each chunk.
    """

    keys: NDArray[np.float64]
    numbers: NDArray[np.int64]
    seen: int
    totals: tuple[float, ...]

    @classmethod
    def merged(cls, parts: Sequence[Proposals], most: int) -> Proposals:
        """Return the first ``most`` proposals of all parts; the result does not depend on how chunks are grouped."""
        keys = np.concatenate([part.keys for part in parts])
        numbers = np.concatenate([part.numbers for part in parts])
        first = np.lexsort((numbers, keys))[:most]
        totals = tuple(total for part in parts for total in part.totals)
        return cls(keys[first], numbers[first], sum(part.seen for part in parts), totals)

    @property
    def total(self) -> float:
        """Residual of all rows, rounded once, since chunks may come in any order."""
        return math.fsum(self.totals)


@dataclass(frozen=True, eq=False)
class Race:
    """One block of at most ``most`` proposals, drawn chunk by chunk; a subclass is a way of drawing landmarks.

    ``landmarks`` are those chosen so far. Rows are drawn in proportion to their weights, of which those up to ``floor``
    count as rounding. Proposals are drawn from the same ``share`` of all rows in every turn.
    """

    word: ClassVar[str]  # that names it in a solver object's ``choice``
    reads_rows: ClassVar[bool]  # whether weights depend on the features; if not, rows have none of them, (n, 0)
    kernel: Kernel
    landmarks: Landmarks | None
    most: int
    floor: float
    seed: int
    turn: int
    share: float = 1.0

    def random(self, *key: int) -> np.random.Generator:
        """Return the random generator of this turn and ``key``; shuffles and stochastic steps use other streams."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(4, self.turn, *key)))

    def chunk(self, X: Any, numbers: Array, chunk: int, threads: int = 1) -> Proposals:
        """Draw proposals among the rows ``X`` (n, d) of a chunk, whose row numbers are ``numbers`` (n,)."""
        seen = len(X)
        if self.share < 1:
            part = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(5, chunk)))
            here = np.flatnonzero(part.random(seen) < self.share)
            X = X[here]
            numbers = numbers[here]
        weight = self.weights(X, threads)
        open_to = np.flatnonzero(weight > self.floor)
        with np.errstate(over="ignore"):  # an infinite key comes last of all
            keys = self.random(chunk).standard_exponential(len(X))[open_to] / weight[open_to]
        first = np.argsort(keys, kind="stable")[: self.most]
        return Proposals(keys[first], numbers[open_to[first]], seen, (float(weight.sum()),))

    def weights(self, X: Any, threads: int) -> Array:
        """Return a weight ≥ 0 of every row of ``X`` (n, d), (n,)."""
        raise NotImplementedError

    @classmethod
    def choose(
        cls, kernel: Kernel, source: PivotRows, count: int, seed: int, trace: float, rows: int | None
    ) -> Landmarks:
        """Choose landmarks as `choose` does: by one race, without the rows that depend on others."""
        numbers = np.sort(_drawn(source, cls(kernel, None, count, 0.0, seed, 0)).numbers)
        return Landmarks.of(kernel, source.take(numbers), numbers, trace=trace)


class UniformRace(Race):
    """All rows have the same probability."""

    word = "uniform"
    reads_rows = False

    def weights(self, X: Any, threads: int) -> Array:
        return np.ones(len(X))


class ResidualRace(Race):
    """Randomly pivoted Cholesky among twenty times as many rows, by what earlier landmarks leave of each κ(x, x)."""

    word = "rp"
    reads_rows = True

    def weights(self, X: Any, threads: int) -> Array:
        return self.kernel.diagonal(X) if self.landmarks is None else self.landmarks.residual(X, threads)

    @classmethod
    def choose(
        cls, kernel: Kernel, source: PivotRows, count: int, seed: int, trace: float, rows: int | None
    ) -> Landmarks:
        wanted = source.n if rows is None else max(rows, count)
        share = min(1.0, wanted / max(1, source.n))
        return _by_residual(cls(kernel, None, 0, 0.0, seed, 0, share), source, count, trace, wanted)


# Constraints, options of the shell and lists of docstrings are made from these, in this order.
RACES: dict[str, type[Race]] = {race.word: race for race in (UniformRace, ResidualRace)}


class PivotRows(Protocol):
    """Rows that landmarks are chosen from."""

    @property
    def n(self) -> int:
        """An estimate of the number of rows, which is not too small."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]: ...
    def run(self, race: Race) -> Proposals: ...
    def take(self, numbers: Array) -> Any:
        """Return the rows at ``numbers`` as the kernel sees them."""
        ...


@dataclass(frozen=True, eq=False)
class MemoryPivots(RowsOfMatrix):
    """Scaled rows ``X`` (n, d) in memory, dense or sparse, in chunks; the choice of landmarks depends on the chunks."""

    X: Any
    threads: int = 1
    chunk_rows: int | None = None

    @property
    def _step(self) -> int:
        # a chunk has at most 64 MiB of rows in float64
        return self.chunk_rows or max(1, min(1 << 14, (64 << 20) // (8 * self.d)))

    def choosing_bytes(self, count: int) -> int:
        """Return the bytes of choosing up to ``count`` landmarks: of a pass, and of deciding on proposals."""
        rows = self.dtype.itemsize * min(self.n, self._step) * self.d  # of a chunk; then keys and kernel values
        reading = 32 * self.n + rows + self.threads * 8 * BLOCK * (3 * count + 5 * self.d)
        deciding = most_proposals(count) * (2 * count + 3 * _PANEL + 4 * self.d) + count * (4 * count + 4 * self.d)
        return reading + 8 * deciding

    def run(self, race: Race) -> Proposals:
        step = self._step
        parts = []
        for i, start in enumerate(range(0, self.n, step)):
            numbers = np.arange(start, min(self.n, start + step))
            X = self.X[start : start + step] if race.reads_rows else np.empty((len(numbers), 0))
            parts.append(race.chunk(X, numbers, i, self.threads))
        return Proposals.merged(parts, race.most)

    def take(self, numbers: Array) -> Any:
        return self[numbers]


def choose(
    kernel: Kernel,
    source: PivotRows,
    count: int,
    *,
    method: str = "uniform",
    seed: int = 0,
    trace: float = 0.0,
    rows: int | None = None,
) -> Landmarks:
    """Choose at most ``count`` landmarks, at least one, with ascending index; fewer if the numerical rank is reached.

    ``method`` is a word of `RACES`. With ``trace``, only as many landmarks are kept as leave at most this share of
    their own trace; "rp" stops after the first block that leaves at most this share of the kernel's trace.

    About ``rows`` uniformly drawn rows are candidates of "rp", but at least ``count``; by default all are. Twenty
    candidates per landmark leave hardly more of the trace than all rows, and a pass costs O(rows · count²). Raises
    InputError if there are no rows, or if the kernel overflows or is zero.
    """
    with single_threaded_blas:
        return RACES[method].choose(kernel, source, count, seed, trace, rows)


def most_proposals(count: int) -> int:
    """Return the most proposals of a block when ``count`` pivots are wanted."""
    # the features of proposals are held, so these are few unless more pivots are wanted
    return max(count, min(8192, 4 * count + _FIRST))


def _drawn(source: PivotRows, race: Race) -> Proposals:
    proposals = source.run(race)
    if not proposals.seen:
        raise InputError(NO_ROWS)
    return proposals


def _by_residual(race: Race, source: PivotRows, count: int, trace: float, wanted: int) -> Landmarks:
    whole = 0.0
    held = 0
    rate = 1.0
    while True:
        room = min(count - held, max(held, _FIRST)) if trace else count - held
        race = replace(race, most=min(math.ceil(2 * room / rate) + _FIRST, most_proposals(count)))
        proposals = _drawn(source, race)
        if race.landmarks is None and 2 * race.share * proposals.seen < min(wanted, proposals.seen):
            race = replace(race, share=min(1.0, wanted / proposals.seen))  # the estimate of n was far too large
            continue
        whole = whole or proposals.total
        if not (np.isfinite(whole) and whole > 0):
            raise InputError(VANISHES)
        if race.landmarks is not None and (not len(proposals.numbers) or proposals.total <= trace * whole):
            return race.landmarks
        landmarks = _extended(race, source.take(proposals.numbers), proposals.numbers, room)
        if len(landmarks) in (held, count):
            return landmarks
        rate = (len(landmarks) - held) / len(proposals.numbers)
        held = len(landmarks)
        floor = rank_floor(landmarks.gram.diagonal(), source.dtype, count)
        race = replace(race, landmarks=landmarks, floor=floor, turn=race.turn + 1)


def _extended(race: Race, rows: Any, numbers: Array, room: int) -> Landmarks:
    """Return the landmarks of ``race`` with at most ``room`` of its proposals added, sorted by their numbers."""
    held = race.landmarks
    X = rows.astype(np.float64)
    floor = race.floor or rank_floor(race.kernel.diagonal(X), rows.dtype, len(rows))
    known = np.empty((len(X), 0)) if held is None else held.features(X)
    chosen = accepted(race.kernel, X, known, race.random().random(len(X)), floor, room)
    rows = rows[chosen]
    numbers = numbers[chosen]
    if held is not None:
        rows = stacked_rows([held.rows, rows])
        numbers = np.concatenate([held.index, numbers])
    order = np.argsort(numbers)
    return Landmarks(race.kernel, rows[order], numbers[order])


def accepted(kernel: Kernel, X: Any, known: Array, chance: Array, floor: float, most: int) -> NDArray[np.int64]:
    """Return the positions of the proposals that become pivots, in order, at most ``most``.

    ``X`` (b, d) are proposals in float64, in the order of the race, and ``known`` (b, r) their features (rows of L)
    with respect to the earlier pivots. A proposal is accepted if more than the share ``chance`` (b,) of its residual is
    left in its turn, and more than ``floor``.
    """
    least = np.maximum(floor, chance * (kernel.diagonal(X) - np.einsum("ij,ij->i", known, known)))
    packed, (b, width) = kernel.pack_left(X), known.shape
    features = np.empty((b, width + min(b, most + _PANEL)))
    features[:, :width] = known
    chosen: list[int] = []
    for start in range(0, b, _PANEL):
        stop = min(start + _PANEL, b)
        own = features[start:stop, :width]
        left = kernel.tile(X[start:stop], X[start:stop]) - own @ own.T
        pivots, factor = _panel_pivots(left, least[start:stop])
        chosen += (start + pivots).tolist()
        if len(chosen) >= most or stop == b:
            break
        values = kernel.tile_packed(packed[stop:], kernel.pack_right(X[start + pivots]))
        values -= features[stop:, :width] @ own[pivots].T
        features[stop:, width : width + len(pivots)] = values @ np.linalg.inv(factor).T
        width += len(pivots)
    return np.array(chosen[:most], dtype=np.int64)


def _panel_pivots(left: Array, least: Array) -> tuple[NDArray[np.int64], Array]:
    """Return the rows that still have a residual above ``least`` (m,) in their turn, and the Cholesky factor at them.

    ``left`` (m, m) is the residual kernel matrix of a panel of proposals.
    """
    columns = np.empty((len(left), len(left)), order="F")
    chosen: list[int] = []
    for i in range(len(left)):
        k = len(chosen)
        rest = left[i, i] - columns[i, :k] @ columns[i, :k]
        if rest > least[i]:
            columns[:, k] = (left[i] - columns[:, :k] @ columns[i, :k]) / np.sqrt(rest)
            chosen.append(i)
    pivots = np.array(chosen, dtype=np.int64)
    return pivots, np.tril(columns[pivots, : len(pivots)])
