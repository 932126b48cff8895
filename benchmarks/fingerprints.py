"""Digests of fitted models, to hold one version of this package against another, bit by bit.

Run it in both checkouts, on one machine, and compare the lines::

    DASK_ODM_DATA=folder python benchmarks/fingerprints.py > after.txt

A line is a data set, a solver, where it ran, and a SHA-256 of coefficients, support, intercept and decision values.
"""

from __future__ import annotations

import argparse
import hashlib
import lzma
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import dask_odm as odm
from dask_odm.solvers import SODM, Landmark

SETTINGS = {"lam": 1e4, "theta": 0.1, "upsilon": 0.2, "scale": "minmax", "random_state": 0}
RBF = {"kernel": "rbf", "gamma": 2.0}
PARTS = ("coef_", "dual_coef_", "support_", "intercept_", "n_iter_", "dual_gap_")


def fingerprint(model: Any, X: Any) -> str:
    """Digest of what a model learned, and of its decision values on ``X``; empty attributes do not count."""
    digest = hashlib.sha256()
    for name in PARTS:
        value = np.asarray(getattr(model, name, ()))
        if value.size:
            digest.update(name.encode() + np.ascontiguousarray(value).tobytes())
    for record in model.history_:
        digest.update(repr([record.get("gap"), record.get("objective")]).encode())
    digest.update(np.asarray(model.decision_function(X)).tobytes())
    return digest.hexdigest()[:32]


def read(name: str, features: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ``name.svm.xz`` in the folder that DASK_ODM_DATA names."""
    from sklearn.datasets import load_svmlight_file

    with lzma.open(Path(os.environ["DASK_ODM_DATA"], f"{name}.svm.xz")) as stream:
        X, y = load_svmlight_file(stream, n_features=features)
    return X.toarray(), y


def in_memory() -> Iterator[tuple[str, str, Any, Any, dict[str, Any]]]:
    """Cases of rows in memory: data, solver, X, y and further parameters."""
    for name, features in (("svmguide1.train", 4), ("a7a.train", 123)):
        X, y = read(name, features)
        for solver in ("exact", "landmark", "sodm"):
            tree = SODM(16, stop_at=4) if name == "a7a.train" else SODM()
            way = {"exact": "exact", "landmark": Landmark(300), "sodm": tree}[solver]
            rows = slice(0, 6000) if solver == "exact" else slice(None)
            yield name, solver, X[rows], y[rows], RBF | {"solver": way}
        for solver in ("newton", "dsvrg", "svrg", "csvrg"):
            yield name, solver, X, y, {"kernel": "linear", "solver": solver, "max_iter": 8}


def over_store(rows: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Cases of a store: solver and further parameters."""
    yield "newton", {"kernel": "linear", "solver": "newton"}
    yield "dsvrg", {"kernel": "linear", "solver": "dsvrg", "max_iter": 3}
    yield "landmark", RBF | {"solver": Landmark(200)}
    yield "sodm", RBF | {"solver": SODM(max(2, rows // 2000), stop_at=max(2, rows // 2000))}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the store; fewer are read into memory")
    parser.add_argument("--workers", type=int, default=0, help="processes that read the store; 0: this one")
    parser.add_argument("--only", choices=("memory", "store"))
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    if asked.only != "store":
        for name, solver, X, y, more in in_memory():
            began = time.perf_counter()
            model = odm.ODMClassifier(**SETTINGS | more).fit(X, y)
            print(name, solver, "memory", fingerprint(model, X[:2000]), flush=True)
            print(f"{name} {solver}: {time.perf_counter() - began:.2f} s", file=sys.stderr)
    if asked.only == "memory":
        return
    with tempfile.TemporaryDirectory() as folder:
        # over 256 MB, so that it is not read into memory
        path = os.path.join(folder, "susy.zarr")
        odm.datasets.make_susy(asked.rows, dtype="float64", store=path)
        X = np.asarray(odm.open_store(path).X[:2000])
        client: Any = nullcontext()
        if asked.workers:
            from distributed import Client

            client = Client(n_workers=asked.workers, threads_per_worker=1, dashboard_address=":0")
        with client:
            for solver, more in over_store(asked.rows):
                began = time.perf_counter()
                model = odm.ODMClassifier(**SETTINGS | more).fit(path)
                print(f"susy-{asked.rows}", solver, f"store-{asked.workers}", fingerprint(model, X), flush=True)
                print(f"susy {solver}: {time.perf_counter() - began:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
