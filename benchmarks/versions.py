"""Two versions of the package on one machine: every kind of fit of MEASURED.md, in turns, and the ratios.

    DASK_ODM_DATA=folder python benchmarks/versions.py BEFORE [AFTER] [--rows WORD ...] [--turns 5]

BEFORE and AFTER are checkouts (AFTER: this one). Each row is prepared in a process for each version, which first runs
it once to compile; then the processes take turns. A line is Markdown: the least seconds of both, their ratio (above 1:
AFTER is slower), and the peaks of memory of both processes in MB. Rows that get slower by a tenth are marked. Compiling
takes memory, so peaks of a checkout's first run are not those of later ones.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dask
import numpy as np
from busy import CASES, rows_of
from linear_rivals import SETS, generated, published
from many_classes import load, own_settings
from mdd_rivals import made
from real_data import DATA_SETS
from small_data import kernel_cases, linear_cases, published_cases

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.workers import local_workers
from dask_odm.solvers import SODM, Landmark

HERE = Path(__file__).resolve().parent
SLOWER = 1.1  # a ratio that is marked
TURN_SECONDS = 0.3  # the least of a turn: short work is done several times
Work = Callable[[], object]
DATA = Path(os.environ.get("DASK_ODM_DATA", ""))


def _fit(model: Any, data: Callable[[], Any]) -> Callable[[Path], Work]:
    """Work of a fit of ``data()``'s first two values."""

    def prepare(folder: Path) -> Work:
        X, y = data()[:2]
        return lambda: model.fit(X, y)

    return prepare


def _predict(model: Any, data: Callable[[], Any]) -> Callable[[Path], Work]:
    """Work of a prediction of ``data()``'s third value, after a fit."""

    def prepare(folder: Path) -> Work:
        X, y, test = data()[:3]
        model.fit(X, y)
        return lambda: model.predict(test)

    return prepare


def memory_rows() -> Iterator[tuple[str, Callable[[Path], Work]]]:
    """Fits and predictions of rows in memory."""
    for name, (source, most, make) in CASES.items():
        yield f"{name}, {source}", lambda folder, a=(source, most, make): a[2](rows_of(a[0], DATA, a[1]))
    for name, settings in DATA_SETS.items():
        for which, tuned in (("landmarks", settings.landmark), ("more landmarks", settings.finer)):
            if tuned is not None:
                model = odm.ODMClassifier(**{"solver": "landmark", "random_state": 0, "scale": "minmax", **tuned})
                yield f"{name}, {which}", _fit(model, lambda name=name: published(name, DATA))
        if settings.odm is not None:
            model = odm.ODMClassifier(solver="sodm", **{"scale": None, "random_state": 0, **settings.odm})
            yield f"{name}, sodm", _fit(model, lambda name=name: published(name, DATA))
    for name in SETS:
        for alpha in (0.85, 1.0):
            model = odm.SaddleSVC(alpha, random_state=0)
            yield f"{name}, SaddleSVC {alpha}", _fit(model, lambda name=name: published(name, DATA))
        for solver in ("newton", "sodm"):
            model = odm.ODMClassifier("linear", lam=1e4, scale=None, solver=solver, tol=1e-6, random_state=0)
            yield f"{name}, linear {solver}", _fit(model, lambda name=name: published(name, DATA))
    yield (
        "SUSY-shaped, newton",
        _fit(odm.ODMClassifier("linear", lam=1e4, scale=None, tol=1e-6), lambda: generated(1_000_000)),
    )
    yield "MDDRidge", _fit(odm.MDDRidge(1e-4), lambda: made(1_000_000))
    for name, scheme in (("satimage", "ovr"), ("usps", "ovo"), ("letter", "ovo"), ("mnist10k", "ovo")):
        solver = Landmark(1000) if scheme == "ovr" else "exact"

        def rows(name: str = name) -> Any:
            X, y, test, _ = load(name)
            return X.astype(np.float32), y, test.astype(np.float32)

        classes, n = {"satimage": (6, 4435), "usps": (10, 7291), "letter": (26, 16000), "mnist10k": (10, 10000)}[name]
        settings = own_settings(name, n, classes, 0.3)
        model = odm.ODMClassifier(solver=solver, multi_class=scheme, **settings)
        yield f"{name}, {scheme}", _fit(model, rows)
        yield f"{name}, {scheme}, predict", _predict(model, rows)
    model = odm.ODMClassifier("linear", lam=11_314.0, theta=0.0, upsilon=0.2, random_state=0)
    yield "news20, 20 classes", _fit(model, lambda: load("news20"))
    for name in ("svmguide1", "a7a"):
        model = odm.ODMClassifier(
            **{"solver": "landmark", "scale": None, "random_state": 0, "loo": True, **DATA_SETS[name].landmark}
        )
        yield f"{name}, loo", _fit(model, lambda name=name: published(name, DATA))
    for name in ("svmguide1", "phishing", "cod-rna"):
        yield (
            f"{name}, ODMClassifierCV",
            _fit(odm.ODMClassifierCV(random_state=0), lambda name=name: published(name, DATA)),
        )


def small_rows() -> Iterator[tuple[str, Callable[[Path], Work]]]:
    """Small data, and sparse and dense linear sets."""
    for n in (100, 200, 500, 1000, 2000, 5000, 10_000):
        for i, name in enumerate(("dense, defaults", "dense, tuned", "CSR, defaults", "CSR, tuned")):

            def prepare(folder: Path, n: int = n, i: int = i, dtype: Any = float) -> Work:
                _, X, y, model, _ = list(kernel_cases([n]))[i]
                return lambda: model.fit(X.astype(dtype), y)

            yield f"{n} × 20, {name}", prepare
            if i == 0:
                yield f"{n} × 20, float32", lambda folder, prepare=prepare: prepare(folder, dtype=np.float32)
    for i, cases in enumerate([linear_cases, lambda scale: published_cases(str(DATA))]):
        for j in range((5, 3)[i]):

            def prepare_linear(folder: Path, cases: Any = cases, j: int = j) -> Work:
                _, X, y, model, _ = list(cases(1.0))[j]
                return lambda: model.fit(X, y)

            yield f"linear set {5 * i + j}", prepare_linear


