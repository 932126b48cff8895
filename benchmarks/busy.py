"""Every solver on a quiet machine and on a busy one: seconds of the same fits in turns, and their ratio.

    DASK_ODM_DATA=folder python benchmarks/busy.py [case ...] [--rows N] [--repeats 3] [--load 4]

Beside the busy fits run ``--load`` processes that do nothing but compute, at the same priority; for the quiet ones they
are stopped. Seconds are medians of ``--repeats`` measurements of each kind, after a fit that compiles. A line is
Markdown. ``--rows`` takes only so many of the training rows.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from linear_rivals import Data, published
from many_classes import load
from mdd_rivals import made
from real_data import DATA_SETS

import dask_odm as odm
from dask_odm.solvers import DC, Cascade, DiP, Landmark

# until the process that started it is gone
SPIN = "import os; parent = os.getppid()\nwhile os.getppid() == parent: sum(range(100_000))"
# the least of a measurement: a system gives processors away for milliseconds, a virtual machine takes pages back that
# were free for seconds, and who needs them again pays for that
SHORT_SECONDS = 4.0
SETTLE_SECONDS = 0.2  # that the spinning processes take to be spread over the processors
LETTER: dict[str, Any] = {"gamma": 8.0, "lam": 1e4, "theta": 0.1, "scale": "minmax"}
LINEAR = {"kernel": "linear", "lam": 1e5, "theta": 0.1, "upsilon": 0.2}
Case = tuple[str, int, Callable[[Data], Callable[[], object]]]  # data, its most rows, and what makes the work


def _odm(solver: Any, name: str, **more: Any) -> Callable[[Data], Callable[[], object]]:
    settings = DATA_SETS[name].landmark if solver == "landmark" else DATA_SETS[name].odm or {}
    model = odm.ODMClassifier(**{"scale": None, **settings, "solver": solver, "random_state": 0, **more})
    return lambda data: lambda: model.fit(*data[:2])


def _any(model: Any) -> Callable[[Data], Callable[[], object]]:
    return lambda data: lambda: model.fit(*data[:2])


def _prediction(data: Data) -> Callable[[], object]:
    model = odm.ODMClassifier(gamma=0.05, lam=1e4, scale=None, solver=Landmark(2000)).fit(*data[:2])
    return lambda: model.predict(data[2])


CASES: dict[str, Case] = {
    "sodm": ("a7a", 1 << 20, _odm("sodm", "a7a")),
    "cascade": ("phishing", 4000, _odm(Cascade(8, fan_in=2), "phishing")),
    "dip": ("phishing", 4000, _odm(DiP(8, fan_in=2), "phishing")),
    "dc": ("phishing", 4000, _odm(DC(8), "phishing")),
    "exact": ("svmguide1", 1 << 20, _odm("exact", "svmguide1")),
    "exact, many rows": ("cod-rna", 16_000, _odm("exact", "cod-rna")),
    "landmark": ("a7a", 1 << 20, _odm("landmark", "a7a")),
    "landmark, many classes": ("letter", 6000, _any(odm.ODMClassifier(**LETTER, solver=Landmark(500), random_state=0))),
    "cells": ("cod-rna", 1 << 20, _odm("cells", "cod-rna")),
    "newton": ("cod-rna", 1 << 20, _odm("newton", "cod-rna", **LINEAR)),
    "dsvrg": ("cod-rna", 1 << 20, _odm("dsvrg", "cod-rna", **LINEAR, max_iter=5)),
    "svrg": ("cod-rna", 1 << 20, _odm("svrg", "cod-rna", **LINEAR, max_iter=5)),
    "csvrg": ("cod-rna", 1 << 20, _odm("csvrg", "cod-rna", **LINEAR, max_iter=5)),
    "pairs": ("letter", 6000, _any(odm.ODMClassifier(**LETTER, random_state=0))),
    "SaddleSVC mnp": ("ijcnn1", 1 << 20, _any(odm.SaddleSVC(0.85, solver="mnp"))),
    "SaddleSVC saddle": ("ijcnn1", 20_000, _any(odm.SaddleSVC(0.85, solver="saddle", random_state=0))),
    "SaddleSVC gilbert": ("cod-rna", 1 << 20, _any(odm.SaddleSVC(0.85, solver="gilbert", max_iter=2000))),
    "MDDRidge": ("made up", 500_000, _any(odm.MDDRidge(1e-4))),
    "MDDKernelRidge": ("made up", 5000, _any(odm.MDDKernelRidge(gamma=1 / 18, lam=1e-4))),
    "MixingClassifier": ("a7a", 1 << 20, _any(odm.MixingClassifier(n_shards=20, max_iter=10, random_state=0))),
    "ODMClassifierCV": ("svmguide1", 2000, _any(odm.ODMClassifierCV(random_state=0))),
    "predict": ("a7a", 1 << 20, _prediction),
}


@cache
def read(name: str, folder: Path) -> Data:
    """All rows of a data set: reading them takes longer than learning from them."""
    return load(name) if name == "letter" else published(name, folder)


def rows_of(name: str, folder: Path, most: int) -> Data:
    """Training rows, at most so many, and test rows."""
    if name == "made up":
        return made(most)
    X, y, T, t = read(name, folder)
    return X[:most], y[:most], T, t


@contextmanager
def competitors(count: int) -> Iterator[Callable[[bool], None]]:
    """Processes that compute, stopped at first: called with True they go on, with False they stop."""
    spinning = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(count)]

    def switch(on: bool) -> None:
        for process in spinning:
            process.send_signal(signal.SIGCONT if on else signal.SIGSTOP)
        time.sleep(SETTLE_SECONDS)

    try:
        switch(False)
        yield switch
    finally:
        for process in spinning:
            process.kill()
            process.wait()


def seconds(work: Callable[[], object], times: int = 1) -> float:
    """Mean of so many runs, one after the other."""
    began = time.perf_counter()
    for _ in range(times):
        work()
    return (time.perf_counter() - began) / times


def measure(work: Callable[[], object], repeats: int, switch: Callable[[bool], None]) -> tuple[float, float]:
    """Medians of quiet and busy seconds, in turns, after one run that compiles; short work is done several times."""
    work()
    times = max(1, round(SHORT_SECONDS / seconds(work)))
    quiet, busy = [], []
    for _ in range(repeats):
        quiet.append(seconds(work, times))
        switch(True)
        busy.append(seconds(work, times))
        switch(False)
    return statistics.median(quiet), statistics.median(busy)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--data", default=os.environ.get("DASK_ODM_DATA"))
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--load", type=int, default=4)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    print("| solver | data | quiet, s | busy, s | ratio |\n|---|---|---|---|---|")
    with competitors(options.load) as switch:
        for case in options.cases:
            name, most, make = CASES[case]
            data = rows_of(name, Path(str(options.data)), min(most, options.rows))
            quiet, busy = measure(make(data), options.repeats, switch)
            rows = f"{name}, {len(data[0]):,} × {data[0].shape[1]}"
            print(f"| {case} | {rows} | {quiet:.3g} | {busy:.3g} | {busy / quiet:.2f} |", flush=True)


if __name__ == "__main__":
    main()
