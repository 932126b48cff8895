"""Generators of rows of two classes: endless sequences of which any part can be made, in memory or into a store.

A generator makes its rows in chunks of fixed size, each from its own seed (`numpy.random.SeedSequence` with the chunk's
number as ``spawn_key``). So row i does not depend on how many rows are asked for, where they go or how they are cut
into blocks, and memory does not grow with their number.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dask_odm.data.store.layout import Label
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.events import Progress, report
from dask_odm.progress import shown_if_long

Rows = tuple[NDArray[Any], NDArray[np.int64]]


@dataclass(frozen=True)
class RowGenerator(ABC):
    """Base class of generators of rows with ``features`` features, from one seed of all random numbers."""

    features: int
    seed: int = 0

    classes: ClassVar[tuple[Label, ...]] = (-1, 1)
    chunk_entries: ClassVar[int] = 1 << 18  # matrix entries made at a time

    @property
    def chunk_rows(self) -> int:
        """Rows made at a time, which depends on the number of features only."""
        return max(1, self.chunk_entries // self.features)

    @abstractmethod
    def chunk(self, number: int) -> Rows:
        """Return all rows (chunk_rows, d) of a chunk, and the class index of each."""

    def blocks(self, rows: int, start: int = 0) -> Iterator[Rows]:
        """Yield rows ``start`` to ``start + rows`` of the sequence, at most a chunk at a time."""
        stop = start + rows
        size = self.chunk_rows
        for number in range(start // size, -(-stop // size)):
            part = slice(max(start - number * size, 0), min(stop - number * size, size))
            X, codes = self.chunk(number)
            yield X[part], codes[part]

    def arrays(self, rows: int, start: int = 0, dtype: str = "float32") -> tuple[NDArray[Any], NDArray[Any]]:
        """Return rows (rows, d) and their labels (rows,)."""
        X = np.empty((rows, self.features), dtype=dtype)
        codes = np.empty(rows, dtype=np.int64)
        at = 0
        for part, part_codes in self.blocks(rows, start):
            X[at : at + len(part)], codes[at : at + len(part)] = part, part_codes
            at += len(part)
        return X, np.array(self.classes)[codes]

    @shown_if_long()
    def write(
        self,
        path: str | os.PathLike[str],
        rows: int,
        start: int = 0,
        *,
        dtype: str = "float32",
        overwrite: bool = False,
    ) -> Store:
        """Write rows as a store, with one chunk in memory at a time. It raises what `StoreWriter` raises."""
        with StoreWriter(path, dtype=dtype, overwrite=overwrite) as writer:
            report(Progress("generate", 0, rows, "rows"))
            for X, codes in self.blocks(rows, start):
                writer.append(X, codes)
                report(Progress("generate", writer.rows, rows, "rows"))
            return writer.finish(self.classes, source=f"generated: {self}")

    def random(self, *key: int) -> np.random.Generator:
        """Return the random generator for one purpose, named by ``key``."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


@dataclass(frozen=True)
class Separable(RowGenerator):
    """Rows of `make_separable`."""

    margin: float = 0.5

    @cached_property
    def direction(self) -> NDArray[np.float64]:
        """The unit vector w."""
        return _unit(self.random(0).standard_normal(self.features))

    def chunk(self, number: int) -> Rows:
        random = self.random(1, number)
        codes = random.integers(0, 2, self.chunk_rows)
        X = random.standard_normal((self.chunk_rows, self.features))
        along = X @ self.direction
        X += np.outer((2 * codes - 1) * (self.margin + np.abs(along)) - along, self.direction)
        return X, codes


@dataclass(frozen=True)
class Gaussians(RowGenerator):
    """Two normal clouds of unit covariance, ``x = ±distance·w + noise``.

    ``positive`` is the probability of class 1. w spreads over ``informative`` random features, by default all. A
    ``share`` of the rows are copies, labels included, of earlier rows of their chunk.
    """

    distance: float = 1.0
    positive: float = 0.5
    informative: int | None = None
    share: float = 0.0

    @cached_property
    def direction(self) -> NDArray[np.float64]:
        """The unit vector w."""
        random = self.random(0)
        w = random.standard_normal(self.features)
        if self.informative is not None:
            w[random.permutation(self.features)[self.informative :]] = 0.0
        return _unit(w)

    def chunk(self, number: int) -> Rows:
        random = self.random(1, number)
        codes = (random.random(self.chunk_rows) < self.positive).astype(np.int64)
        X = random.standard_normal((self.chunk_rows, self.features))
        X += np.outer((2 * codes - 1) * self.distance, self.direction)
        copies = np.floor(np.arange(len(X) + 1) * self.share).astype(np.int64)
        original = np.flatnonzero(np.diff(copies) == 0)  # row 0 is one, since share < 1
        copy = np.flatnonzero(np.diff(copies))
        earlier = copy - copies[copy]  # number of originals before each copy
        source = original[(self.random(2, number).random(len(copy)) * earlier).astype(np.int64)]
        X[copy], codes[copy] = X[source], codes[source]
        return X, codes


