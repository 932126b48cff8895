"""More rows after a fit: `warm_start` beside a fit anew, in seconds, steps, gap and accuracy.

    DASK_ODM_DATA=folder python benchmarks/more_rows.py [name ...] [--variants exact landmarks:1000] [--new .05]

A model is fitted on all training rows but the last share ``--new``, then on all of them with ``warm_start=True``, then
anew. Data, splits and settings are those of `cells`, a row weighs the same each time, and ``tol`` is 1e-3.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
from cells import WARM_ROWS, model_of, prepare, table_head
from sklearn.base import clone

HEAD = ("data", "variant", "rows", "new", "warm, s", "anew, s", "ratio", "steps", "anew", "gap", "anew", "accuracy",
        "anew")  # fmt: skip


def row(path: Path, variant: str, share: float) -> str:
    """Measure one row of the table."""
    with np.load(path) as kept:
        X, y, test, y_test = (kept[part] for part in ("X", "y", "test", "y_test"))
    old = round((1.0 - share) * len(y))
    anew = model_of(path.stem, variant, len(y), len(np.unique(y))).set_params(tol=1e-3)
    few = np.random.default_rng(0).permutation(len(y))[:WARM_ROWS]
    clone(anew).fit(X[few], y[few])
    warm = clone(anew).set_params(warm_start=True, lam=anew.lam * old / len(y)).fit(X[:old], y[:old])
    seconds = []
    for model in (warm.set_params(lam=anew.lam), anew):
        began = time.perf_counter()
        model.fit(X, y)
        seconds.append(time.perf_counter() - began)
    cells = [path.stem, variant, f"{len(y):,}", f"{len(y) - old:,}", *(f"{each:.2f}" for each in seconds)]
    cells += [f"{seconds[1] / seconds[0]:.1f}", str(warm.n_iter_), str(anew.n_iter_)]
    cells += [f"{model.history_[-1]['gap']:.1e}" for model in (warm, anew)]
    cells += [f"{(model.predict(test) == y_test).mean():.4f}" for model in (warm, anew)]
    return f"| {' | '.join(cells)} |"


def main(arguments: list[str] | None = None) -> None:
    """Print the table, row by row as they are measured."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=["a7a", "ijcnn1", "cod-rna", "susy_sub30k"])
    parser.add_argument("--variants", nargs="+", default=["exact", "landmarks:1000", "cells:4000"])
    parser.add_argument("--new", type=float, default=0.05, help="share of the rows that come later")
    parser.add_argument("--data", type=Path, default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        print(table_head(HEAD), flush=True)
        for name in options.names:
            path = prepare(name, Path(folder), options.data)
            for variant in options.variants:
                print(row(path, variant, options.new), flush=True)


if __name__ == "__main__":
    main()
