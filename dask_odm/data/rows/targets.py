"""What is learned about each row of a store: two classes, many, one of many, a real value; and which rows take part.

Targets are small records of settings that are called on a store's block. A selection leaves rows out by their number
alone, so that the folds of a search are masks, not copies, and do not depend on chunks or workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.store import StoreBlock
from dask_odm.errors import InputError
from dask_odm.typing import Array

NEGLIGIBLE = 1e-200  # a weight as good as zero: what is made of it underflows
NO_WEIGHT = np.empty(0)  # stands for a weight of 1 in every row

Mask = npt.NDArray[np.bool_]


class Selection(Protocol):
    """Which rows of a store take part, told by their number in the store."""

    def __call__(self, first: int, n: int) -> Mask:
        """Whether each of the rows numbered ``first`` to ``first + n - 1`` takes part, (n,)."""


class Targets(Protocol):
    """What is learned about each row; a frozen record that pickles, compares and that Dask tokenises."""

    @property
    def selection(self) -> Selection | None:
        """Which rows take part by their number; None: all."""

    @property
    def keeps_all(self) -> bool:
        """Whether every row with a known target and a positive weight takes part."""

    @property
    def y_type(self) -> str:
        """NumPy name of the smallest type that partitions on disk can hold y in."""

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        """Rows to keep (mask), y (float64) and weight (float64) of a block with targets, each (rows,)."""

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """y and weight for a pass over all rows, without copies where nothing is left out.

        For classes y is the integer codes as stored, −1 where a row is left out by its code, its class's weight
        of zero or the selection; for real values it is float64, and a row that is left out has weight 0 and y 0.
        The weight is the store's, (rows,) float64, class weights not multiplied in, or empty where all are 1.
        """


@dataclass(frozen=True)
class TwoClasses:
    """Which label code is the positive one, what a row of either class weighs, and which rows take part.

    ``positive`` is a code of the store's; all other known codes are negative, unknown ones (−1) are dropped, as
    are rows of weight zero. y is ±1.
    """

    positive: int
    negative_weight: float = 1.0
    positive_weight: float = 1.0
    selection: Selection | None = None

    @property
    def keeps_all(self) -> bool:
        """Whether rows of both classes weigh something, and none is left out by number."""
        return self.negative_weight > 0 and self.positive_weight > 0 and self.selection is None

    @property
    def y_type(self) -> str:
        return "int8"

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        codes = _y_of(block)
        y = np.where(codes == self.positive, 1.0, -1.0)
        weight = np.where(y > 0, self.positive_weight, self.negative_weight)
        if block.weight is not None:
            weight = weight * block.weight
        return _selected(self.selection, block, (codes >= 0) & (weight > NEGLIGIBLE)), y, weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        codes = _y_of(block)
        if not self.keeps_all:
            of_class = np.where(codes == self.positive, self.positive_weight > 0, self.negative_weight > 0)
            codes = np.where(_selected(self.selection, block, of_class), codes, -1).astype(codes.dtype)
        return codes, NO_WEIGHT if block.weight is None else block.weight


@dataclass(frozen=True)
class ManyClasses:
    """What a row of each class weighs; y is the class's code. Unknown codes (−1) and rows of weight zero are dropped.

    Parameters
    ----------
    class_weights : tuple of float
        One a class of the store, in the order of their codes.
    selection : Selection or None
    """

    class_weights: tuple[float, ...]
    selection: Selection | None = None

    @property
    def keeps_all(self) -> bool:
        return all(weight > 0 for weight in self.class_weights) and self.selection is None

    @property
    def y_type(self) -> str:
        return "int8" if len(self.class_weights) <= 128 else "int32"

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        codes = _y_of(block)
        weight = self._of_code(codes)
        if block.weight is not None:
            weight = weight * block.weight
        return _selected(self.selection, block, weight > NEGLIGIBLE), codes.astype(np.float64), weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        codes = _y_of(block)
        if not self.keeps_all:
            codes = np.where(_selected(self.selection, block, self._of_code(codes) > 0), codes, -1).astype(codes.dtype)
        return codes, NO_WEIGHT if block.weight is None else block.weight

    def _of_code(self, codes: Array) -> Array:
        """The weight of each row's class; an unknown class, code −1, has none."""
        weights: Array = np.array([*self.class_weights, 0.0])[codes]
        return weights


