"""Parameter mixing beside scikit-learn's Passive-Aggressive updates, and over the shards of a store.

    python benchmarks/mixing_shards.py memory [--rows 1000000] [--epochs 10]
    python benchmarks/mixing_shards.py store [--rows 5000000] [--workers 2] [--limit 500MB]

SUSY-shaped rows (18 features), of which 30 of 100 shards have flipped labels. In memory, the rival makes as many
passes in this process, shuffling its rows as it does by default and without; every rival is fitted in turn, and the
median of the repetitions counts. Over a store, the workers' peak memory is held against their limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import dask

import dask_odm as odm
from dask_odm.data.store.store import Store
from dask_odm.engine.workers import local_workers, peak_bytes


def rival(epochs: int, *, shuffle: bool) -> Any:
    """Passive-Aggressive updates for so many passes, by the class that scikit-learn has them in."""
    from sklearn.linear_model import PassiveAggressiveClassifier  # here: workers import this file, and stay lean

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return PassiveAggressiveClassifier(max_iter=epochs, tol=None, shuffle=shuffle, random_state=0)


def in_memory(rows: int, epochs: int, repeat: int) -> dict[str, Any]:
    """Seconds of ten epochs, processor's and clock's, and the accuracy, of each rival."""
    X, y = odm.datasets.make_susy(rows, dtype="float64")
    shard = odm.datasets.deal_shards(rows, 100)
    wrong, bad = odm.datasets.contaminate_labels(y, shard, flipped=30)

    def fits() -> dict[str, Callable[[], Any]]:
        mixed = odm.MixingClassifier(max_iter=epochs, random_state=0)
        return {
            "MixingClassifier": lambda: mixed.fit(X, wrong, shard=shard),
            "scikit-learn, shuffled": lambda: _quietly(rival(epochs, shuffle=True), X, wrong),
            "scikit-learn, in order": lambda: _quietly(rival(epochs, shuffle=False), X, wrong),
        }

    odm.MixingClassifier(max_iter=1, n_shards=2).fit(X[:1000], y[:1000])  # compiles
    seconds: dict[str, list[tuple[float, float]]] = {}
    models = {}
    for _ in range(repeat):
        for name, fit in fits().items():
            began = time.perf_counter(), time.process_time()
            models[name] = fit()
            took = time.perf_counter() - began[0], time.process_time() - began[1]
            seconds.setdefault(name, []).append(took)
    found = {
        name: {
            "seconds": statistics.median(clock for clock, _ in each),
            "processor_s": statistics.median(processor for _, processor in each),
            "accuracy": float(models[name].score(X, y)),
        }
        for name, each in seconds.items()
    }
    suspects = set(models["MixingClassifier"].suspects_)
    return {"rows": rows, "epochs": epochs, "named": len(suspects & set(bad.tolist())), "bad": len(bad), "fits": found}


def _quietly(model: Any, X: Any, y: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def over_store(rows: int, epochs: int, folder: str, workers: int, limit: str) -> dict[str, Any]:
    """Seconds and peaks of a fit by workers, over a store whose shards an array names."""
    clean, path = os.path.join(folder, "clean.zarr"), os.path.join(folder, "told.zarr")
    odm.datasets.make_susy(rows, store=clean)
    shard = odm.datasets.deal_shards(rows, 100)
    _, bad = odm.datasets.contaminate_store(clean, path, shard, flipped=30)
    temporary = dask.config.set({"temporary-directory": folder})
    with temporary, local_workers(workers, memory_limit=limit) as client:
        model = odm.MixingClassifier(max_iter=epochs, random_state=0)
        began = time.perf_counter()
        model.fit(path, shard=shard)
        seconds = time.perf_counter() - began
        peaks = list(client.run(peak_bytes).values())
        accuracy = model.score(clean)
    suspects = set(model.suspects_)
    store = Store.open(path)
    return {
        "rows": store.rows,
        "gigabytes": round(store.rows * store.features * store.dtype.itemsize / 1e9, 2),
        "workers": workers,
        "limit": limit,
        "epochs": model.n_iter_,
        "fit_s": seconds,
        "epochs_s": model.history_[-1]["seconds"],
        "peak_mb": [round(peak / 1e6) for peak in peaks],
        "accuracy": accuracy,
        "named": len(suspects & set(bad.tolist())),
        "wrongly_named": len(suspects - set(bad.tolist())),
    }


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=["memory", "store"])
    parser.add_argument("--rows", type=int)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", default="500MB")
    parser.add_argument("--folder", help="where the stores are made; they are removed afterwards")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.where == "memory":
        found = in_memory(options.rows or 1_000_000, options.epochs, options.repeat)
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            found = over_store(options.rows or 5_000_000, options.epochs, folder, options.workers, options.limit)
    print(json.dumps(found) if options.json else json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
