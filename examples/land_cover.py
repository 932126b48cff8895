"""Land cover: a map and its errors
================================

From a scene with clouds to a map of its land cover, and to what the map gets wrong or cannot tell.

Run it by::

    python examples/land_cover.py --output land_cover.png

The scene is made up, with four bands at three times. Labels are on small plots that cover one pixel in fifty. The plot
shows what is there, the map, the sampled pixels that the map gets wrong, and how certain it is. Needs Matplotlib
(``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io
from tempfile import TemporaryDirectory

import xarray as xr
from matplotlib.figure import Figure

import dask_odm as odm
from dask_odm.datasets import make_scene


def main(arguments: list[str] | None = None) -> None:
    """Sample a scene, fit, write the map, and draw it beside its errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=200, help="lines of the scene, and pixels of a line")
    parser.add_argument("--output", help="File for the plot, such as land_cover.png; without it there is none.")
    options = parser.parse_args(arguments)

    # The scene is a lazy DataArray (time, band, y, x), NaN under clouds. Labels are codes (y, x), 0 where unknown.
    cube, labels, truth, best = make_scene(options.size, options.size, n_times=3, noise=2.0, clouds=0.05)
    print(f"{cube.sizes['time']} times {cube.sizes['band']} bands of {truth.size} pixels")

    # What labels and cube share, y and x, runs along rows; times and bands are features.
    clf = odm.ODMClassifier(scale="minmax", lam=1000, loo=True).fit(cube, labels)
    print(f"{clf.missing_rows_} labelled pixels under clouds, {clf.loo_score_:.0%} of the others right when left out")

    with TemporaryDirectory() as folder:
        # The map is lazy, and is written block by block: codes with the meanings of the labels.
        clf.predict(cube).to_zarr(f"{folder}/cover.zarr", consolidated=False)
        cover = xr.open_zarr(f"{folder}/cover.zarr", consolidated=False)["prediction"].load()
        clear = best.values != 0
        for name, found in (("the map", cover), ("the best that there is", best)):
            print(f"{(found == truth).values[clear].mean():.1%} right: {name}")

        # A store keeps the place of every row, here of 100 pixels a class, so that errors can be drawn.
        sample = odm.open_store(odm.ingest((cube, labels), f"{folder}/sample.zarr", per_class=100).path).load()
        wrong = sample.isel(sample=clf.predict(sample).values != sample.y.values)
        print(f"{wrong.sizes['sample']} of {sample.sizes['sample']} sampled pixels are wrong")

    # Probabilities have one more dimension, class. A pixel is uncertain if even the largest is low.
    certain = clf.predict_proba(cube).max("class").compute()
    print(f"{float((certain < 0.6).sum() / certain.notnull().sum()):.0%} of the pixels are uncertain")

    axes = Figure(figsize=(12, 10)).subplots(2, 2)
    truth.plot(ax=axes[0, 0], cmap="tab10", vmin=1, vmax=10, add_colorbar=False)
    cover.plot(ax=axes[0, 1], cmap="tab10", vmin=1, vmax=10, add_colorbar=False)
    cover.plot(ax=axes[1, 0], cmap="tab10", vmin=1, vmax=10, add_colorbar=False, alpha=0.3)
    axes[1, 0].scatter(wrong.at_x, wrong.at_y, c=wrong.y, cmap="tab10", vmin=1, vmax=10, edgecolors="black")
    certain.plot(ax=axes[1, 1], cmap="gray", add_colorbar=False)
    for each, title in zip(axes.flat, ("what is there", "map", "errors", "certainty"), strict=True):
        each.set_title(title)
    axes[0, 0].figure.savefig(options.output or io.BytesIO(), dpi=150)


if __name__ == "__main__":
    main()