def store_rows() -> Iterator[tuple[str, Callable[[Path], Work]]]:
    """Fits by two workers over stores, reading, opening and ingesting."""
    shells = {"gamma": 0.03, "lam": 1e5, "upsilon": 0.2, "theta": 0.2, "scale": "standard", "random_state": 0}
    models = {
        "newton": (odm.ODMClassifier("linear", lam=1e4, scale=None, tol=1e-6), 5_000_000),
        "landmark": (odm.ODMClassifier(solver=Landmark(300), **shells), 300_000),
        "sodm": (odm.ODMClassifier(solver=SODM(64, stop_at=64), **shells), 100_000),
        "dsvrg": (
            odm.ODMClassifier("linear", solver="dsvrg", lam=1e4, scale=None, max_iter=2, random_state=0),
            500_000,
        ),
        "SaddleSVC": (odm.SaddleSVC(0.85), 2_000_000),
        "MDDRidge": (odm.MDDRidge(1e-4), 2_000_000),
        "Mixing": (odm.MixingClassifier(max_iter=5, random_state=0), 1_000_000),
    }
    for name, (model, rows) in models.items():

        def prepare(folder: Path, model: Any = model, rows: int = rows) -> Work:
            path = str(folder / "rows.zarr")
            if isinstance(model, odm.MDDRidge):
                odm.ingest(made(rows)[:2], path, target="real")
            else:
                odm.datasets.make_susy(rows, store=path)
            dask.config.set({"dask_odm.read-into-memory": 0})
            KEPT.append(local_workers(2, memory_limit="1GB"))
            KEPT[0].__enter__()
            return lambda: model.fit(path)

        yield f"store, {name}", prepare

    def opened(folder: Path) -> Work:
        odm.datasets.make_susy(10_000, store=str(folder / "s.zarr"))
        return lambda: Store.open(str(folder / "s.zarr"))

    yield "store, open", opened
    yield (
        "store, ingest LIBSVM",
        lambda folder: lambda: odm.ingest(DATA / "a7a.train.svm.xz", folder / "a.zarr", n_features=123, overwrite=True),
    )
    yield (
        "store, make and write",
        lambda folder: lambda: odm.datasets.make_susy(1_000_000, store=str(folder / f"{time.monotonic_ns()}.zarr")),
    )


KEPT: list[Any] = []  # workers, as long as the process


def all_rows() -> dict[str, Callable[[Path], Work]]:
    """Every row by its name."""
    return dict([*memory_rows(), *small_rows(), *store_rows()])


def be_measured(name: str) -> None:
    """Run a row each time a line comes on standard input, and print seconds; at its end the peak in MB."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(prefix="versions-", ignore_cleanup_errors=True) as folder:
        work = all_rows()[name](Path(folder))
        work()
        began = time.perf_counter()
        work()
        times = max(1, round(TURN_SECONDS / (time.perf_counter() - began)))
        print("ready", flush=True)
        for line in sys.stdin:
            if line == "end\n":
                break
            began = time.perf_counter()
            for _ in range(times):
                work()
            print((time.perf_counter() - began) / times, flush=True)
        for each in KEPT:
            each.__exit__(None, None, None)
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        print(max(resource.getrusage(each).ru_maxrss for each in kinds) / 1000, flush=True)


def compare(name: str, trees: list[Path], turns: int) -> tuple[list[float], list[float]]:
    """Least seconds and peaks of one row by each version."""
    processes = []
    for tree in trees:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tree), str(HERE)])}
        command = [sys.executable, str(HERE / "versions.py"), str(tree), "--measure", name]
        processes.append(subprocess.Popen(command, stdin=-1, stdout=-1, text=True, env=environment))
    said = [_said(process) for process in processes]
    if said != ["ready"] * len(trees):
        raise ValueError(f"not every version runs it: {said}")
    seconds = [np.inf] * len(trees)
    for turn in range(turns):
        for i in (0, 1) if turn % 2 else (1, 0):
            seconds[i] = min(seconds[i], float(_asked(processes[i], "go")))
    peaks = [float(_asked(process, "end")) for process in processes]
    for process in processes:
        process.communicate()
    return seconds, peaks


def _asked(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdin is not None
    process.stdin.write(f"{word}\n")
    process.stdin.flush()
    return _said(process)


def _said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the package")
    parser.add_argument("after", type=Path, nargs="?", default=HERE.parent)
    parser.add_argument("--rows", nargs="*", default=[""], help="words: rows whose names have one of them")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        be_measured(options.measure)
        return
    print("| row | before, s | after, s | ratio | before, MB | after, MB |\n|---|---|---|---|---|---|")
    trees = [options.before.resolve(), options.after.resolve()]
    for name in [name for name in all_rows() if any(word in name for word in options.rows)]:
        try:
            seconds, peaks = compare(name, trees, options.turns)
        except ValueError as error:
            print(f"| {name} | {error} |", flush=True)
            continue
        ratio = seconds[1] / seconds[0]
        mark = " **slower**" if ratio > SLOWER else ""
        figures = f"{seconds[0]:.3g} | {seconds[1]:.3g} | {ratio:.2f}{mark} | {peaks[0]:.0f} | {peaks[1]:.0f}"
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
