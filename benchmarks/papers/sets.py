"""Data sets of a benchmark: LIBSVM files of a folder, fetched by name, or made up; split and scaled once a seed.

The protocol is the papers': the union of training and test files, a random fifth of the rows for testing, features
scaled to [0, 1] by the training rows.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dask_odm.data.datasets.fetch import LIBSVM_SETS, fetch_libsvm
from dask_odm.data.datasets.generators import make_overlapping, make_separable, make_shells, make_susy
from dask_odm.data.ingest import ingest
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.typing import Array

TEST_SHARE = 0.2
ENDINGS = (".svm.xz", ".svm.bz2", ".svm.gz", ".svm", "")
MADE: dict[str, Callable[[int, int], Any]] = {
    "shells": lambda n, seed: make_shells(n, 10, noise=0.3, random_state=seed),
    "overlapping": lambda n, seed: make_overlapping(n, 20, random_state=seed),
    "separable": lambda n, seed: make_separable(n, 20, random_state=seed),
    "susy-shaped": lambda n, seed: make_susy(n, random_state=seed),
}


@dataclass(frozen=True)
class Split:
    """Rows scaled to [0, 1], float32, and labels 0 and 1."""

    X: Array
    y: Array
    X_test: Array
    y_test: Array


def check_name(name: str, folder: str | None, *, fetch: bool) -> None:
    """InputError unless a data set can be had: from ``folder``, fetched, or made up as ``shells:20000``."""
    made, _, rows = name.partition(":")
    if made in MADE:
        if not rows.isdigit() or int(rows) < 50:
            raise InputError(f"data set {name!r}: say how many rows are to be made, 50 or more, as {made}:20000.")
    elif not (folder and _files(name, folder)) and not (fetch and name in LIBSVM_SETS):
        where = f"no file {name}.svm.xz or {name}.train.svm.xz in {folder!r}" if folder else "no folder (--data)"
        raise InputError(
            f"data set {name!r}: {where}. Made up are {', '.join(f'{each}:ROWS' for each in MADE)}; --fetch fetches "
            "those of the LIBSVM site."
        )


def split_of(name: str, seed: int, folder: str | None, cache: Path, *, rows: int | None = None) -> Split:
    """The split of a data set that ``seed`` draws; read from ``cache`` where it has been made before.

    Parameters
    ----------
    rows : int, optional
        Take only so many rows of the set, drawn by the seed.
    """
    path = cache / f"{name.replace(':', '-')}.{rows or 'all'}.{seed}.npz"
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        split = _made(name, seed) if name.partition(":")[0] in MADE else _read(name, seed, folder, cache)
        aside = path.with_name(f"{path.name}.{os.getpid()}.npz")
        np.savez(aside, **vars(_fewer(split, rows, seed)))
        os.replace(aside, path)
    with np.load(path) as arrays:
        return Split(**arrays)


def _files(name: str, folder: str) -> list[Path]:
    """Files of a data set: of its name, or its training and test part."""
    for ending in ENDINGS:
        whole = Path(folder) / f"{name}{ending}"
        parts = [Path(folder) / f"{name}.{part}{ending}" for part in ("train", "test")]
        if whole.is_file():
            return [whole]
        if parts[0].is_file():
            return [part for part in parts if part.is_file()]
    return []


def _read(name: str, seed: int, folder: str | None, cache: Path) -> Split:
    files = _files(name, folder) if folder else []
    sources: Any = [str(file) for file in files] or fetch_libsvm(name)
    stores = Path(tempfile.mkdtemp(dir=cache))
    try:
        train, test = ingest(
            list(sources),
            stores / "train.zarr",
            format="libsvm",
            n_features=LIBSVM_SETS[name].n_features if name in LIBSVM_SETS else None,
            test_size=TEST_SHARE,
            test_store=stores / "test.zarr",
            seed=seed,
        )
        classes = len(train.classes or ())
        if classes != 2:
            raise InputError(f"data set {name!r} has {classes} classes; methods here are for two.")
        return _scaled(*_rows_of(train), *_rows_of(test))
    finally:
        shutil.rmtree(stores, ignore_errors=True)


def _rows_of(store: Store) -> tuple[Array, Array]:
    X = np.empty((store.rows, store.features), np.float32)
    y = np.empty(store.rows)
    for block in store.blocks():
        rows = slice(block.first, block.first + len(block.X))
        X[rows], y[rows] = block.X, block.y
    return X, y


def _made(name: str, seed: int) -> Split:
    made, _, rows = name.partition(":")
    X, labels = MADE[made](int(rows), seed)
    y = np.where(labels == np.unique(labels)[-1], 1, 0)
    train = np.random.default_rng(seed).random(int(rows)) >= TEST_SHARE
    return _scaled(X[train], y[train], X[~train], y[~train])


def _scaled(X: Array, y: Array, X_test: Array, y_test: Array) -> Split:
    low = X.min(axis=0)
    high = X.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    X, X_test = (((each - low) / width).astype(np.float32) for each in (X, X_test))
    return Split(X, y.astype(np.int64), X_test, y_test.astype(np.int64))


def _fewer(split: Split, rows: int | None, seed: int) -> Split:
    if rows is None or rows >= len(split.y) + len(split.y_test):
        return split
    rng = np.random.default_rng([seed, 1])
    tested = max(1, round(rows * TEST_SHARE))
    train = np.sort(rng.choice(len(split.y), min(len(split.y), rows - tested), replace=False))
    test = np.sort(rng.choice(len(split.y_test), min(len(split.y_test), tested), replace=False))
    return Split(split.X[train], split.y[train], split.X_test[test], split.y_test[test])
