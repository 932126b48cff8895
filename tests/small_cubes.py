"""A small cube with labels, in the many forms that users have them, and its rows as plain NumPy has them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

BANDS = ["B02", "B03", "B04"]
Y, X, TIMES = 9, 10, pd.date_range("2024-03-01", periods=2, freq="30D")


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows as plain NumPy has them.

    ``X`` (y, x, d) are the features of every row, NaN where one is missing, ``complete`` (y, x) the rows that have all,
    and ``labels`` (y, x) objects, None where there is none.
    """

    X: np.ndarray
    labels: np.ndarray

    @property
    def complete(self) -> np.ndarray:
        return np.isfinite(self.X).all(axis=-1)

    @property
    def training(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows and labels to train on, in C order."""
        taken = self.complete & (self.labels != None)  # noqa: E711  (elementwise)
        return self.X[taken], np.array(self.labels[taken].tolist())

    def expected(self, function: Callable[[np.ndarray], np.ndarray], fill: Any) -> np.ndarray:
        """``function`` of the complete rows, in their places, and ``fill`` in the others."""
        found = function(self.X[self.complete])
        out = np.full((*self.complete.shape, *found.shape[1:]), fill, dtype=np.result_type(found, type(fill)))
        out[self.complete] = found
        return out


def values(seed: int = 0) -> np.ndarray:
    """Bands of a scene (y, x, band): two overlapping clouds in space, some missing."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(Y, X, 3)) + 1.5 * classes()[:, :, None]
    found[2, 3, 1] = found[5, 5] = np.nan
    found[7, 1, 0] = np.inf
    return found


def classes() -> np.ndarray:
    """The class of every pixel, 0 or 1: the two sides of a diagonal."""
    return (np.add.outer(np.arange(Y), np.arange(X)) > 8).astype(int)


def labelled() -> np.ndarray:
    """A mask (y, x) of the pixels with a label: a third of them, two of which miss a feature."""
    mask = np.random.default_rng(1).random((Y, X)) < 0.35
    mask[2, 3] = mask[7, 1] = True
    mask[5, 5] = False
    return mask


def scene(data: np.ndarray | None = None) -> xr.DataArray:
    """The scene as a DataArray (band, y, x), as GIS files have them: y descends, the projection is a coordinate."""
    data = values() if data is None else data
    coordinates = {"band": BANDS, **places(), "spatial_ref": 0, "wavelength": ("band", [490.0, 560.0, 665.0])}
    found = xr.DataArray(data.transpose(2, 0, 1), dims=("band", "y", "x"), coords=coordinates, name="reflectance")
    return found.assign_coords(latitude=(("y", "x"), np.add.outer(np.arange(Y), np.arange(X)) / 7))


def places() -> dict[str, np.ndarray]:
    return {"y": 5000.0 - 10.0 * np.arange(Y), "x": 300.0 + 10.0 * np.arange(X)}


def labels_of(kind: str) -> tuple[xr.DataArray, np.ndarray]:
    """Labels of the pixels as a DataArray of a kind, and as objects, None where there is none."""
    code, mask = classes(), labelled()
    words = np.array(["water", "dry land"], dtype=object)
    data: Any
    attributes: dict[str, Any] = {}
    plain: np.ndarray
    if kind == "floats":
        data, plain = np.where(mask, code + 1.0, np.nan), (code + 1.0).astype(object)
    elif kind == "words":
        data, plain = np.where(mask, words[code], None), words[code]
    elif kind == "fixed words":
        data, plain = np.where(mask, words[code], "").astype(str), words[code]
    else:
        data, plain = np.where(mask, code + 3, 0).astype(np.uint8), (code + 3).astype(object)
        attributes = {"_FillValue": 0}
    found = xr.DataArray(data, dims=("y", "x"), coords=places(), attrs=attributes, name="landcover")
    return found, np.where(mask, plain, None)


def plain_rows(kind: str = "floats", data: np.ndarray | None = None) -> PlainRows:
    return PlainRows(values() if data is None else data, labels_of(kind)[1])
