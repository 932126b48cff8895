"""A made-up satellite scene of any size: a lazy cube with clouds, labels on few pixels, and the best map of it.

Every line of pixels is made from its own seed. So a line depends neither on the number of lines nor on chunks, and
memory does not grow with the scene.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral, Real
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from sklearn.utils._param_validation import Interval

from dask_odm.data.arguments import check
from dask_odm.data.store.layout import STORE_CHUNK_BYTES
from dask_odm.linalg.rows import uniforms_of
from dask_odm.typing import Array

if TYPE_CHECKING:
    import xarray as xr

WORDS = ("water", "forest", "field", "meadow", "town", "rock", "bog", "snow")
BANDS = ("B02", "B03", "B04", "B08", "B05", "B06", "B07", "B8A", "B11", "B12", "B01", "B09")  # names of Sentinel-2's
_CONSTRAINTS: dict[str, list[Any]] = {
    "height": [Interval(Integral, 1, None, closed="left")],
    "width": [Interval(Integral, 1, None, closed="left")],
    "n_classes": [Interval(Integral, 2, len(WORDS), closed="both")],
    "n_bands": [Interval(Integral, 1, None, closed="left")],
    "n_times": [Interval(Integral, 1, None, closed="left")],
    "noise": [Interval(Real, 0.0, None, closed="neither")],
    "mixed": [Interval(Real, 0.0, 1.0, closed="left")],
    "clouds": [Interval(Real, 0.0, 1.0, closed="left")],
    "labelled": [Interval(Real, 0.0, 1.0, closed="right")],
    "chunk_lines": [Interval(Integral, 1, None, closed="left"), None],
    "random_state": [Interval(Integral, 0, None, closed="left")],
}


class Scene(NamedTuple):
    """A scene of lazy DataArrays over y and x. Classes are codes from 1 on, with CF's ``flag_meanings``.

    ``cube`` has the features, NaN under clouds. ``labels`` has the classes of the labelled pixels, else 0, and
    ``truth`` the classes of all pixels. ``best`` has the classes that Bayes' rule finds from the features, 0 under
    clouds.
    """

    cube: xr.DataArray
    labels: xr.DataArray
    truth: xr.DataArray
    best: xr.DataArray


def make_scene(
    height: int = 256,
    width: int = 256,
    *,
    n_classes: int = 4,
    n_bands: int = 4,
    n_times: int = 1,
    noise: float = 1.0,
    mixed: float = 0.1,
    clouds: float = 0.1,
    labelled: float = 0.02,
    chunk_lines: int | None = None,
    random_state: int = 0,
) -> Scene:
    """Make a scene like a satellite image, with classes in smooth fields, seasons, clouds, mixed pixels and few labels.

    The features of a pixel are normally distributed around the mean of its class, which differs by band and season.
    Some pixels are mixed: their mean is halfway to the mean of another class, drawn at random. Clouds hide all bands of
    a time. Labels are on square plots. The best map is made by Bayes' rule, which knows these distributions and assumes
    that all classes are equally likely. On average, no map from the features alone is better.

    Parameters
    ----------
    height, width : lines of pixels, and pixels of a line
    n_classes : from 2 to 8
    n_bands, n_times : features are bands, or bands at several times
    noise : standard deviation of a feature around its mean, positive; means have one of about 1.5
    mixed : share of the mixed pixels, in [0, 1)
    clouds : share of the pixels that clouds hide at a time, in [0, 1)
    labelled : share of the pixels with a label, in (0, 1]
    chunk_lines : lines of a chunk; by default as many as make 16 MB
    random_state : int from 0

    Returns
    -------
    Scene
        ``cube`` has the dimensions band, y and x, and time before these if there are several; float32. ``labels``,
        ``truth`` and ``best`` are uint8 over y and x. Nothing is computed yet.

    Raises
    ------
    InputError
        A parameter is out of its range.
    """
    check("make_scene", _CONSTRAINTS, dict(locals()))
    import dask.array as da  # imported here, since both take long to load
    import xarray as xr

    maker = SceneMaker(width, n_classes, n_bands, n_times, noise, mixed, clouds, labelled, int(random_state))
    rows = chunk_lines or max(1, STORE_CHUNK_BYTES // (4 * width * n_bands * n_times))
    lines = da.arange(height, chunks=rows)
    shape = ((n_times,), (n_bands,), lines.chunks[0], (width,))
    features = lines.map_blocks(
        maker.features, new_axis=[0, 1, 3], chunks=shape, dtype=np.float32, meta=np.empty((0,) * 4, np.float32)
    )
    best = features.map_blocks(maker.best, drop_axis=[0, 1], dtype=np.uint8, meta=np.empty((0, 0), np.uint8))
    grid = {"y": maker.pixel * (height - 0.5 - np.arange(height)), "x": maker.pixel * (0.5 + np.arange(width))}
    times = np.datetime64("2024-03-15", "ns") + np.timedelta64(30, "D") * np.arange(n_times)
    bands = [*BANDS, *(f"B{band}" for band in range(13, n_bands + 1))][:n_bands]
    # objects, since zarr has no stable type for words of fixed length
    names = {"time": times, "band": np.array(bands, dtype=object), **grid}
    cube = xr.DataArray(features, names, ("time", "band", "y", "x"), "reflectance")
    maps = {
        "landcover": lines.map_blocks(maker.labels, new_axis=1, chunks=shape[2:], dtype=np.uint8),
        "truth": lines.map_blocks(maker.truth, new_axis=1, chunks=shape[2:], dtype=np.uint8),
        "best": best,
    }
    codes = np.arange(1, n_classes + 1, dtype=np.uint8)
    meanings = {
        "_FillValue": np.uint8(SceneMaker.missing),
        "flag_values": codes,
        "flag_meanings": " ".join(WORDS[:n_classes]),
    }
    found = [xr.DataArray(data, grid, ("y", "x"), name, meanings) for name, data in maps.items()]
    return Scene(cube if n_times > 1 else cube[0].drop_vars("time"), *found)


@dataclass(frozen=True)
class SceneMaker:
    """Maker of the lines of a scene, with the parameters of `make_scene`. ``lines`` (n,) are numbers of lines."""

    width: int
    classes: int
    bands: int
    times: int
    noise: float
    mixed: float
    clouds: float
    labelled: float
    seed: int

    missing: ClassVar[int] = 0  # code of pixels without a label, or under clouds
    pixel: ClassVar[float] = 10.0  # metres of a pixel's side
    waves: ClassVar[int] = 12  # plane waves that a smooth field is the sum of
    wavelengths: ClassVar[tuple[float, float]] = (60.0, 240.0)  # the shortest and the longest, in pixels
    plot: ClassVar[int] = 4  # pixels of the side of a plot that is labelled as a whole

    def random(self, *key: int) -> np.random.Generator:
        """Return the random generator for one purpose, named by ``key``."""
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))

    @cached_property
    def means(self) -> NDArray[np.float32]:
        """Mean of each class at every time and band, (classes, times · bands)."""
        random = self.random(0)
        level, season = 1.5 * random.standard_normal((2, self.classes, 1, self.bands))
        peak = random.random((self.classes, 1, 1))
        year = 2 * np.pi * (np.arange(self.times)[:, None] / 12 + peak)  # times are some months apart
        found: NDArray[np.float64] = level + season * np.sin(year) * (self.times > 1)
        return found.reshape(self.classes, -1).astype(np.float32)

    def truth(self, lines: Array) -> NDArray[np.uint8]:
        """Return the classes of the pixels of some lines, (n, width): those whose field is the largest."""
        highest = np.full((len(lines), self.width), -np.inf)
        found = np.zeros(highest.shape, np.uint8)
        for each in range(self.classes):
            field = self._field(lines, 1, each)
            found[field > highest] = each + 1
            np.maximum(highest, field, out=highest)
        return found

    def labels(self, lines: Array) -> NDArray[np.uint8]:
        """Return the classes of the pixels of some lines that lie in labelled plots, else 0, (n, width)."""
        plots = (lines // self.plot)[:, None] * -(-self.width // self.plot) + np.arange(self.width) // self.plot
        chosen = uniforms_of(plots, self.seed) < self.labelled
        return np.where(chosen, self.truth(lines), self.missing).astype(np.uint8)

    def features(self, lines: Array) -> NDArray[np.float32]:
        """Return the features of the pixels of some lines, (times, bands, n, width)."""
        truth = self.truth(lines) - 1
        found = np.empty((len(self.means[0]), len(lines), self.width), np.float32)
        for i, line in enumerate(lines.tolist()):
            random = self.random(2, line)
            other = (truth[i] + random.integers(1, self.classes, self.width)) % self.classes
            other = np.where(random.random(self.width) < self.mixed, other, truth[i])
            found[:, i] = random.standard_normal((len(found), self.width), np.float32) * np.float32(self.noise)
            found[:, i] += 0.5 * (self.means[truth[i]] + self.means[other]).T
        found = found.reshape(self.times, self.bands, *truth.shape)
        for time in range(self.times) if self.clouds else ():
            found[time][:, self._field(lines, 3, time) > NormalDist().inv_cdf(1.0 - self.clouds)] = np.nan
        return found

    def best(self, features: Array) -> NDArray[np.uint8]:
        """Return the classes that Bayes' rule finds from features (times, bands, n, width): (n, width), 0 if missing.

        A class's density is a mixture of normal ones: around its own mean, and halfway to every other one.
        """
        found = np.empty(features.shape[2:], np.uint8)
        halfway = 0.5 * (self.means[:, None] + self.means[None]).astype(np.float64)  # (classes, classes, d)
        share = np.full((self.classes, self.classes), self.mixed / (self.classes - 1))
        np.fill_diagonal(share, 1.0 - self.mixed)
        for i in range(len(found)):  # line by line, as distances to all centres take memory
            X = features[:, :, i].reshape(-1, self.width).astype(np.float64)
            distance = ((X[None] - halfway.reshape(-1, len(X))[:, :, None]) ** 2).sum(axis=1)
            scores = (-0.5 / self.noise**2) * distance.reshape(self.classes, self.classes, self.width)
            with np.errstate(invalid="ignore"):
                likely = logsumexp(scores, axis=1, b=share[:, :, None])
            found[i] = np.where(np.isnan(X).any(axis=0), self.missing, 1 + likely.argmax(axis=0))
        return found

    def _field(self, lines: Array, *key: int) -> Array:
        """Return a smooth field at the pixels of some lines, (n, width), of about standard normal values.

        It is a sum of plane waves of random directions. Each is a product of what depends on the line and on the
        pixel, so that all of them are one product of matrices.
        """
        random = self.random(*key)
        frequency = 2 * np.pi / random.uniform(*self.wavelengths, self.waves)
        direction, phase = 2 * np.pi * random.random((2, self.waves))
        down = np.exp(1j * (np.outer(lines, frequency * np.sin(direction)) + phase))
        along = np.exp(1j * np.outer(frequency * np.cos(direction), np.arange(self.width)))
        return math.sqrt(2 / self.waves) * (down @ along).real
