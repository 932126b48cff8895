"""First fits with nothing compiled: seconds of the processor of each, and what every loop costs.

    python benchmarks/first_fits.py [--rows 1000] [--cases float64 float32 …]

A process of its own, with an empty folder for compiled code, learns made-up rows of the default settings: float64, then
float32, then 26 classes of either, then five and twenty times the rows. Each is fitted twice; the second fit has
nothing to compile. A loop's seconds are without those of the loops that it calls.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
import time
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numba.core import event

from dask_odm import ODMClassifier

FEATURES = 20
CASES = {"float64": 1, "float32": 1, "26 float64": 2, "26 float32": 2, "more float64": 5, "more float32": 5}
CASES |= {"many float64": 20, "many float32": 20}  # landmarks, beside which cells are tried


class Compilations(event.Listener):
    """Name, argument types and seconds of every function that Numba compiles."""

    def __init__(self) -> None:
        self.found: list[tuple[float, str, str]] = []
        self._within = threading.local()

    def on_start(self, event: Any) -> None:
        stack = self._within.__dict__.setdefault("stack", [])
        stack.append([time.thread_time(), 0.0])

    def on_end(self, event: Any) -> None:
        stack = self._within.stack
        began, inner = stack.pop()
        seconds = time.thread_time() - began
        if stack:
            stack[-1][1] += seconds
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
        self.found.append((seconds - inner, name, ", ".join(map(str, event.data["args"]))))


def rows_of(case: str, rows: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((CASES[case] * rows, FEATURES))
    if "26" in case:
        return X.astype(case.split()[-1]), np.argmax(X @ rng.standard_normal((FEATURES, 26)), axis=1)
    return X.astype(case.split()[-1]), X[:, 0] + 0.3 * rng.standard_normal(len(X)) > 0


def measure(case: str, rows: int) -> list[str]:
    """Lines of the table: one for the fit, and one for each loop that it compiles."""
    X, y = rows_of(case, rows)
    compilations, seconds = Compilations(), []
    with event.install_listener("numba:compile", compilations):
        for _ in range(2):
            began = time.process_time()
            ODMClassifier().fit(X, y)
            seconds.append(time.process_time() - began)
    found = sorted(compilations.found, reverse=True)
    spent = f"{sum(each for each, *_ in found):.2f} s compile {len(found)} loops"
    lines = [f"| {seconds[0]:.2f} | {case}, {len(y):,} × {FEATURES} | {spent}; the second fit {seconds[1]:.3f} s |"]
    return lines + [f"| {each:.3f} | `{name}` | {types} |" for each, name, types in found]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--here", action="store_true", help="in this process, with what is compiled already")
    options = parser.parse_args(arguments)
    if not options.here:
        command = [sys.executable, __file__, "--here", "--rows", str(options.rows), "--cases", *options.cases]
        with TemporaryDirectory() as folder:
            subprocess.run(command, env=os.environ | {"NUMBA_CACHE_DIR": folder}, check=True)
        return
    print("| seconds | fit, or loop | loops compiled, or types of arguments |\n|---|---|---|")
    for case in options.cases:
        print("\n".join(measure(case, options.rows)), flush=True)


if __name__ == "__main__":
    main()
