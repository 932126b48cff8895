"""Linear solvers: gap over seconds and passes
===========================================

Linear ODM by DSVRG, SVRG, CSVRG and Newton: relative duality gap over seconds and over passes, in one plot.

Run it by::

    python examples/compare_svrg.py --rows 200000 --output compare_svrg.png

The rows are generated, in the shape of SUSY (18 features). All four run in this process, so that they can be compared;
DSVRG's hops go round eight partitions. CSVRG stalls where its coreset's own optimum is. Needs Matplotlib
(``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io
import warnings
from typing import Any

from matplotlib.figure import Figure
from sklearn.exceptions import ConvergenceWarning

from dask_odm import ODMClassifier
from dask_odm.datasets import make_susy

SOLVERS = ("dsvrg", "svrg", "csvrg", "newton")


def histories(
    rows: int, lam: float, tol: float, epochs: int
) -> dict[str, list[dict[str, Any]]]:
    """The history of a fit by every solver, on the same rows."""
    X, y = make_susy(rows)
    found = {}
    for solver in SOLVERS:
        model = ODMClassifier(
            "linear",
            solver=solver,
            lam=lam,
            tol=tol,
            max_iter=epochs,
            scale="minmax",
        )
        model.set_params(random_state=0)
        with warnings.catch_warnings():
            # of CSVRG, which is to be seen
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X[:1000], y[:1000])  # compiles
            found[solver] = model.fit(X, y).history_
    return found


def plot(found: dict[str, list[dict[str, Any]]], title: str) -> Figure:
    """The gaps of ``found``, over seconds and over passes."""
    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    for ax, unit, label in zip(
        axes,
        ("seconds", "passes"),
        ("seconds", "passes over the rows"),
        strict=True,
    ):
        for solver, history in found.items():
            ax.semilogy(
                [r[unit] for r in history],
                [r["gap"] for r in history],
                "o-",
                markersize=3,
                label=solver,
            )
        ax.set_xlabel(label)
        ax.grid(alpha=0.3)
    axes[0].set_ylabel("relative duality gap")
    axes[1].legend()
    figure.suptitle(title)
    return figure


def main(arguments: list[str] | None = None) -> None:
    """Fit, print where each solver ended, and draw the plot."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--lam", type=float, default=1e3)
    parser.add_argument("--tol", type=float, default=1e-8)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--output",
        help="File for the plot, such as compare_svrg.png; else none.",
    )
    options = parser.parse_args(arguments)
    found = histories(options.rows, options.lam, options.tol, options.epochs)
    for solver, history in found.items():
        last = history[-1]
        print(
            f"{solver:7}  gap {last['gap']:.1e}  {last['seconds']:.3f} s  "
            f"{last['passes']:.1f} passes"
        )
    plot(found, f"{options.rows:,} rows, λ = {options.lam:g}").savefig(
        options.output or io.BytesIO(), dpi=150
    )


if __name__ == "__main__":
    main()
