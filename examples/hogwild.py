"""HOGWILD!
========

Stochastic gradient descent for the SVM on one vector w that threads share without a lock.

Run it by::

    python examples/hogwild.py [--rows 20000] [--threads 2]

::

    minimise  ½‖w‖² + C Σ max(0, 1 − y (w·x + b))
    by steps  w ← w − η (w/(Cn) − 1[y(w·x + b) < 1] y x)

It is the rival of `examples/saddle_dsvc.py`. What is lock-free: every thread reads w and writes to it, entry by entry,
in compiled code without the interpreter's lock, while others do the same. Reading or writing an entry of 8 bytes is one
instruction, but adding to it is not, and there is no atomic addition here as there is in the paper: of two additions to
an entry at the same moment one may be lost. So no two runs are the same. What is not: threads begin a part of an epoch
together, and whoever starts them waits for the last one, to look at w. Dense rows touch every entry, so that threads
wait for each other's cache lines: two may well be slower than one.

Niu, Recht, Ré, Wright: *HOGWILD!: a lock-free approach to parallelizing stochastic gradient descent*, 2011.
Needs Matplotlib (``pip install "dask-odm[plot]"``).
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from matplotlib.figure import Figure
from saddle_data import split, synthetic


@numba.njit(nogil=True, cache=True)
def walk(
    X: Any, y: Any, rows: Any, w: Any, rate: float, shrink: float
) -> None:
    """Take a step for each of ``rows``; the last entry of the shared w is the
    offset, which is not shrunk.
    """
    d = X.shape[1]
    for i in rows:
        score = w[d]
        for j in range(d):
            score += X[i, j] * w[j]
        pull = rate * y[i] if y[i] * score < 1.0 else 0.0
        for j in range(d):
            w[j] += pull * X[i, j] - rate * shrink * w[j]
        w[d] += pull


@dataclass(frozen=True)
class Epoch:
    """w and offset after so many steps, and seconds."""

    w: Any
    steps: int
    seconds: float

    def accuracy(self, X: Any, y: Any) -> float:
        """Share of rows on their side."""
        return float(np.mean(np.sign(X @ self.w[:-1] + self.w[-1]) == y))

    def communication(self, clients: int) -> float:
        """Numbers that travel in multiples of clients · features: w to a
        client and its step back, a row.
        """
        return 2 * self.steps / clients


def hogwild(
    X: Any,
    y: Any,
    *,
    C: float,
    epochs: int,
    threads: int,
    parts: int = 1,
    seed: int = 0,
) -> Iterator[Epoch]:
    """States of w, ``parts`` an epoch, each over all rows; y is ±1."""
    n, d = X.shape
    w, seconds, steps = np.zeros(d + 1), 0.0, 0
    smooth = float(np.mean(np.einsum("ij,ij->i", X, X))) + 1.0
    # compiles
    walk(X[:1], y[:1], np.zeros(1, np.int64), np.zeros(d + 1), 0.0, 0.0)
    random = np.random.default_rng(seed)
    with ThreadPoolExecutor(threads) as pool:
        for epoch in range(epochs):
            # the mean of ½‖w‖²/(Cn) + hinge: the same minimum, and steps of
            # about the inverse of its curvature
            rate = 0.5 / (smooth * (1.0 + epoch))
            order = random.permutation(n)
            for part in np.array_split(order, parts):
                began = time.perf_counter()
                shares = np.array_split(part, threads)
                jobs = [
                    pool.submit(walk, X, y, rows, w, rate, 1.0 / (C * n))
                    for rows in shares
                ]
                for job in jobs:
                    job.result()
                seconds += time.perf_counter() - began
                steps += len(part)
                yield Epoch(w.copy(), steps, seconds)


def main(arguments: list[str] | None = None) -> None:
    """Show accuracy and speed by one thread and by several."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--features", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--C", type=float, default=32.0)
    parser.add_argument(
        "--output",
        help="File for the plot, such as hogwild.png; else none.",
    )
    options = parser.parse_args(arguments)
    ax = Figure(figsize=(7, 4), layout="constrained").subplots()
    X, y, X_test, y_test = split(
        *synthetic(options.rows, options.features, separable=False)
    )
    for threads in sorted({1, options.threads}):
        states = list(
            hogwild(
                X,
                y,
                C=options.C,
                epochs=options.epochs,
                threads=threads,
                parts=4,
            )
        )
        last = states[-1]
        right = [state.accuracy(X_test, y_test) for state in states]
        ax.plot(
            [state.steps for state in states],
            right,
            "o-",
            label=f"{threads} threads",
        )
        speed = last.steps / last.seconds
        print(
            f"{threads} threads: {last.accuracy(X_test, y_test):.4f} right, "
            f"{speed:.3g} steps a second"
        )
    ax.set(xlabel="steps", ylabel="accuracy on test rows")
    ax.legend()
    ax.figure.savefig(options.output or io.BytesIO(), dpi=120)


if __name__ == "__main__":
    main()