@dataclass(frozen=True)
class Susy(RowGenerator):
    """Rows of `make_susy`: invertible images of rows of `Gaussians`, so that the best accuracy is known."""

    features: int = 18

    original_rows: ClassVar[int] = 5_000_000
    distance: ClassVar[float] = 0.8377923  # the best accuracy is 0.80
    positive: ClassVar[float] = 0.46
    # columns of the low level: transverse momenta are positive and skewed, angles uniform, the others symmetric
    momenta: ClassVar[tuple[int, ...]] = (0, 3, 6)
    angles: ClassVar[tuple[int, ...]] = (2, 5, 7)
    low: ClassVar[int] = 8

    @cached_property
    def hidden(self) -> Gaussians:
        """The generator of the rows before they are transformed."""
        return Gaussians(self.features, self.seed, distance=self.distance, positive=self.positive)

    @cached_property
    def mixing(self) -> NDArray[np.float64]:
        """Matrix that adds parts of the low-level features to the others; its diagonal is 1."""
        mixing = np.eye(self.features)
        mixing[: self.low, self.low :] = 0.4 * self.random(3).standard_normal((self.low, self.features - self.low))
        return mixing

    def chunk(self, number: int) -> Rows:
        Z, codes = self.hidden.chunk(number)
        X = Z @ self.mixing
        for i in self.momenta:
            X[:, i] = np.exp(0.6 * X[:, i])
        for i in self.angles:
            X[:, i] = math.sqrt(12.0) * (ndtr(X[:, i]) - 0.5)
        for i in range(self.low, self.features, 2):  # masses are positive, too
            X[:, i] = np.logaddexp(0.0, X[:, i])
        return X, codes


@dataclass(frozen=True)
class Shells(RowGenerator):
    """Rows of `make_shells`, which are made in float32."""

    latent: int = 5
    noise: float = 0.5

    classes: ClassVar[tuple[Label, ...]] = ("inner", "outer")
    chunk_entries: ClassVar[int] = 4_000_000

    @cached_property
    def _basis(self) -> NDArray[np.float32]:
        normal = self.random(0).standard_normal((self.latent, self.features), dtype=np.float32)
        return (normal / np.sqrt(self.latent)).astype(np.float32)

    def chunk(self, number: int) -> Rows:
        random = self.random(1, number)
        points = random.standard_normal((self.chunk_rows, self.latent), dtype=np.float32)
        X = random.standard_normal((self.chunk_rows, self.features), dtype=np.float32)
        X *= np.float32(self.noise)
        X += points @ self._basis
        half = self.latent * (1.0 - 2.0 / (9.0 * self.latent)) ** 3  # the median of chi squared
        return X, (np.square(points).sum(axis=1) > half).astype(np.int64)


@dataclass(frozen=True)
class Chessboard(RowGenerator):
    """Rows of `make_chessboard`."""

    latent: int = 2
    n_squares: int = 10
    noise: float = 0.03
    accuracy: float = 0.95

    @cached_property
    def basis(self) -> NDArray[np.float64]:
        """Orthonormal rows (latent, d), which span the board."""
        return np.linalg.qr(self.random(0).standard_normal((self.features, self.latent)))[0].T

    def colours(self, points: NDArray[Any]) -> NDArray[np.int64]:
        """Return 0 or 1, the colour of the square of each point on the board (n, latent)."""
        return np.floor(points).astype(np.int64).sum(axis=1) % 2

    def chunk(self, number: int) -> Rows:
        random = self.random(1, number)
        shape = self.chunk_rows, self.latent
        points = random.integers(0, self.n_squares, shape) + random.triangular(0.0, 0.5, 1.0, shape)
        X = self.noise * random.standard_normal((self.chunk_rows, self.features))
        X += (points - X @ self.basis.T) @ self.basis  # noise along the board would blur its squares
        wrong = random.random(self.chunk_rows) >= self.accuracy
        return X, self.colours(points) ^ wrong


def _unit(vector: NDArray[np.float64]) -> NDArray[np.float64]:
    return vector / np.linalg.norm(vector)
