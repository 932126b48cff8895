"""What the engine costs with many workers: passes, cells and predictions whose tasks sleep instead of computing.

    python benchmarks/scale.py [--workers 100 300 1000] [--ways newton landmark] [--chunks 100] [--seconds 0.1]

A scheduler of `distributed` has so many real workers of one thread, in a few processes of this machine, which speak
TCP. The engine's own code gives them tasks over a store of 10,000 rows of 50 features a chunk. A chunk takes 100 ms of
sleep; there are 100 chunks for each worker, so 1,000 workers have 10⁹ rows. Results have the sizes of real ones:

join: what a fit asks all workers before it begins
newton: sums of Newton over the weights of 50 features
landmark: sums over 1,000 landmarks, with a sample of 3,000 rows; workers keep two bits a row for the products
products: such a product, which takes the two bits a row of the last `landmark`
cells: the shuffle to bins, and the solution of the bins
score: the accuracy of a model
predict: a value of every row, as a dask array that the workers keep

``efficiency`` is the time that the workers sleep over workers × seconds. All run on the cores of this machine, so it
counts processor time of the workers, which they would have to themselves. ``alone`` is what it were if the scheduler
and the client had a core each that is as quick: the sleep over workers × (the longest sleep of a worker + processor
seconds of client and scheduler), as if none of these overlapped. Not counted are those that the scheduler takes anyway
for as many idle workers, ``idle`` of a core, and which are spread over the time.
"""

from __future__ import annotations

import argparse
import json
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import sleepers
from distributed import Client, wait
from sleepers import (
    CHUNK_ROWS,
    Everyone,
    Figures,
    Question,
    SleepingStore,
    StandInModel,
    ask,
    no_columns,
    noise,
    sleeping_cluster,
)

from dask_odm.data.store.layout import Layout
from dask_odm.data.store.statistics import TargetFacts
from dask_odm.engine import shuffle
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.passes import StorePasses
from dask_odm.estimators import mixins, prediction
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.cells import recipe
from dask_odm.methods.cells.workers import CellSettings
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.cell_model import CellTree

FEATURES, LANDMARKS = 50, 1000
SAMPLE_BYTES = 3 * LANDMARKS * (4 * FEATURES + 24)
KEPT: dict[int, Any] = {}  # by number of chunks: what the last pass of `landmark` kept for `products`


