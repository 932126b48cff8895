"""Maps of what a model predicts of a cube, of some of its cells if it has many: pictures, and numbers for tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.data.readers.sources import computed
from dask_odm.diagnostics.plotting import COLOURS, new_axes, ticks
from dask_odm.errors import InputError
from dask_odm.estimators.cards import class_names
from dask_odm.estimators.inputs.cubes import cube_to_predict
from dask_odm.printing import short
from dask_odm.typing import Array

MOST_CELLS = 1_000_000  # that are predicted for a picture
NO_DATA = 0.6  # grey of cells that miss a feature


@dataclass(frozen=True, eq=False)
class CubeMap:
    """Predicted values of cells of a cube, NaN where a feature is missing.

    ``values`` is an xarray DataArray over the dimensions of rows, with one value a cell: the target; of two classes the
    decision value; of more by how much the largest decision value exceeds the next. ``codes`` (same shape) are the
    places of the predicted classes among ``classes``, −1 where a feature is missing; None for a regressor. Every
    ``step``-th cell along each dimension is there.
    """

    values: Any
    codes: Array | None
    classes: list[str]
    step: int

    @property
    def known(self) -> Array:
        """Values of the cells that miss no feature, (n,)."""
        found = self.values.to_numpy()
        return found[~np.isnan(found)]

    def counts(self) -> list[tuple[str, int, float]]:
        """Return the cells of each predicted class, and their share of those that miss no feature."""
        assert self.codes is not None
        found = np.bincount(self.codes[self.codes >= 0], minlength=len(self.classes))
        shares = found / max(1, int(found.sum()))
        return list(zip(self.classes, found.tolist(), shares.tolist(), strict=True))


def maps_of(model: Any, X: Any) -> dict[str, CubeMap]:
    """Predict a cube, or every n-th cell along each dimension of one of more than a million cells.

    The map of the classes or of the target is called "Map"; each of several targets, or labels of a cell, has one.
    Raises InputError if features cannot be told.
    """
    sizes = dict(zip((cube := cube_to_predict(X, model)).dimensions, cube.shape, strict=True))
    step = 1
    while math.prod(-(-size // step) for size in sizes.values()) > MOST_CELLS:
        step += 1
    some = X.isel({d: slice(None, None, step) for d in sizes})
    of_classes = hasattr(model, "classes_")
    (scores,) = computed(model.decision_function(some) if of_classes else model.predict(some))
    of_labels = hasattr(model, "multilabel_")
    several = scores.ndim > len(sizes)
    last = scores.dims[-1]
    if several and of_classes and not of_labels:
        found = scores.to_numpy()
        largest = np.partition(found, -2, axis=-1)
        values = scores.isel({last: 0}, drop=True).copy(data=largest[..., -1] - largest[..., -2])
        codes = np.where(np.isnan(found).any(axis=-1), -1, np.nan_to_num(found).argmax(axis=-1))
        return {"Map": CubeMap(values, codes, list(map(short, class_names(model))), step)}
    classes = ["without", "with"] if of_labels else list(map(short, class_names(model))) if of_classes else []

    def map_of_one(values: Any) -> CubeMap:
        codes = np.where(values.isnull(), -1, values > 0) if of_classes else None
        return CubeMap(values, codes, classes, step)

    if not several:
        return {"Map": map_of_one(scores)}
    return {f"Map of {j}": map_of_one(scores.isel({last: j}, drop=True)) for j in range(scores.sizes[last])}


def plot_classes(found: CubeMap) -> Any:
    """Draw which class is predicted where; raise InputError for a regressor, or one dimension."""
    if found.codes is None:
        raise InputError("a regressor predicts no classes.")
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    count = len(found.classes)
    few = count <= len(COLOURS)
    colors = ListedColormap(COLOURS) if few else colormaps["tab20" if count <= 20 else "nipy_spectral"]
    place = np.arange(count) if count <= 20 else np.linspace(0.0, 1.0, count)
    picture = np.ones((*found.codes.shape, 4))
    picture[..., :3] = NO_DATA
    known = found.codes >= 0
    picture[known] = colors(place)[found.codes[known]]
    ax = _drawn(found, picture, "Predicted class")
    if count <= 20:
        patches = [Patch(color=colors(place[i]), label=name) for i, name in enumerate(ticks(found.classes))]
        patches += [] if known.all() else [Patch(color=str(NO_DATA), label="no data")]
        ax.legend(handles=patches, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return ax


def plot_values(found: CubeMap) -> Any:
    """Draw the values of a map; raise InputError if it has one dimension."""
    two_classes = len(found.classes) == 2
    most = float(np.abs(found.known).max(initial=0.0)) if two_classes else None
    limits: dict[str, Any] = {"cmap": "RdBu_r", "vmin": -most, "vmax": most} if most else {"cmap": "viridis"}
    ax = _drawn(found, found.values.to_numpy(), **limits)
    ax.figure.colorbar(ax.images[0], ax=ax)
    return ax


def _drawn(found: CubeMap, picture: Array, title: str = "", **options: Any) -> Any:
    """Draw a picture over the last two dimensions of rows, at the first place of the others; north is up."""
    dims = found.values.dims
    if len(dims) < 2:
        raise InputError("a map has two dimensions at least.")
    picture = picture[(0,) * (len(dims) - 2)]
    y, x = (found.values.indexes.get(d) for d in dims[-2:])
    if y is not None and len(y) > 1 and y.is_monotonic_increasing and np.asarray(y).dtype.kind in "fiu":
        picture = picture[::-1]
    if x is not None and len(x) > 1 and x.is_monotonic_decreasing:
        picture = picture[:, ::-1]
    ax = new_axes()
    ax.imshow(picture, interpolation="nearest", **options)
    ax.set(title=title, xlabel=short(dims[-1]), ylabel=short(dims[-2]), xticks=[], yticks=[])
    return ax
