"""Targets: what is learned about each row of a store (two classes, many, one against others, a real value).

Targets are small records of settings that are called on a block of a store. They also say which rows take part. Draws
of rows depend on row numbers only, so the folds of a search are masks, not copies, and do not depend on chunks or
workers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.statistics import known_targets
from dask_odm.data.store.store import StoreBlock
from dask_odm.linalg.rows import hash_of, uniforms_of
from dask_odm.typing import Array

NEGLIGIBLE_WEIGHT = 1e-200  # weights up to this count as zero, since products with them underflow

Mask = npt.NDArray[np.bool_]


class _Classes:
    """Base class of targets made of class codes. Rows of unknown class (code −1) and of weight zero are dropped.

    ``class_weights`` has a weight for each class, in the order of the codes. The target is ±1 for the class of code
    ``positive`` against others.
    """

    class_weights: tuple[float, ...]
    positive: int

    @property
    def keeps_all(self) -> bool:
        """Whether every row with a known target and a positive weight takes part."""
        return all(weight > 0 for weight in self.class_weights)

    @property
    def y_type(self) -> str:
        """NumPy name of the smallest type for y in partitions on disk."""
        return "int8"

    def values(self, codes: Array) -> Array:
        """Return the target of each row, float64 (n,)."""
        return np.where(codes == self.positive, 1.0, -1.0)

    def of_codes(self, codes: Array) -> Array:
        """Return the class weight of each row; it is 0 for an unknown class (code −1)."""
        return np.array([*self.class_weights, 0.0])[codes]

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        """Return the mask of rows to keep, y (float64) and weight (float64) of a block with targets, each (rows,)."""
        codes, of_rows = block.columns()
        weight = self.of_codes(codes)
        if of_rows.size:
            weight = weight * of_rows
        return weight > NEGLIGIBLE_WEIGHT, self.values(codes), weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """Return y and weight for a pass over all rows, without copies if no row is left out.

        y holds the codes as stored, or −1 for a row that is left out by its code or a class weight of zero. The weight
        is the store's, (rows,) float64, without class weights; it is empty if all weights are 1.
        """
        codes, weight = block.columns()
        if not self.keeps_all:
            codes = np.where(self.of_codes(codes) > 0, codes, -1).astype(codes.dtype)
        return codes, weight


@dataclass(frozen=True)
class TwoClasses(_Classes):
    """Targets ±1 for the second of two classes against the first."""

    class_weights: tuple[float, ...] = (1.0, 1.0)
    positive: int = 1


@dataclass(frozen=True)
class ManyClasses(_Classes):
    """Targets that are the class codes themselves."""

    class_weights: tuple[float, ...]

    @property
    def y_type(self) -> str:
        return "int8" if len(self.class_weights) <= 128 else "int32"

    def values(self, codes: Array) -> Array:
        return codes.astype(np.float64)


@dataclass(frozen=True)
class OneOfMany(_Classes):
    """Targets ±1 for one class against others, as one machine of several learns them. A weight of 0 drops a class."""

    positive: int
    class_weights: tuple[float, ...]

    @property
    def pair_weights(self) -> tuple[float, float] | None:
        """Weights of negative and positive rows; None if the negative classes have different weights."""
        others = {weight for code, weight in enumerate(self.class_weights) if code != self.positive and weight > 0}
        return (others.pop(), self.class_weights[self.positive]) if len(others) == 1 else None

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """Return y, which is 1 for the positive class and 0 for others, and weight for a pass over all rows.

        Class weights are multiplied in if `pair_weights` is None.
        """
        codes, weight = block.columns()
        of_class = self.of_codes(codes)
        y = np.where(of_class > 0, codes == self.positive, -1).astype(np.int8)
        if self.pair_weights is None:
            weight = of_class * weight if weight.size else of_class
        return y, weight


@dataclass(frozen=True)
class RealValues:
    """Targets that are the store's y less ``mean``, divided by ``unit``. Rows with unknown y (NaN) or weight zero are
    dropped. Several targets of a row may have a mean and a unit each, (t,); a row that misses one is dropped.
    """

    mean: Any = 0.0
    unit: Any = 1.0
    class_weights: ClassVar[tuple[float, ...]] = ()
    keeps_all: ClassVar[bool] = True
    y_type: ClassVar[str] = "float64"

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        y, weight = self.columns(block)
        weight = weight if weight.size else np.ones(len(y))
        return weight > NEGLIGIBLE_WEIGHT, y, weight

    def scaled(self, y: Array) -> Array:
        """Return targets in these units, ``y`` itself if they are its own."""
        if not np.any(self.mean) and not np.any(np.not_equal(self.unit, 1.0)):
            return y
        scaled = y - self.mean
        scaled /= self.unit
        return scaled

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """Return y (float64) and weight for a pass over all rows; both are 0 for a row that is left out."""
        y, weight = block.columns()
        keep = known_targets(y)
        if not keep.all():
            weight = np.where(keep, weight, 0.0) if weight.size else keep.astype(np.float64)
            y = np.where(keep if y.ndim == 1 else keep[:, None], y, self.mean)
        return self.scaled(y), weight

    def of_target(self, target: int) -> RealValues:
        """Return the targets of rows of which one of several is the only one."""
        mean, unit = (each if np.ndim(each) == 0 else float(each[target]) for each in (self.mean, self.unit))
        return RealValues(mean, unit)


@dataclass(frozen=True)
class OneClass:
    """Targets that are 1 for every row, whatever the y of the store, if it has one. Rows of weight zero are dropped."""

    keeps_all: ClassVar[bool] = True
    y_type: ClassVar[str] = "int8"
    class_weights: ClassVar[tuple[float, float]] = (1.0, 1.0)

    def __call__(self, block: StoreBlock) -> tuple[Mask, Array, Array]:
        y = np.ones(block.X.shape[0])
        weight = y if block.weight is None else block.weight
        return weight > NEGLIGIBLE_WEIGHT, y, weight

    def columns(self, block: StoreBlock) -> tuple[Array, Array]:
        """Return codes of 1, and weights, which are empty if all are 1, for a pass over all rows."""
        return np.ones(block.X.shape[0], np.int8), np.empty(0) if block.weight is None else block.weight


Targets = TwoClasses | ManyClasses | OneOfMany | RealValues | OneClass


def folds_of(numbers: Array, of: int, seed: int) -> npt.NDArray[np.int64]:
    """Return the fold, in [0, of), of each row in ``numbers`` (n,)."""
    return (hash_of(numbers, seed) % np.uint64(of)).astype(np.int64)


def drawn_rows(numbers: Array, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Return ascending positions of ``count`` rows drawn from ``numbers``: those with the smallest `uniforms_of`."""
    return np.sort(np.argsort(uniforms_of(numbers, seed), kind="stable")[:count])


def class_scales(counts: Array, count: int, least: int) -> Array:
    """Return a factor for each class; the rows of smallest factor times `uniforms_of` are drawn.

    ``counts`` (classes,) are the rows of each class. Of the first ``count`` rows drawn, a class has about its share,
    but at least about ``least``, or all of its rows.
    """
    wanted = np.maximum(counts * (count / max(1, counts.sum())), np.minimum(counts, least))
    return np.where(counts <= least, 0.0, counts / np.maximum(wanted, np.finfo(float).tiny))