def sleeping_store(chunks: int, seconds: float) -> SleepingStore:
    """Return a store of so many chunks."""
    rows = chunks * CHUNK_ROWS
    layout = Layout(rows, FEATURES, CHUNK_ROWS, "float32", "int8")
    facts = TargetFacts((0, 1), (rows // 2, rows - rows // 2), None, rows)
    return SleepingStore("/nowhere", "store", "0" * 64, layout, facts, "", None, seconds=seconds)


def join(store: SleepingStore, cluster: Cluster) -> None:
    assert Cluster.current().slots == cluster.slots


def newton(store: SleepingStore, cluster: Cluster) -> None:
    weights = FEATURES + 1
    query = Question(noise(8 * 5 * weights), 8 * weights * (weights + 1))
    StorePasses(store, cluster, no_columns).run(query, Question.sums, "full", 1, nbytes=8 * weights**2)


def landmark(store: SleepingStore, cluster: Cluster) -> None:
    query = Question(noise(4 * LANDMARKS * FEATURES), 8 * LANDMARKS + SAMPLE_BYTES, CHUNK_ROWS // 4)
    passes = StorePasses(store, cluster, no_columns)
    found = passes.run(query, Question.sums, noise(8 * LANDMARKS), nbytes=SAMPLE_BYTES, kept="kept")
    KEPT[store.n_chunks] = found.kept


def products(store: SleepingStore, cluster: Cluster) -> None:
    query = Question(noise(4 * LANDMARKS * FEATURES), 8 * LANDMARKS)
    passes = StorePasses(store, cluster, no_columns)
    passes.run(query, Question.sums, noise(8 * LANDMARKS), of_groups=KEPT[store.n_chunks])


def cells(store: SleepingStore, cluster: Cluster) -> None:
    data = SimpleNamespace(
        held=None, statistics=lambda scale=None: None, labelled_rows=store.rows, features=FEATURES, dtype=store.dtype,
        cluster=cluster, in_memory=False,
    )  # fmt: skip
    fit = ODMFit.of(ODMClassifier(), None, FitRun(0), ())
    settings = CellSettings(fit, (1.0, 1.0), False, float(store.rows), 4096, 0.0)
    count = 1 << (-(-store.rows // recipe.rows_of_bin(data, settings)) - 1).bit_length()  # a tree halves its rows
    top = CellTree(np.ones((count - 1, FEATURES)), np.ones(count - 1), np.zeros((count - 1, 2), np.int64))

    @contextmanager
    def partitions(partitioner: Any) -> Iterator[Any]:
        with tempfile.TemporaryDirectory() as folder:
            moved = shuffle.Shuffle(store, Everyone(), folder, cluster).by_partitioner(partitioner, Unscaled())
            yield SimpleNamespace(partitions=moved, cluster=cluster)

    names = ("count_run", "deal_run", "join")
    with (
        patch.multiple(shuffle, **{name: getattr(sleepers, name) for name in names}),
        patch.multiple(recipe, solve_stored_bin=sleepers.solve_bin, read_support=sleepers.read_support),
        patch.object(shuffle.StoredPartitions, "remove", sleepers.remove),
    ):
        solved: dict[int, Any] = {}
        seen: Any = SimpleNamespace(data=data, partitions=partitions)
        recipe._solve_stored(seen, top, list(range(count)), solved, settings, solved.__setitem__)
        assert len(solved) == count


class Unscaled:
    """A scaling that changes nothing."""

    def __call__(self, X: Any) -> Any:
        return X

    def save(self, path: str) -> None:
        """Leave no file."""


def score(store: SleepingStore, cluster: Cluster) -> None:
    fitted = SimpleNamespace(_for_tasks=StandInModel, classes_=np.arange(2))
    with patch.object(mixins, "check_features"), patch.object(mixins, "ScoreQuery", sleepers.ScoreQuery):
        right, total = mixins.StoreClassifier._count_store(fitted, store)
    assert right == total == store.rows


def predict(store: SleepingStore, cluster: Cluster) -> None:
    with patch.object(prediction, "values_of_chunks", sleepers.values_of_chunks):
        model = StandInModel()
        kept = prediction.lazy_values(store, model, model, str(time.time())).persist()
    wait(kept)
    assert len(kept) == store.rows


WAYS: dict[str, Callable[[SleepingStore, Cluster], None]] = {
    each.__name__: each for each in (join, newton, landmark, products, cells, score, predict)
}


def idleness(pipes: list[Any], seconds: float = 3.0) -> float:
    """Return the share of a core that the scheduler takes while nothing is asked of it."""
    ask(pipes[:1], "reset")
    time.sleep(seconds)
    return ask(pipes[:1], "found")[0]["cpu"] / seconds


@contextmanager
def interrupted_after(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in the block if it takes longer, as Ctrl-C raises KeyboardInterrupt."""

    def interrupt(*_: Any) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def measure(
    way: str, store: SleepingStore, cluster: Cluster, pipes: list[Any], own: Figures, idle: float, patience: float
) -> dict[str, Any]:
    """Return the figures of one way; raise TimeoutError if it did not end within ``patience`` seconds."""
    ask(pipes, "reset")
    own.reset()
    began = time.perf_counter()
    with interrupted_after(patience):
        WAYS[way](store, cluster)
    seconds = time.perf_counter() - began
    client = own.found()
    scheduler, *workers = ask(pipes, "found")
    slots = cluster.slots
    ideal = sum(each["slept"] for each in workers) / slots
    longest = max(each["longest"] for each in workers)
    return {
        "way": way,
        "workers": slots,
        "chunks": store.n_chunks,
        "tasks": scheduler["tasks"],
        "ideal": ideal,
        "seconds": seconds,
        "efficiency": ideal / seconds,
        "alone": ideal / (longest + client["cpu"] + max(0.0, scheduler["cpu"] - idle * seconds)),
        "client_cpu": client["cpu"],
        "scheduler_cpu": scheduler["cpu"],
        "idle": idle,
        "workers_cpu": sum(each["cpu"] for each in workers),
        "client_mb": (client["sent"] + client["received"]) / 1e6,
        "scheduler_mb": (scheduler["sent"] + scheduler["received"]) / 1e6,
        "client_peak_mb": client["peak"] / 1e6,
        "scheduler_peak_mb": scheduler["peak"] / 1e6,
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[100, 300, 1000])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--chunks", type=int, default=100, help="chunks for each worker")
    parser.add_argument("--seconds", type=float, default=0.1, help="what a chunk takes")
    parser.add_argument("--processes", type=int, default=4, help="that the workers share")
    parser.add_argument("--patience", type=float, default=180, help="seconds after which a way is given up")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    own = Figures()
    titled = options.json
    for count in options.workers:
        store = sleeping_store(options.chunks * count, options.seconds)
        with sleeping_cluster(count, options.processes) as (address, pipes), Client(address, timeout="60s") as client:
            cluster = Cluster(client, count, 1, 2 << 30, 4 << 30)
            idle = idleness(pipes)
            for way in options.ways:
                try:
                    found = measure(way, store, cluster, pipes, own, idle, options.patience)
                except TimeoutError:
                    print(f"{way}, {count} workers: not done after {options.patience:g} s", flush=True)
                    continue
                if options.json:
                    print(json.dumps(found), flush=True)
                    continue
                if not titled:
                    print("  ".join(found))
                    titled = True
                cells = ((f"{v:.3g}" if isinstance(v, float) else str(v), len(k)) for k, v in found.items())
                print("  ".join(f"{text:>{width}}" for text, width in cells), flush=True)
            KEPT.clear()


if __name__ == "__main__":
    main()
