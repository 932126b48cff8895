"""What a worker or a fit takes: a bare worker stays lean, and tasks and fits stay within what was projected."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dask_odm import MemoryLimitError, Metric, ODMClassifier, ODMRegressor
from dask_odm.methods.auto_limits import AutoLimits
from dask_odm.methods.landmark import many_classes
from dask_odm.solvers import Landmark
from traced import traced

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
MIB = 1 << 20
FROM = 64 * MIB  # measured bytes from which on a projection is at most twice as high

# A fit says what it needs when it is refused. With no byte more, how much does it take beyond a fit before it?
TOLD = """
import gc, json, logging, os, re, sys, warnings
from pathlib import Path
n, d, dtype, kernel, threads, *solvers = sys.argv[1:]
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(threads)])
import numpy as np
from dask.utils import parse_bytes
from dask_odm import MemoryLimitError, Metric, ODMClassifier
from dask_odm.linalg.threads import return_free_memory

def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

warnings.simplefilter("ignore")
logging.getLogger("dask_odm").setLevel(logging.ERROR)
rng = np.random.default_rng(0)
X = rng.standard_normal((int(n), int(d)), dtype=np.float32).astype(dtype)
y = X @ rng.normal(size=int(d)).astype(dtype) / np.sqrt(int(d)) + 0.5 * rng.normal(size=int(n)) > 0
found = {}
for solver in solvers:
    settings = {"solver": solver, "lam": 10.0 * int(n), "random_state": 0, "max_iter": 4 if solver == "newton" else 30}
    model = ODMClassifier("linear" if solver == "newton" else kernel, **settings)
    model.fit(X[:100], y[:100])  # loads loops, and makes threads
    told = 1 << 20
    while True:
        gc.collect()
        return_free_memory()
        before = status("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        try:
            model.set_params(memory_limit=told).fit(X, y)
            break
        except MemoryLimitError as error:
            needs, free = map(parse_bytes, re.search(r"needs (.*) per task, but only (.*) of a", str(error)).groups())
            told += needs - free + (1 << 14)  # of a share of several threads, a step
    found[solver] = [told, status("VmHWM") - before]
print(json.dumps(found))
"""

# The same of workers. What they hold before a fit is measured as the fit does, and differs by what ran on each.
TOLD_OF_WORKERS = """
import json, logging, re, sys, tempfile, warnings
from functools import partial
from pathlib import Path
import numpy as np
import dask
from dask.utils import parse_bytes
from distributed import Client, LocalCluster
import dask_odm as odm
from dask_odm.engine.limits import TRIM, USABLE, baseline_bytes

def status(name):
    return 1024 * int(re.search(name + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

def begin():
    held = baseline_bytes(lambda: None)
    Path("/proc/self/clear_refs").write_text("5")
    return held

warnings.simplefilter("ignore")
logging.getLogger("dask_odm").setLevel(logging.ERROR)
dask.config.set({"dask_odm.read-into-memory": 0, f"distributed.nanny.pre-spawn-environ.{TRIM}": None})
n, d, *solvers = sys.argv[1:]
rng = np.random.default_rng(0)
X = rng.standard_normal((int(n), int(d)), dtype=np.float32)
y = X @ rng.normal(size=int(d)).astype(np.float32) / np.sqrt(int(d)) + 0.5 * rng.normal(size=int(n)) > 0
found = {}
with (
    tempfile.TemporaryDirectory() as folder,
    LocalCluster(n_workers=2, threads_per_worker=1, memory_limit="4GB", dashboard_address=":0") as cluster,
    Client(cluster) as client,
):
    odm.ingest((X, y), folder + "/a.zarr")
    del X
    for solver in solvers:
        settings = {"solver": solver, "lam": 10.0 * int(n), "random_state": 0}
        settings["max_iter"] = 4 if solver == "newton" else 30
        model = odm.ODMClassifier("linear" if solver == "newton" else "rbf", **settings)
        model.fit(folder + "/a.zarr")  # loads loops, and makes threads
        told = {True: 0, False: 0}  # of workers, who hold something already, and of this process
        fits = []
        while len(fits) < 2:  # of which the highest counts: which tasks meet on a worker differs
            held = max(client.run(begin).values())
            limit = max(int((held + told[True]) / USABLE), told[False]) + (1 << 20)
            try:
                model.set_params(memory_limit=limit).fit(folder + "/a.zarr")
                peak = max(client.run(partial(status, "VmHWM")).values()) - held
                fits.append([int(USABLE * limit) - held, peak])
            except odm.MemoryLimitError as error:
                needs = parse_bytes(re.search("needs (.*) per task", str(error))[1])
                told["It holds" in str(error)] += max(1 << 18, needs - told["It holds" in str(error)])
        found[solver] = max(fits, key=lambda fit: fit[1])
print(json.dumps(found))
"""


SOLVERS = ["exact", "sodm", "landmark", "cells", "newton"]
QUICK = (688, 4000, "float32", "rbf", 2)  # as a partition of the demonstration


@pytest.mark.parametrize(("n", "d", "dtype", "kernel", "threads"), [
    QUICK,
    *(
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (  # each kernel in both dtypes, on one thread and on two; more rows than features, and less
            (400, 20_000, "float64", "rbf", 2),
            (12_000, 10, "float64", "rbf", 2),
            (120, 60_000, "float32", "rbf", 1),
            (3000, 60, "float32", "laplacian", 1),
            (2500, 300, "float64", "laplacian", 2),
            (3000, 300, "float64", "poly", 1),
            (2000, 1000, "float32", "poly", 2),
        )
    ),
])  # fmt: skip
def test_what_a_fit_in_memory_is_told_to_need_is_true(n, d, dtype, kernel, threads):
    require_true([TOLD, str(n), str(d), dtype, kernel, str(threads)], SOLVERS)


@pytest.mark.slow
@pytest.mark.parametrize(("more", "solvers"), [({"noise": "uneven"}, ["exact", "landmark"]), ({}, ["cells"])])
def test_what_leaving_numbers_out_is_told_to_need_is_true(more, solvers):
    script = TOLD.replace("ODMClassifier", "ODMRegressor").replace("normal(size=int(n)) > 0", "normal(size=int(n))")
    script = script.replace("settings = {", f"settings = {{'loo': True, **{more}, ")
    require_true([script, *map(str, QUICK)], solvers)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "solvers"), [(700, 20_000, SOLVERS[:-1]), (12_000, 10, ["sodm"])])
def test_what_a_fit_over_workers_is_told_to_need_is_true(n, d, solvers):
    """Newton, and the other solvers of so few features, take less than `FROM`, and would be held against nothing."""
    require_true([TOLD_OF_WORKERS, str(n), str(d)], solvers)


@pytest.mark.slow
def test_what_several_targets_of_a_store_are_told_to_need_is_true():
    script = TOLD_OF_WORKERS.replace("ODMClassifier", "ODMRegressor")
    script = re.sub("y = X @ .*", "y = rng.normal(size=(int(n), 24))", script)
    script = script.replace('"solver": solver', '"solver": odm.solvers.Landmark(50)')
    require_true([script, "300000", "3"], ["landmark"], least=32)


def require_true(script: list[str], solvers: list[str], least: float = FROM / MIB) -> None:
    """Require that the fits of a script are told no less than they take, and at most twice as much.

    The first is required of peaks above ``least`` MiB, the second from `FROM` on.
    """
    command = [sys.executable, "-c", *script, *solvers]
    done = subprocess.run(command, check=True, capture_output=True, timeout=1500, text=True)
    found = {solver: (told / MIB, peak / MIB) for solver, (told, peak) in json.loads(done.stdout).items()}
    assert set(found) == set(solvers)
    low = {solver: each for solver, each in found.items() if each[1] > max(each[0], least)}
    assert not low, "they take more than they tell, MiB"
    high = {solver: each for solver, each in found.items() if each[0] > 2 * max(each[1], FROM / MIB)}
    assert not high, "they are refused what would fit, MiB"


def test_a_bare_worker_is_lean():
    """Nor does a solve load what the modules of tasks do not (tests/test_layers.py)."""
    code = "import sys; from dask_odm.engine.limits import baseline_bytes; "
    code += "from dask_odm.methods.exact.solver import warm_up; print(baseline_bytes(warm_up), *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    baseline, *modules = done.stdout.split()
    assert int(baseline) < 250 * MIB
    assert {"sklearn", "pandas", "xarray", "pyarrow", "dask.array", "dask.dataframe", "matplotlib"}.isdisjoint(modules)


def projected_and_taken(model: ODMClassifier | ODMRegressor, X: np.ndarray, y: np.ndarray, few: int) -> tuple[int, int]:
    """Bytes that a fit says it needs, and those that it takes with so many."""
    with pytest.raises(MemoryLimitError) as refused:
        model.set_params(memory_limit=1).fit(X, y)
    projected = int(1.01 * parse_bytes(re.search(r"needs ([\d.]+ \w+)", str(refused.value))[1]))
    model.set_params(memory_limit=projected).fit(X[:few], y[:few])  # what is loaded once is no part of a fit
    return projected, traced(model.fit, X, y)[1]


@pytest.mark.parametrize(("classes", "settings"), [
    (2, {"solver": Landmark(50)}),
    (2, {"solver": Landmark(50), "loo": True}),
    (2, {"solver": Landmark(50), "scale": "ranks"}),
    (2, {"solver": Landmark(50), "metric": Metric("full", rounds=1, rows=3000)}),
    (4, {"solver": Landmark(50)}),
    (4, {"solver": "newton", "kernel": "linear"}),
], ids=str)  # fmt: skip
def test_a_fit_in_memory_stays_within_its_projection(monkeypatch, classes, settings):
    """With no byte to spare it keeps no kernel values; its data are not copied to be scaled, were they this many."""
    monkeypatch.setattr("dask_odm.data.rows.scaling.COPIED_BYTES", 0)
    X = np.random.default_rng(0).standard_normal((30_000, 80)).astype(np.float32)
    y = X[:, :classes].argmax(axis=1)
    model = ODMClassifier(lam=1e3, random_state=0, **{"scale": "standard"} | settings)
    projected, peak = projected_and_taken(model, X, y, 1000)
    assert peak <= projected + CPU_COUNT * (5 << 20)  # blocks that threads work in
    assert projected <= 2 * max(peak, FROM), "a projection far too high refuses what would fit"


def test_machines_over_landmarks_take_no_matrix_that_is_not_told(monkeypatch):
    """Each of 12 has a preconditioner, and makes another in its place; one more of each would be too much."""
    monkeypatch.setattr(many_classes, "AUTO", AutoLimits(descent_values=0))  # else such few rows are no Newton's
    X = np.random.default_rng(0).standard_normal((2900, 12)).astype(np.float32)
    model = ODMClassifier(lam=1e3, random_state=0, scale="standard", multi_class="ovr", solver=Landmark(700))
    projected, peak = projected_and_taken(model, X, X.argmax(axis=1), 1000)
    assert peak <= projected < peak + 12 * 4 * 700**2


@pytest.mark.parametrize("model", [ODMRegressor(solver=Landmark(200)), ODMRegressor("linear")])
def test_several_targets_take_what_is_told(model):
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((60_000, 10)).astype(np.float32), rng.standard_normal((60_000, 24))
    projected, peak = projected_and_taken(model.set_params(random_state=0), X, Y, 1000)
    assert peak <= projected + CPU_COUNT * (1 << 20)
    assert projected <= 2 * max(peak, FROM)


@pytest.mark.slow
def test_exact_pairs_of_many_classes_stay_within_their_projection():
    """Of 60 classes there are 1,770 machines, whose solutions take more than the kernel values."""
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(60), 30)
    X = (3.0 * rng.normal(size=(60, 4))[y] + rng.normal(size=(1800, 4))).astype(np.float32)
    model = ODMClassifier(solver="exact", gamma=0.3, lam=1800.0, scale=None, random_state=0)
    projected, peak = projected_and_taken(model, X, y, 150)
    assert peak <= projected + CPU_COUNT * (1 << 20)
    assert projected <= 2 * peak