@dataclass(frozen=True)
class OneOfMany:
    """One class of many against others: what one machine of several learns. y is ±1.

    Parameters
    ----------
    positive : int
        Code of the class whose rows are positive.
    class_weights : tuple of float
        What a row of each class weighs, in the order of their codes; 0 where the machine does not see its rows.
    selection : Selection or None
    """

    positive: int
    class_weights: tuple[float, ...]
    selection: Selection | None = None

    @property
    def keeps_all(self) -> bool:
        return all(weight > 0 for weight in self.class_weights) and self.selection is None

    @property
    def y_type(self) -> str:
        return "int8"

    @property
    def pair_weights(self) -> tuple[float, float] | None:
        """What negative and positive rows weigh; None where negative ones of different classes differ in it."""
        others = {weight for code, weight in enumerate(self.class_weights) if code != self.positive and weight > 0}
        return (others.pop(), self.class_weights[self.positive]) if len(others) == 1 else None

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        codes = _y_of(block)
        weight = self.of_codes(codes)
        if block.weight is not None:
            weight = weight * block.weight
        keep = _selected(self.selection, block, weight > NEGLIGIBLE)
        return keep, np.where(codes == self.positive, 1.0, -1.0), weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """As `Targets.columns`; where `pair_weights` is None, the classes' weights are multiplied in."""
        codes = _y_of(block)
        of_class = self.of_codes(codes)
        if not self.keeps_all:
            codes = np.where(_selected(self.selection, block, of_class > 0), codes, -1).astype(codes.dtype)
        if self.pair_weights is None:
            return codes, of_class if block.weight is None else of_class * block.weight
        return codes, NO_WEIGHT if block.weight is None else block.weight

    def of_codes(self, codes: Array) -> Array:
        """The weight of each row's class; an unknown class, code −1, has none."""
        weights: Array = np.array([*self.class_weights, 0.0])[codes]
        return weights


@dataclass(frozen=True)
class RealValues:
    """The store's y as it is; rows whose y is unknown (NaN) or whose weight is zero are dropped."""

    selection: Selection | None = None

    @property
    def keeps_all(self) -> bool:
        return self.selection is None

    @property
    def y_type(self) -> str:
        return "float64"

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        y = _y_of(block)
        weight = np.ones(len(y)) if block.weight is None else block.weight
        keep = _selected(self.selection, block, ~np.isnan(y) & (weight > NEGLIGIBLE))
        return keep, np.where(keep, y, 0.0), weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        y = _y_of(block)
        keep = _selected(self.selection, block, ~np.isnan(y))
        if keep.all():
            return y, NO_WEIGHT if block.weight is None else block.weight
        weight = keep.astype(np.float64) if block.weight is None else np.where(keep, block.weight, 0.0)
        return np.where(keep, y, 0.0), weight


@dataclass(frozen=True)
class Fold:
    """One of ``of`` folds, or all rows outside it. A seeded hash of a row's number tells which fold it belongs to.

    Parameters
    ----------
    k : int
        Number of the fold, in [0, of).
    of : int
        Folds in all, at least 2; their sizes differ as random draws do.
    seed : int
        Not negative.
    inside : bool
        Keep the fold; otherwise all others.

    Raises
    ------
    InputError
        There is no such fold.
    """

    k: int
    of: int
    seed: int = 0
    inside: bool = True

    def __post_init__(self) -> None:
        if not (self.of >= 2 and 0 <= self.k < self.of and self.seed >= 0):
            raise InputError(f"fold {self.k} of {self.of} by seed {self.seed}: k must be in [0, of), of at least 2.")

    def __call__(self, first: int, n: int) -> Mask:
        mine: Mask = fold_of(first, n, self.of, self.seed) == self.k
        return mine if self.inside else ~mine


def fold_of(first: int, n: int, of: int, seed: int) -> npt.NDArray[np.int64]:
    """The fold, in [0, of), of the rows numbered ``first`` to ``first + n - 1``, (n,)."""
    return folds_of(np.arange(first, first + n), of, seed)


def folds_of(numbers: Array, of: int, seed: int) -> npt.NDArray[np.int64]:
    """The fold, in [0, of), of the rows of these ``numbers`` (n,)."""
    return (_hash_of(numbers, seed) % np.uint64(of)).astype(np.int64)


def uniform_of(first: int, n: int, seed: int) -> npt.NDArray[np.float64]:
    """A random number in [0, 1) for each of the rows numbered ``first`` to ``first + n - 1``, (n,)."""
    return uniforms_of(np.arange(first, first + n), seed)


def uniforms_of(numbers: Array, seed: int) -> npt.NDArray[np.float64]:
    """A random number in [0, 1) for each of the rows of these ``numbers`` (n,)."""
    return (_hash_of(numbers, seed) >> np.uint64(11)).astype(np.float64) * 2.0**-53


def drawn_rows(numbers: Array, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Places, ascending, of ``count`` of the rows of these ``numbers``: those of the least `uniforms_of`."""
    chosen: npt.NDArray[np.int64] = np.sort(np.argsort(uniforms_of(numbers, seed), kind="stable")[:count])
    return chosen


def _hash_of(numbers: Array, seed: int) -> npt.NDArray[np.uint64]:
    """SplitMix64 of the numbers of rows."""
    key = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    x = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key  # wrapping is meant
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def _y_of(block: StoreBlock) -> Array:
    """y of a block that must have some."""
    assert block.y is not None
    return block.y


def _selected(selection: Selection | None, block: StoreBlock, keep: Mask) -> Mask:
    """``keep``, without the rows that the selection leaves out."""
    if selection is None:
        return keep
    if block.first < 0:
        raise ValueError("rows gathered from a store have lost their numbers, which a selection goes by")
    return keep & selection(block.first, len(keep))
