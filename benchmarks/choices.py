"""What "auto" takes, over λ and γ: accuracy on other rows of landmarks, of their rival, and of what is taken.

    DASK_ODM_DATA=folder python benchmarks/choices.py [name ...] [--rows 6000] [--lams 1 1000] [--gammas 1]
    python benchmarks/choices.py board shells three

prints a Markdown table with a row for every set, multiple of a good γ and λ/n, as they are measured, then how much
"auto" loses at most to the better of both. With all rows the rival of landmarks are cells; with at most so many
``--rows`` that the whole kernel matrix is affordable, it is the exact solver. CPU seconds are those of the fit that was
taken, without and with the choice.

The classes of letter, mnist10k and usps are two: early or late letters, even or odd digits. Features are scaled to
[0, 1]. All rows but those that are learned from are predicted, up to 40,000. Three sets are generated: squares of a
board, shells around each other, and nine clouds of three classes.
"""

from __future__ import annotations

import argparse
import os
import warnings
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
from cells import table_head
from many_classes import clocked, read

import dask_odm as odm

GENERATED = {"board": 3, "shells": 10, "three": 10}
SETS = {  # files, features, rows to learn from, beyond those of "exact", and a good γ
    "a7a": (("a7a.train", "a7a.test"), 123, 12_000, 0.05),
    "cod-rna": (("cod-rna",), 8, 20_000, 4.0),
    "covtype": (("covtype",), 54, 16_000, 8.0),
    "ijcnn1": (("ijcnn1.train", "ijcnn1.test"), 22, 16_000, 4.0),
    "letter": (("letter",), 16, 16_500, 8.0),
    "mnist10k": (("mnist10k.train", "mnist10k.test"), 784, 6_000, 0.025),
    "skin-nonskin": (("skin-nonskin",), 3, 22_000, 64.0),
    "susy_sub30k": (("susy_sub30k",), 18, 16_500, 1.0),
    "usps": (("usps.train", "usps.test"), 256, 6_000, 0.04),
    "board": ((), 3, 22_000, 400.0),
    "shells": ((), 10, 20_000, 1.0),
    "three": ((), 10, 20_000, 1.0),
}
PREDICTED = 40_000
ROWS = 65_000  # of a set that are read, or generated
HEAD = ("data", "rows × features", "γ / good", "λ/n", "landmarks", "rival", "auto", "lost", "CPU s", "with the choice")


def generated(name: str) -> tuple[Any, Any]:
    """Return rows and labels of a set that is made up."""
    if name == "board":
        return odm.datasets.make_chessboard(ROWS, 3, n_squares=30, noise=0.05)
    if name == "shells":
        return odm.datasets.make_shells(ROWS, 10, noise=0.2)
    rng = np.random.default_rng(0)
    cloud = rng.integers(9, size=ROWS)
    return rng.normal(size=(9, 10))[cloud] + 0.9 * rng.normal(size=(ROWS, 10)), cloud % 3


def load(name: str, folder: Path | None, most: int) -> tuple[Any, ...]:
    """Return rows to learn from and to predict, with their labels."""
    files, features, count, _ = SETS[name]
    if files:
        parts = [read(file, features, folder) for file in files]
        y = np.concatenate([part[1] for part in parts])
        some = np.random.default_rng(0).permutation(len(y))[:ROWS]
        starts = np.cumsum([0, *(part[0].shape[0] for part in parts)])
        own = [some[(some >= a) & (some < b)] - a for a, b in pairwise(starts)]
        X = np.vstack([part[0][at].toarray() for part, at in zip(parts, own, strict=True)])
        y = np.concatenate([part[1][at] for part, at in zip(parts, own, strict=True)])
        order = np.random.default_rng(1).permutation(len(y))
        X, y = X[order], y[order]
    else:
        X, y = generated(name)
    if name == "letter":
        y = y > 13
    elif name in ("mnist10k", "usps"):
        y = y % 2
    low, width = X.min(axis=0), np.ptp(X, axis=0)
    X = ((X - low) / np.where(width > 0, width, 1.0)).astype(np.float32)
    count = min(count, most)
    return X[:count], y[:count], X[count : count + PREDICTED], y[count : count + PREDICTED]


def judged(model: Any, solver: str, X: Any, y: Any, test: Any, y_test: Any) -> tuple[float, float, str]:
    """Return the accuracy of a fit by a solver, its CPU seconds, and the solver that was taken."""
    _, _, cpu = clocked(lambda: model.set_params(solver=solver).fit(X, y))
    return float(np.mean(model.predict(test) == y_test)), cpu, model.history_[0]["solver"]


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(SETS)}; default: all")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    parser.add_argument("--rows", type=int, default=ROWS, help="most rows to learn from")
    parser.add_argument("--lams", type=float, nargs="+", default=[1.0, 10.0, 100.0, 1000.0], help="values of λ/n")
    parser.add_argument("--gammas", type=float, nargs="+", default=[0.25, 1.0, 4.0], help="multiples of a good γ")
    options = parser.parse_args(arguments)
    names = options.names or list(SETS)
    if unknown := set(names) - set(SETS):
        parser.error(f"unknown data sets: {', '.join(sorted(unknown))}")
    if options.data is None and set(names) - set(GENERATED):
        parser.error("name the folder of the data with --data or DASK_ODM_DATA")
    warnings.simplefilter("ignore")
    print(table_head(HEAD), flush=True)
    lost = []
    for name in names:
        rows = load(name, options.data and Path(options.data), options.rows)
        for multiple, share in product(options.gammas, options.lams):
            common = {"scale": None, "tol": 1e-2, "random_state": 0}
            model = odm.ODMClassifier(gamma=multiple * SETS[name][3], lam=share * len(rows[1]), **common)
            taken = judged(model, "auto", *rows)
            rival = "exact" if "few enough" in model.history_[0]["why"] else "cells"
            found = {solver: judged(model, solver, *rows) for solver in ("landmark", rival)}
            lost.append(max(each[0] for each in found.values()) - taken[0])
            row = [name, f"{len(rows[1]):,} × {rows[0].shape[1]}", f"{multiple:g}", f"{share:g}"]
            row += [f"{found['landmark'][0]:.4f}"]
            row += [f"{found[rival][0]:.4f} ({rival})", f"{taken[0]:.4f} ({taken[2]})", f"{lost[-1]:.4f}"]
            row += [f"{found[taken[2]][1]:.2f}", f"{taken[1]:.2f}"]
            print(f"| {' | '.join(row)} |", flush=True)
    print(f"\nat most {max(lost):.4f} lost, more than .005 in {sum(each > 0.005 for each in lost)} of {len(lost)} rows")


if __name__ == "__main__":
    main()
