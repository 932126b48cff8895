"""MDDRidge and MDDKernelRidge at one shard in memory beside scikit-learn's Ridge and KernelRidge, all in one run.

    python benchmarks/mdd_rivals.py [--rows 1000000] [--kernel-rows 8000] [--repeats 3]

Both solve the same problem: coefficients and root mean squared errors on new rows are compared. Seconds are the least
of several fits that take turns, after one that compiles.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

import dask_odm as odm

FEATURES = 18
LAM = 1e-4


def made(rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Rows of 18 features with a target that is not quite linear in them, and a fifth as many new ones."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(rows + rows // 5, FEATURES)) + rng.normal(size=FEATURES)
    y = X @ rng.normal(size=FEATURES) + np.sin(X[:, 0] * X[:, 1]) + rng.normal(size=len(X))
    return X[:rows], y[:rows], X[rows:], y[rows:]


def measure(ours: Any, theirs: Any, rows: int, repeats: int) -> dict[str, Any]:
    """Seconds of both on the same rows, and how far apart their models are."""
    X, y, X_new, y_new = made(rows)
    ours.fit(X[:100], y[:100])
    seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(repeats):
        for name, model in (("ours", ours), ("theirs", theirs)):
            began = time.perf_counter()
            model.fit(X, y)
            seconds[name].append(time.perf_counter() - began)
    name = "coef_" if hasattr(ours, "coef_") else "dual_coef_"
    expected = getattr(theirs, name)
    errors = [float(np.sqrt(np.mean((model.predict(X_new) - y_new) ** 2))) for model in (ours, theirs)]
    return {
        "model": type(ours).__name__,
        "rows": rows,
        "seconds": min(seconds["ours"]),
        "rival": type(theirs).__name__,
        "rival_seconds": min(seconds["theirs"]),
        "times_faster": min(seconds["theirs"]) / min(seconds["ours"]),
        "coefficients_apart": float(np.abs(getattr(ours, name) - expected).max() / np.abs(expected).max()),
        "rmse": errors[0],
        "rival_rmse": errors[1],
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kernel-rows", type=int, default=8_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    ridge = odm.MDDRidge(LAM), Ridge(alpha=LAM * options.rows), options.rows
    gamma, n = 1.0 / FEATURES, options.kernel_rows
    kernel = odm.MDDKernelRidge(gamma=gamma, lam=LAM), KernelRidge(kernel="rbf", gamma=gamma, alpha=LAM * n), n
    for each in (ridge, kernel):
        found = measure(*each, options.repeats)
        if options.json:
            print(json.dumps(found), flush=True)
            continue
        print(
            f"{found['rows']:9,} rows  {found['model']:15} {found['seconds']:7.3f} s  {found['rival']:12} "
            f"{found['rival_seconds']:7.3f} s  {found['times_faster']:5.2f} times faster, coefficients "
            f"{found['coefficients_apart']:.0e} apart, rmse {found['rmse']:.6f} and {found['rival_rmse']:.6f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
