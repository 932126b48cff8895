"""Saddle-DSVC on workers: seconds, rounds and what travels, beside bare rounds of Dask tasks and fits in one process.

    python benchmarks/dsvc.py [--rows 10000] [--features 128] [--clients 20] [--workers 2]

Separable rows, the hard margin, to a certified gap of 1e-3, all in one run. A bare round is a trivial task a worker
whose result is fetched: what Dask alone takes for an exchange. The goal is 30 s for the sizes by default.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from typing import Any

import dask_odm as odm
from dask_odm.engine.workers import local_workers

TOL = 1e-3


def fitted(X: Any, y: Any, name: str, **settings: Any) -> dict[str, Any]:
    """Figures of a fit."""
    began = time.perf_counter()
    model = odm.SaddleSVC(None, tol=TOL, random_state=0, **settings).fit(X, y)
    seconds = time.perf_counter() - began
    last = model.history_[-1]
    more = {each: last[each] for each in ("rounds", "communication") if each in last}
    return {"way": name, "seconds": seconds, "steps": model.n_iter_, "gap": model.dual_gap_, **more}


def answer(number: int) -> int:
    """The work of a bare round."""
    return number


def bare_round(client: Any, repeat: int) -> float:
    """Median seconds of a round of one trivial task a worker."""
    workers, seconds = list(client.scheduler_info()["workers"]), []
    for i in range(repeat):
        began = time.perf_counter()
        client.gather([client.submit(answer, (i, w), workers=w, pure=False) for w in workers])
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def measure(rows: int, features: int, margin: float, clients: int, workers: int) -> dict[str, Any]:
    """Figures of all ways, and seconds of a bare round before and after."""
    X, y = odm.datasets.make_separable(rows, features, margin=margin, dtype="float64")
    for solver in ("mnp", "saddle"):
        fitted(X[:50], y[:50], "compiles", solver=solver)
    found = [fitted(X, y, "mnp, one process", solver="mnp"), fitted(X, y, "saddle, one process", solver="saddle")]
    with local_workers(workers, memory_limit="1GB") as client:
        before = bare_round(client, 100)
        way = f"saddle, {clients} clients on {workers} workers"
        found.append(fitted(X, y, way, solver=odm.solvers.Saddle(n_clients=clients)))
        bare = 0.5 * (before + bare_round(client, 100))
    return {"fits": found, "bare_round": bare}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--features", type=int, default=128)
    parser.add_argument("--margin", type=float, default=2.0, help="Least distance of a row from the plane.")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found = measure(options.rows, options.features, options.margin, options.clients, options.workers)
    if options.json:
        print(json.dumps(found))
        return
    for fit in found["fits"]:
        sent = f"  {fit['rounds']} rounds, {fit['communication']:,.0f} k·d numbers" if "rounds" in fit else ""
        print(f"{fit['way']:34} {fit['seconds']:8.2f} s  {fit['steps']:5} steps  gap {fit['gap']:.1e}{sent}")
    last = found["fits"][-1]
    each = last["seconds"] / last["rounds"]
    print(f"a round: {1e3 * each:.1f} ms, a bare one of Dask's {1e3 * found['bare_round']:.1f} ms")


if __name__ == "__main__":
    main()
