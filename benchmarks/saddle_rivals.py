"""SaddleSVC in memory beside scikit-learn's NuSVC and LinearSVC, all in one run.

    DASK_ODM_DATA=folder python benchmarks/saddle_rivals.py [name ...] [--alphas .85 .92 1] [--limit 60]

On data sets in LIBSVM form, a random 80/20 split, features to [0, 1]. For every alpha: SaddleSVC to a certified gap of
1e-3, and NuSVC of the same problem in a process of its own, which is ended after ``--limit`` seconds: then its row says
so. LinearSVC, which solves another problem, keeps its defaults. Seconds are of one fit, ours after one that compiles.

    python benchmarks/saddle_rivals.py --separable 10000 128 [--solvers mnp saddle]

The hard margin of made-up separable rows, by our solvers only. ``rounds`` are iterations, of "saddle" sweeps.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
import warnings
from pathlib import Path
from typing import Any

from linear_rivals import Data, published
from sklearn.svm import LinearSVC, NuSVC

import dask_odm as odm

NAMES = ("svmguide1", "phishing", "a7a", "skin-nonskin", "ijcnn1")
Row = dict[str, Any]


def timed(model: Any, data: Data) -> tuple[Any, Row]:
    """The model fitted, with seconds and accuracy on test rows."""
    X, y, X_test, y_test = data
    began = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - began
    return model, {"seconds": seconds, "accuracy": float((model.predict(X_test) == y_test).mean())}


def ours(data: Data, alpha: float | None, solver: str, repeat: int) -> Row:
    """Figures of a fit, and the least seconds of ``repeat``."""
    model = odm.SaddleSVC(alpha, solver=solver)
    if solver == "saddle":
        timed(model, tuple(part[:64] for part in data))  # type: ignore[arg-type]  # compiles
    else:
        timed(model, data)
    rows = [timed(model, data)[1] for _ in range(repeat)]
    last = model.history_[-1]
    return min(rows, key=lambda row: row["seconds"]) | {
        "rival": f"SaddleSVC {solver}",
        "passes": last["passes"],
        "rounds": model.n_iter_,
        "gap": model.dual_gap_,
        "margin": model.margin_,
        "nu": model.nu_,
    }


def within(limit: float, model: Any, data: Data) -> Row:
    """As `timed`, in a process that is ended after ``limit`` seconds: then there are no figures."""
    receive, send = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=lambda: send.send(_tried(model, data)))
    process.start()
    found: Row = receive.recv() if receive.poll(limit) else {"seconds": None, "accuracy": None, "over": limit}
    process.terminate()
    process.join()
    return found


def _tried(model: Any, data: Data) -> Row:
    try:
        return timed(model, data)[1]
    except ValueError as error:
        return {"seconds": None, "accuracy": None, "error": str(error)}


def measure(name: str, data: Data, alphas: list[float], limit: float, solvers: list[str], repeat: int) -> list[Row]:
    rows = [timed(LinearSVC(), data)[1] | {"rival": "LinearSVC", "alpha": None}]
    for alpha in alphas:
        found = [ours(data, alpha, solver, repeat) | {"alpha": alpha} for solver in solvers]
        nu = NuSVC(kernel="linear", nu=found[0]["nu"] * (1 - 1e-9), cache_size=1000)
        rows += [*found, within(limit, nu, data) | {"rival": "NuSVC", "alpha": alpha}]
    return [{"data": name, "rows": len(data[0]), "features": data[0].shape[1]} | row for row in rows]


def hard_margin(n: int, d: int, solvers: list[str], repeat: int) -> list[Row]:
    """Our solvers on ``n`` separable rows of ``d`` features."""
    X, y = odm.datasets.make_separable(n, d, dtype="float64", random_state=0)
    found = [ours((X, y, X, y), None, solver, repeat) | {"alpha": "none"} for solver in solvers]
    return [{"data": "separable", "rows": n, "features": d} | row for row in found]


def show(row: Row) -> str:
    alpha = "" if row["alpha"] is None else f"alpha {row['alpha']!s:<5}"
    start = f"{row['data']:13} {row['rows']:7} {alpha:11} {row['rival']:18}"
    if row["seconds"] is None:
        return f"{start} {row['error'] if 'error' in row else 'over {:g} s'.format(row['over'])}"
    more = (
        f"  {row['passes']:5} passes {row['rounds']:5} rounds  gap {row['gap']:.1e}  margin {row['margin']:.2e}"
        if "passes" in row
        else ""
    )
    return f"{start} {row['seconds']:8.3f} s  accuracy {row['accuracy']:.4f}{more}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--data", default=os.environ.get("DASK_ODM_DATA"))
    parser.add_argument("--alphas", nargs="+", type=float, default=[0.85, 0.92, 1.0])
    parser.add_argument("--solvers", nargs="+", default=["mnp"])
    parser.add_argument("--separable", nargs=2, type=int, metavar=("ROWS", "FEATURES"))
    parser.add_argument("--repeat", type=int, default=1, help="Fits of ours, of which the shortest counts.")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if options.separable:
        for row in hard_margin(*options.separable, options.solvers, options.repeat):
            print(json.dumps(row) if options.json else show(row), flush=True)
        return
    if not options.data:
        parser.error("name the folder of data sets by --data, or by DASK_ODM_DATA")
    for name in options.names:
        data = published(name, Path(options.data))
        for row in measure(name, data, options.alphas, options.limit, options.solvers, options.repeat):
            print(json.dumps(row) if options.json else show(row), flush=True)


if __name__ == "__main__":
    main()
