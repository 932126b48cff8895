r"""What clients send
=================

Saddle-DSVC and what it sends: beside distributed Gilbert (the paper's figure 3) and HOGWILD! (its figure 6).

Run it by::

    DASK_ODM_DATA=folder python examples/saddle_dsvc.py figure3 --full \
      --keep f3.json --output figure3.png
    DASK_ODM_DATA=folder python examples/saddle_dsvc.py figure6 --full \
      --keep f6.json --output figure6.png

- figure3: the hard margin that is certified (of separable rows) over communication, k = 20 clients.
- figure6: accuracy on test rows over communication: the ν-SVM of alpha = 0.85 by Saddle-DSVC and by Gilbert's
  algorithm, and the SVM of C = 32 by HOGWILD!, where w travels to a client and its step back, for every row.

A unit of communication is k·d numbers, one for every client and feature. It does not depend on where clients are: they
are threads of this process, or with ``--workers`` tasks of Dask's workers. With ``--keep`` the same command, given
again, goes on where it was interrupted. Without ``--full`` the rows are few and
generated. Needs Matplotlib (``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io
import os
import warnings
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np
from hogwild import hogwild
from matplotlib.figure import Figure
from saddle_data import Kept, Rows, available, published, split, synthetic

from dask_odm import SaddleSVC
from dask_odm.engine.workers import local_workers
from dask_odm.solvers import Gilbert, Saddle

CLIENTS, ALPHA, C = 20, 0.85, 32.0
Curve = tuple[list[float], list[float]]
LINES = {
    "Saddle-DSVC": Saddle(n_clients=CLIENTS),
    "Saddle-DSVC, blocks of 1": Saddle(block_size=1, n_clients=CLIENTS),
    "Gilbert": Gilbert(n_clients=CLIENTS),
}


def fitted(
    X: Any, y: Any, alpha: float | None, most: int, solver: Saddle | Gilbert
) -> SaddleSVC:
    return SaddleSVC(
        alpha, solver=solver, tol=1e-3, max_iter=most, random_state=0
    ).fit(X, y)


def margins(rows: Rows, most: int, solver: Saddle | Gilbert) -> Curve:
    """Margins that are certified, half the distance of the hulls at most,
    over communication.
    """
    history = fitted(*rows[:2], None, most, solver).history_
    return [record["communication"] for record in history], [
        float(np.sqrt(record["lower"] / 2)) for record in history
    ]


def accuracies(rows: Rows, most: int, solver: Saddle | Gilbert) -> Curve:
    """Accuracies over communication: each of a fit that was stopped after so
    many iterations.
    """
    found: Curve = ([], [])
    steps = 1
    while True:
        model = fitted(*rows[:2], ALPHA, steps, solver)
        found[0].append(model.history_[-1]["communication"])
        found[1].append(model.score(*rows[2:]))
        if steps >= most or model.dual_gap_ <= 1e-3:
            return found
        steps *= 2


def accuracies_of_hogwild(rows: Rows, epochs: int) -> Curve:
    sign = np.where(rows[1] == rows[1].max(), 1.0, -1.0)
    test = np.where(rows[3] == rows[1].max(), 1.0, -1.0)
    states = list(
        hogwild(rows[0], sign, C=C, epochs=epochs, threads=2, parts=4)
    )
    return [state.communication(CLIENTS) for state in states], [
        state.accuracy(rows[2], test) for state in states
    ]


def figure3(options: argparse.Namespace) -> Figure:
    sets: dict[str, Rows] = {}
    for name in (
        available(("mushrooms",), options.data) if options.full else ()
    ):
        sets[name] = published(name, options.data)
    n, sizes = (10_000, (32, 128, 256)) if options.full else (300, (8,))
    sets |= {
        f"synthetic, d = {d}": (*synthetic(n, d), None, None) for d in sizes
    }
    most = 3000 if options.full else 200
    found: dict[str, dict[str, Curve]] = {}
    for name, rows in sets.items():
        found[name] = {}
        for line, solver in LINES.items():
            # blocks of one take an exchange for every feature a sweep: about
            # as many exchanges in all
            steps = (
                max(16, most // rows[0].shape[1])
                if getattr(solver, "block_size", None)
                else most
            )
            measure = partial(margins, rows, steps, solver)
            found[name][line] = options.kept(f"{name} {line}", measure)
        tell(name, "margin", found[name])
    return drawn(found, "certified margin")


def figure6(options: argparse.Namespace) -> Figure:
    sets: dict[str, Rows] = {}
    for name in (
        available(("phishing", "a7a", "madelon"), options.data)
        if options.full
        else ()
    ):
        sets[name] = published(name, options.data)
    n, sizes = (10_000, (128, 256)) if options.full else (300, (8,))
    sets |= {
        f"synthetic, d = {d}": split(
            *synthetic(n * 10 // 9, d, separable=False)
        )
        for d in sizes
    }
    most = 256 if options.full else 16
    found: dict[str, dict[str, Curve]] = {}
    for name, rows in sets.items():
        lines = {
            "Saddle-DSVC": partial(
                accuracies, rows, most, LINES["Saddle-DSVC"]
            ),
            "Gilbert": partial(accuracies, rows, most, LINES["Gilbert"]),
            "HOGWILD!": partial(
                accuracies_of_hogwild, rows, 5 if options.full else 2
            ),
        }
        found[name] = {
            line: options.kept(f"{name} {line}", measure)
            for line, measure in lines.items()
        }
        tell(name, "accuracy", found[name])
    return drawn(found, "accuracy")


def tell(name: str, what: str, curves: dict[str, Curve]) -> None:
    """Print the best value of every curve, and what it took to come within a
    hundredth of the best of all.
    """
    goal = 0.99 * max(max(values) for _, values in curves.values())
    for line, (units, values) in curves.items():
        near = [
            unit
            for unit, value in zip(units, values, strict=True)
            if value >= goal
        ]
        when = f"{near[0]:8,.0f}" if near else f"over {units[-1]:,.0f}"
        print(
            f"{name:18} {line:24} {what} {max(values):.4f}  99 % of the "
            f"best after {when} k·d numbers",
            flush=True,
        )


def drawn(found: dict[str, dict[str, Curve]], what: str) -> Figure:
    """A plot of the curves for every data set."""
    figure = Figure(figsize=(4 * len(found), 3.5), layout="constrained")
    for (name, curves), axes in zip(
        found.items(),
        figure.subplots(1, len(found), squeeze=False)[0],
        strict=True,
    ):
        for line, (units, values) in curves.items():
            axes.semilogx(units, values, ".-", label=line)
        axes.set(
            title=name, xlabel=f"communication, k·d numbers, k = {CLIENTS}"
        )
    figure.axes[0].set_ylabel(what)
    figure.axes[0].legend()
    return figure


FIGURES = {"figure3": figure3, "figure6": figure6}


def main(arguments: list[str] | None = None) -> None:
    """Make one of the figures, or both of them."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "figure",
        nargs="?",
        choices=list(FIGURES),
        help="Without it both, one after the other.",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="The paper's sizes, and published data where they are.",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=0,
        help="Workers of Dask to start; 0: threads of this process.",
    )
    parser.add_argument(
        "--keep",
        help="JSON file of what was measured; what is there is kept.",
    )
    parser.add_argument(
        "--data",
        default=os.environ.get("DASK_ODM_DATA"),
        help="Folder of published data sets.",
    )
    parser.add_argument(
        "--output",
        help="File for the figure, such as figure3.png; else none.",
    )
    options = parser.parse_args(arguments)
    options.kept = Kept(options.keep)
    where: AbstractContextManager[Any] = (
        local_workers(options.workers) if options.workers else nullcontext()
    )
    with warnings.catch_warnings(), where:
        warnings.simplefilter("ignore")  # fits are stopped early on purpose
        for name in [options.figure] if options.figure else FIGURES:
            FIGURES[name](options).savefig(
                options.output or io.BytesIO(), dpi=120
            )


if __name__ == "__main__":
    main()
