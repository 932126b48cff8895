"""Connected components of a narrow kernel: products are taken within components of rows that are far apart.

If rows are far enough apart, float32 cannot resolve the kernel value between them (below `NEGLIGIBLE_KERNEL_VALUE`)
beside the 1 of a row with itself. A product in float32 leaves these values out. A product in float64 computes them in
float32, whose rounding error is negligible for values so small. The cost of a product falls by the number of
components.

Products are computed by threads of this process even if there are workers. The components are many small matrices,
whose products would mostly wait for messages, and a model's bits may not depend on who computed it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.sparse.csgraph import connected_components

from dask_odm.kernels.blocks import Room
from dask_odm.kernels.named import RBF
from dask_odm.learning.problem.products import (
    Multiply,
    Products,
    RowProducts,
    SourcedProducts,
    Subset,
)
from dask_odm.typing import Array

NEGLIGIBLE_KERNEL_VALUE = float(np.finfo(np.float32).eps)  # beside the 1 of a row with itself
SEARCH_BYTES = 4096  # most bytes per row for the rows that are searched; the blocks of a solve take as many later
READ_BYTES = 8 << 20  # most bytes of rows in float32 that are read at a time, if they are more than 64
SEARCH_SHARE = 1 / 16  # most rows to look at, as a share of the kernel values in one product of all rows


@dataclass(frozen=True, eq=False)
class ComponentProducts(SourcedProducts):
    """`Products` of rows in several kernel components; ``label`` (n,) is the component of each row."""

    source: RowProducts
    label: Array

    @cached_property
    def within(self) -> RowProducts:
        """Products with the kernel without its bias."""
        return replace(self.source, kernel=replace(self.source.kernel, bias=0.0))

    def among(self, index: Array, *, double_precision: bool | None = False) -> Multiply:
        places = [at for at in self._places(index) if len(at)]
        budget = self.within.budget / max(1.0, sum(float(len(at)) ** 2 for at in places))

        def within(at: Array) -> Multiply:
            products = replace(self.within, budget=int(budget * len(at) ** 2), room=Room())
            return products.among(index[at], double_precision=double_precision)

        each = [within(at) for at in places]

        def multiply(v: Array) -> Array:
            out = np.full(len(v), self.kernel.bias * float(v.sum()))
            for at, product in zip(places, each, strict=True):
                out[at] += product(v[at])
            return out + self._between(index, index, v) if double_precision else out

        return multiply

    def cross(self, targets: Array, sources: Array, v: Array, *, double_precision: bool = False) -> Array:
        out = np.full(len(targets), self.kernel.bias * float(v.sum()))
        for there, here in zip(self._places(targets), self._places(sources), strict=True):
            if len(there) and len(here):
                own = self.within.cross(targets[there], sources[here], v[here], double_precision=double_precision)
                out[there] += own
        return out + self._between(targets, sources, v) if double_precision else out

    @property
    def share(self) -> float:
        """Share of the matrix that a product in float32 computes."""
        shares = np.bincount(self.label) / self.n
        return float(shares @ shares)

    def alone(self) -> list[tuple[Array, Products]]:
        """Return the ascending rows of every component, and their products with the kernel without its bias."""
        return [(rows, Subset(self.within, rows)) for rows in self._places(np.arange(self.n))]

    def _places(self, index: Array) -> list[Array]:
        """Return the places in ``index`` of the rows of every component."""
        label = self.label[index]
        return [np.flatnonzero(label == part) for part in range(int(self.label.max()) + 1)]

    def _between(self, targets: Array, sources: Array, v: Array) -> Array:
        """Return the contribution to a product of kernel values between components, in float32."""
        out = np.zeros(len(targets))
        label = self.label[sources]
        for part, there in enumerate(self._places(targets)):
            others = np.flatnonzero(label != part)
            if len(there) and len(others):
                out[there] = self.within.cross(targets[there], sources[others], v[others])
        return out


def in_components(products: Products) -> Products:
    """Return products within kernel components, if these make up at most half of the matrix; else the same products.

    Products are unchanged, too, if rows are so far from zero that rounding to float32 hides which ones are near.
    """
    here: RowProducts | None = getattr(products, "here", None)
    if here is None or not isinstance(products.kernel, RBF):
        return products
    d = here.source.shape[1]
    if d == 1 or 2 * 4 * d > SEARCH_BYTES:  # the rows that are searched are held twice, in float32
        return products
    X = rows_in_float32(here)
    gamma = products.kernel.gamma
    # rounding may change the logarithm of a kernel value by a tenth
    if not NEGLIGIBLE_KERNEL_VALUE * gamma * np.einsum("ij,ij->i", X, X).max() <= 0.1:
        return products
    label = parts_of(X, np.sqrt(-np.log(NEGLIGIBLE_KERNEL_VALUE) / gamma))
    apart = ComponentProducts(here, label)
    return apart if apart.share <= 0.5 else products


def rows_in_float32(products: Products, onto: Array | None = None) -> Array:
    """Return all rows in float32 (n, d), or their products with ``onto`` (d, directions).

    Values too large for float32 are infinite.
    """
    found = []
    d = products.rows(np.zeros(1, np.int64)).shape[1]
    step = max(64, min(4096, READ_BYTES // (4 * d)))
    with np.errstate(over="ignore"):
        for start in range(0, products.n, step):
            X = products.rows(np.arange(start, min(products.n, start + step))).astype(np.float32)
            found.append(X if onto is None else X @ onto)
    return np.concatenate(found)


def parts_of(X: Array, distance: float, most_boxes: int = 256) -> Array:
    """Return the component of each of the rows ``X`` (n, d), int (n,).

    Rows of different components are at least ``distance`` apart. Rows are cut into boxes at gaps of single features,
    and near boxes join one component, so that some components may stay undivided. A look at the features of a row
    counts as one kernel value; nothing is cut any more when `SEARCH_SHARE` of a product is used up.
    """
    if np.linalg.norm(np.ptp(X, axis=0)) < distance:
        return np.zeros(len(X), np.int64)
    boxes: list[Array] = []
    left = [np.arange(len(X))]
    looks = SEARCH_SHARE * len(X) ** 2 / 2
    while left and len(boxes) + len(left) < most_boxes and looks > 0:
        index = left.pop()
        looks -= len(index)
        above = _beyond_gap(X[index], distance / 8)
        if above is None:
            boxes.append(index)
        else:
            left += [index[~above], index[above]]
    boxes += left
    low = np.array([X[index].min(axis=0) for index in boxes])
    high = np.array([X[index].max(axis=0) for index in boxes])
    near = np.empty((len(boxes), len(boxes)), bool)
    for box in range(len(boxes)):
        apart = np.maximum(0.0, np.maximum(low[box] - high, low - high[box]))
        near[box] = (apart**2).sum(axis=1) < distance**2
    _, box_part = connected_components(near, directed=False)
    label = np.empty(len(X), np.int64)
    for index, part in zip(boxes, box_part, strict=True):
        label[index] = part
    return label


def _beyond_gap(X: Array, slot: float) -> Array | None:
    """Return which rows are above the widest gap of any feature, or None if no gap spans a whole ``slot``.

    Few rows are not cut, and rows more than 256 slots above the lowest are taken together.
    """
    low = X.min(axis=0)
    high = X.max(axis=0)
    widest = 0
    best = None
    for j in np.flatnonzero(high - low > slot) if len(X) > 64 else ():
        slots = np.minimum((X[:, j] - low[j]) / slot, 256).astype(np.int64)
        filled = np.flatnonzero(np.bincount(slots))
        gaps = np.diff(filled)
        if gaps.max(initial=1) > max(1, widest):
            at = int(np.argmax(gaps))
            widest = int(gaps[at])
            best = slots > filled[at]
    return best
