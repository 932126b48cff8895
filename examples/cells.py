"""Cells over two features
=======================

The regions of a fit over two features, and where the machines of all regions together change their mind.

Run it by::

    python examples/cells.py --output cells.png

On a chess board the kernel must be narrow: a few landmarks do not see every square, while each cell needs to know its
own squares only. The plot has the planes between the cells in black, the decision line in white, and the rows. Needs
Matplotlib (``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io

import numpy as np
from matplotlib.figure import Figure

import dask_odm as odm
from dask_odm.datasets import make_chessboard
from dask_odm.solvers import Cells, Landmark


def main(arguments: list[str] | None = None) -> None:
    """Fit landmarks and cells, print their accuracies, and draw the cells."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--cell-rows", type=int, default=500)
    parser.add_argument(
        "--output",
        help="File for the plot, such as cells.png; else none.",
    )
    options = parser.parse_args(arguments)

    X, y = make_chessboard(options.rows, 2, n_squares=8)
    test = make_chessboard(4000, 2, n_squares=8, start=options.rows)
    for solver in (Landmark(50), Cells(options.cell_rows)):
        clf = odm.ODMClassifier(
            gamma=5.0,
            lam=10.0 * options.rows,
            scale=None,
            solver=solver,
            random_state=0,
        ).fit(X, y)
        print(
            f"{solver!r:<22} {clf.score(*test):.1%} right; 95 % is the best"
        )

    count = 300  # of points a side
    sides = [
        np.linspace(low, high, count)
        for low, high in zip(X.min(axis=0), X.max(axis=0), strict=True)
    ]
    points = np.stack([each.ravel() for each in np.meshgrid(*sides)], axis=1)
    cells = clf._model.cells_of(points).reshape(count, count)
    axes = Figure(figsize=(7, 7)).subplots()
    axes.scatter(*X.T, c=y, s=3, cmap="coolwarm", alpha=0.4)
    values = clf.decision_function(points).reshape(count, count)
    axes.contourf(*sides, values > 0, levels=1, cmap="coolwarm", alpha=0.5)
    axes.contour(*sides, values, levels=[0.0], colors="white")
    for cell in range(cells.max() + 1):
        axes.contour(
            *sides,
            cells == cell,
            levels=[0.5],
            colors="black",
            linewidths=1.0,
        )
    axes.set_title(
        f"{cells.max() + 1} cells of at most {options.cell_rows} rows"
    )
    axes.figure.savefig(options.output or io.BytesIO(), dpi=150)


if __name__ == "__main__":
    main()
