"""What faults hit: families of estimators, small stores, text, models, checkpoints, predictions, and operations.

A new family joins by one line of `ALL_FAMILIES`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import xarray as xr
from distributed.client import ClosedClientError, FutureCancelledError
from distributed.scheduler import KilledWorker, NoWorkerError
from scipy.sparse import csr_array

import dask_odm as odm
from dask_odm.data.store import open_chunks
from dask_odm.data.store.store import Store
from dask_odm.data.store.writer import StoreWriter
from dask_odm.diagnostics.predictions import write_predictions
from dask_odm.errors import ClusterError, InputError
from dask_odm.estimators.registry import ESTIMATORS
from dask_odm.estimators.saving import load_model
from dask_odm.learning.parameters import SolverObject
from dask_odm.methods.exact.solver import warm_up
from dask_odm.solvers import CSVRG, DC, DSVRG, MNP, SODM, SVRG, Cascade, Cells, DiP, Exact, Landmark, Newton, Saddle
from small_stores import store_of
from tries.base import chosen
from tries.outcomes import digest_arrays, digest_of
from tries.processes import run

ROWS, CHUNK_ROWS = 480, 40
SPARSE_COLUMNS = 450  # of each number of a row, if rows are sparse
FILE_ENTRIES = 500  # of sparse rows, whose chunks then begin and end within files
SECONDS = 120.0  # that anything undisturbed may take here


@dataclass(frozen=True)
class Family:
    """A fit and a store.

    Parameters
    ----------
    make : class of estimators
    parameters : dict
        Of the fit; a seed among them.
    in_memory : bool
        The rows are read into memory: nothing of it goes through workers.
    store : str
        What it learns from, of `Things`: classes, or real targets.
    """

    name: str
    make: type[Any]
    parameters: dict[str, Any]
    in_memory: bool = False
    store: str = "store.zarr"
    flags: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        flags = [each for k, v in self.parameters.items() for each in _flag(k, v)]
        object.__setattr__(self, "flags", ("--estimator", ESTIMATORS[self.make.__name__].word, *flags))

    def fit(self, store: Path, *, scratch: str | None = None, **more: Any) -> Any:
        """The estimator, fitted; its temporary data lie in ``scratch``."""
        read = "1GB" if self.in_memory else 0
        with dask.config.set({"dask_odm.read-into-memory": read, "temporary-directory": scratch}):
            return self.make(**self.parameters, **more).fit(str(store))


class CubeFamily(Family):
    """A fit on a lazy cube, and a map of it by the same workers, which has to be that of this process.

    Nobody but xarray reads the cube, and nobody but Dask computes the map: their errors are told by their own names.
    """

    def fit(self, store: Path, *, scratch: str | None = None, **more: Any) -> Any:
        """The estimator, fitted, once it has made its map."""
        try:
            return self._mapped(store, scratch, more)
        except OSError as error:
            raise InputError(f"the cube: {error}") from error

    def _mapped(self, store: Path, scratch: str | None, more: dict[str, Any]) -> Any:
        cube = xr.open_zarr(store, consolidated=False)
        with dask.config.set({"dask_odm.read-into-memory": 0, "temporary-directory": scratch}):
            model = self.make(**self.parameters, **more).fit(cube["scene"], cube["labels"])
        try:
            found = model.predict(cube["scene"]).compute()
        except (KilledWorker, NoWorkerError, FutureCancelledError, ClosedClientError) as error:
            raise ClusterError(str(error).replace("\n", " ")) from error
        np.testing.assert_array_equal(found, model.predict(cube["scene"].compute(scheduler="synchronous")))
        return model


def _flag(name: str, value: Any) -> list[str]:
    if isinstance(value, SolverObject):
        own = [_flag(k, v) for k, v in value.get_params().items() if v is not None and v is not False]
        return ["--solver", value.word, *chain.from_iterable(own)]
    option = f"--{name.replace('_', '-')}"
    return [option] if value is True else [option, str(value)]


def _odm(solver: SolverObject, in_memory: bool = False, name: str | None = None, **parameters: Any) -> Family:
    parameters = {"solver": solver, "random_state": 0, "lam": 100.0, **parameters}
    return Family(name or solver.word, odm.ODMClassifier, parameters, in_memory)


def _saddle(solver: str, in_memory: bool = False, **parameters: Any) -> Family:
    parameters = {"solver": solver, "random_state": 0, "alpha": 0.95, **parameters}
    return Family(f"hulls by {solver}", odm.SaddleSVC, parameters, in_memory)


_THREE: dict[str, Any] = {"gamma": 0.5, "lam": 100.0, "random_state": 0}
_SPARSE: dict[str, Any] = {"kernel": "linear", "solver": Newton(), "lam": 100.0, "random_state": 0}
_SPARSE_RING = _SPARSE | {"solver": DSVRG(n_partitions=4), "max_iter": 6, "tol": 1e-12}
ALL_FAMILIES = [
    _odm(Exact(), gamma=0.5),
    _odm(Landmark(40), gamma=0.5),
    _odm(Landmark(40, certify=True), gamma=0.5, name="certified landmark"),
    _odm(SODM(8, fan_in=2), gamma=0.5),
    _odm(Cells(8), gamma=0.5),
    _odm(Cells(8), in_memory=True, name="cells in memory", gamma=0.5),
    _odm(Landmark(40), name="landmark on ranks", scale="ranks"),
    _odm(Landmark(40), name="landmark by a metric", metric="full"),
    _odm(Newton(), kernel="linear"),
    _odm(DSVRG(n_partitions=4), kernel="linear", max_iter=6, tol=1e-12),
    _odm(SVRG(), in_memory=True, kernel="linear", max_iter=6, tol=1e-12),
    _odm(CSVRG(coreset_size=100), in_memory=True, kernel="linear", max_iter=6, tol=1e-12),
    _saddle("mnp"),
    _saddle("gilbert"),
    _saddle("saddle", in_memory=True, max_iter=60, tol=0.1),
    _odm(Cascade(4), gamma=0.5),
    _odm(DiP(4), gamma=0.5),
    _odm(DC(4), gamma=0.5),
    Family("newton of sparse rows", odm.ODMClassifier, _SPARSE, store="sparse.zarr"),
    Family("dsvrg of sparse rows", odm.ODMClassifier, _SPARSE_RING, store="sparse.zarr"),
    Family("hulls of landmarks", odm.SaddleSVC, {"kernel": "rbf", "solver": MNP(30), "alpha": 0.95, "random_state": 0}),
    Family("clients of hulls", odm.SaddleSVC, {"solver": Saddle(n_clients=3), "max_iter": 20, "random_state": 0}),
    Family("one class", odm.OneClassODM, {"solver": Landmark(40), "gamma": 0.5, "random_state": 0}),
    Family(
        "landmark of real targets",
        odm.ODMRegressor,
        {"solver": Landmark(40), "gamma": 0.5, "upsilon": 0.5, "noise": "uneven", "loo": True, "random_state": 0},
        store="real.zarr",
    ),
    Family(
        "cells of real targets",
        odm.ODMRegressor,
        {"solver": Cells(8), "gamma": 0.5, "loo": True, "random_state": 0},
        store="real.zarr",
    ),
    Family("mixing", odm.MixingClassifier, {"n_shards": 4, "max_iter": 5, "random_state": 0}),
    Family("ridge of partitions", odm.MDDRidge, {"n_partitions": 3, "random_state": 0}, store="real.zarr"),
    Family("kernel ridge", odm.MDDKernelRidge, {"n_landmarks": 30, "random_state": 0}, store="real.zarr"),
    Family("landmark of three classes", odm.ODMClassifier, _THREE | {"solver": Landmark(40)}, store="three.zarr"),
    Family("cells of three classes", odm.ODMClassifier, _THREE | {"solver": Cells(8)}, store="three.zarr"),
    Family("newton of words", odm.ODMClassifier, _SPARSE, store="words.zarr"),
    Family("landmark of words", odm.ODMClassifier, _THREE | {"solver": Landmark(40)}, store="words.zarr"),
    CubeFamily(
        "map of a cube", odm.ODMClassifier, {"solver": Exact(), "lam": 100.0, "random_state": 0}, store="cube.zarr"
    ),
]
BY_NAME = {family.name: family for family in ALL_FAMILIES}
NAMES = [*BY_NAME, "predict"]
_CHOSEN = chosen(NAMES, os.environ.get("CAMPAIGN_FAMILIES"))
FAMILIES = [BY_NAME[name] for name in _CHOSEN if name in BY_NAME]
ON_WORKERS = [family for family in FAMILIES if not family.in_memory]
RUNS = [*ON_WORKERS, *([None] if "predict" in _CHOSEN else [])]  # None predicts


def made_up(seed: int, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Rows (n, 5) and labels of two overlapping classes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, 5)).astype(np.float32)
    return X, (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=rows) + 0.2 * X[:, 2] > 0).astype(int)


def sparse_rows(X: np.ndarray) -> csr_array:
    """One entry for each number of the rows: in one of many columns, by its size, so that no Hessian is formed."""
    n, d = X.shape
    columns = SPARSE_COLUMNS * np.arange(d) + np.clip(60 * X + SPARSE_COLUMNS // 2, 0, SPARSE_COLUMNS - 1).astype(int)
    entries = (1 + 0.1 * X).ravel(), columns.ravel(), d * np.arange(n + 1)
    return csr_array(entries, shape=(n, SPARSE_COLUMNS * d))


class Things:
    """Everything that is read, with an older generation of each: made once for all kinds of tries.

    Parameters
    ----------
    folder : of one kind of tries; what is read lies in a folder beside it

    Attributes
    ----------
    folder, older : Path
        Folders of as many things, made of two samples of rows.
    place : Path
        Where tries of this kind may write.
    """

    def __init__(self, folder: Path) -> None:
        self.place, made = folder, folder.parent / "things"
        self.folder, self.older = made / "sound", made / "older"
        warm_up()
        for number, each in enumerate((self.folder, self.older)):
            if not (each / "made").exists():
                shutil.rmtree(each, ignore_errors=True)
                each.mkdir(parents=True)
                answer = run(lambda each=each, number=number: _make(each, number), folder, SECONDS)
                assert "digest" in answer, answer
                (each / "made").touch()
        self._digests: dict[str, str] = {}

    def path(self, name: str) -> Path:
        """Of ``a.csv``, ``words``, ``store.zarr``, ``zstd``, ``real``, ``model``, ``checkpoint`` or ``prediction``."""
        return self.folder / name

    @property
    def store(self) -> Path:
        return self.folder / "store.zarr"

    def store_of(self, family: Family) -> Path:
        """What a family learns from."""
        return self.path(family.store)

    def undisturbed(self, name: str, function: Callable[[], str]) -> str:
        """The digest that ``function`` returns in a process of its own, asked for once."""
        if name not in self._digests:
            answer = run(function, self.place, SECONDS)
            if "digest" not in answer:
                raise RuntimeError(f"{name}, undisturbed: {answer}")
            self._digests[name] = answer["digest"]
        return self._digests[name]

    def model_digest(self, family: Family) -> str:
        """Of the model of a family that nothing disturbs, fitted without workers."""
        return self.undisturbed(family.name, lambda: fitted(family, self.store_of(family), self.place / "undisturbed"))


def fitted(family: Family, store: Path, folder: Path, **more: Any) -> str:
    """Fit, save, and the digest of the arrays saved."""
    model = family.fit(store, **more)
    folder.mkdir(exist_ok=True)
    model.save(folder / "o.zarr", overwrite=True)
    return digest_of(folder / "o.zarr")


def checkpointed() -> Family:
    """Whose checkpoint is damaged and lied about."""
    return BY_NAME["sodm"]


def _make(folder: Path, seed: int) -> str:
    X, y = made_up(seed)
    np.savetxt(folder / "a.csv", np.column_stack([X, y]), fmt="%.9g", delimiter=",")
    _write_words(folder / "words", X, y)
    odm.ingest(str(folder / "words"), folder / "words.zarr", chunk_rows=CHUNK_ROWS)
    store_of(folder / "store.zarr", X, y, weight=np.ones(ROWS), chunk_rows=CHUNK_ROWS)
    with StoreWriter(folder / "zstd.zarr", chunk_rows=CHUNK_ROWS, compression="zstd") as writer:
        writer.append(X, y, np.ones(ROWS))
        writer.finish()
    open_chunks.CHUNK_ENTRIES = FILE_ENTRIES  # this process only makes things
    store_of(folder / "sparse.zarr", sparse_rows(X), y, weight=np.ones(ROWS), chunk_rows=CHUNK_ROWS)
    store_of(folder / "real.zarr", X, X[:, 0] * X[:, 1] + np.sin(X[:, 2]), chunk_rows=CHUNK_ROWS, real=True)
    store_of(folder / "three.zarr", X, y + (X[:, 3] > 0.8), chunk_rows=CHUNK_ROWS)
    bands = xr.DataArray(X.T.reshape(5, 24, 20), dims=("band", "y", "x"))
    labels = xr.DataArray(y.reshape(24, 20), dims=("y", "x"))
    cube = xr.Dataset({"scene": bands.where(bands > -2), "labels": labels}).chunk(y=4, x=10)
    cube.to_zarr(folder / "cube.zarr", consolidated=False)
    family = checkpointed()
    more = {"solver": SODM(8, fan_in=2, stop_at=2), "checkpoint": str(folder / "checkpoint.zarr")}
    family.make(**family.parameters | more).fit(str(folder / "store.zarr"))
    family.make(**family.parameters | {"solver": SODM(1)}).fit(str(folder / "store.zarr")).save(folder / "model.zarr")
    write_predictions(
        load_model(folder / "model.zarr"), Store.open(folder / "store.zarr"), folder / "prediction.zarr", what="scores"
    )
    return "made"


# What writes ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operation:
    """Something that writes below a folder ``disk``.

    Parameters
    ----------
    python : callable
        Does it below ``disk`` with other output below ``plain``.
    command : callable or None
        Arguments of the command that does the same.
    output : callable
        What it makes.
    may_stay : names that may be below ``disk`` after an error, though sound
    """

    name: str
    python: Callable[[Things, Path, Path], object]
    command: Callable[[Things, Path, Path], list[str]] | None
    output: Callable[[Path, Path], Path]
    may_stay: tuple[str, ...] = ()
    in_workers: bool = False

    def run(self, things: Things, disk: Path, plain: Path) -> str:
        """Do it, and the digest of what it made."""
        self.python(things, disk, plain)
        return digest_of(self.output(disk, plain))

    def expected(self, things: Things) -> str:
        """The digest of what it makes where nothing disturbs it."""

        def calm() -> str:
            disk, plain = (fresh(things.place / name) for name in ("calm-disk", "calm-plain"))
            return self.run(things, disk, plain)

        return things.undisturbed(self.name, calm)


def fresh(folder: Path) -> Path:
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _on_disk(name: str) -> Callable[[Path, Path], Path]:
    return lambda disk, plain: disk / name


def _write_words(folder: Path, X: np.ndarray, y: np.ndarray) -> None:
    """Write rows as files of words, dates, numbers with gaps, and labels."""
    folder.mkdir()
    frame = pd.DataFrame(X, columns=list("abcde"))
    frame["a"] = np.array(["low", "middle", "high"])[np.digitize(X[:, 0], [-0.5, 0.5])]
    frame["b"] = pd.Timestamp("2024-02-29") + pd.to_timedelta((100 * X[:, 1]).astype(int), unit="h")
    frame.loc[X[:, 2] > 1, "c"] = np.nan
    frame["label"] = y
    for part in range(4):
        frame[part::4].to_csv(folder / f"{part}.csv", index=False)


def _ingest_words(t: Things, disk: Path, _: Path) -> Store:
    """Ingest the files of words, whose values are kept on the same disk meanwhile."""
    with dask.config.set({"temporary-directory": str(disk)}):
        return odm.ingest(str(t.path("words")), str(disk / "o.zarr"), chunk_rows=CHUNK_ROWS)


def _elsewhere(disk: Path, plain: Path) -> Path:
    return plain / "o.zarr"


def _fit(family: Family, option: str, name: str) -> Operation:
    """A fit whose scratch or checkpoint is below ``disk``."""
    shell = lambda t, disk, plain: [  # noqa: E731
        "fit", str(t.store_of(family)), str(plain / "o.zarr"), *family.flags, f"--{option}", str(disk / name)
    ]  # fmt: skip
    return Operation(
        f"{option} of {family.name}",
        lambda t, disk, plain: fitted(family, t.store_of(family), plain, **{option: str(disk / name)}),
        None if family.in_memory or isinstance(family, CubeFamily) else shell,
        _elsewhere,
        (name,) if option == "checkpoint" else (),
        not family.in_memory,
    )


def _predict(name: str) -> Operation:
    return Operation(
        f"predict to {name[1:]}",
        lambda t, disk, plain: write_predictions(
            load_model(t.path("model.zarr")), Store.open(t.store), disk / name, what="scores"
        ),
        lambda t, disk, plain: [
            "predict", "--decision-function", str(t.path("model.zarr")), str(t.store), str(disk / name)
        ],
        _on_disk(name),
    )  # fmt: skip


OPERATIONS = [
    Operation(
        "ingest",
        lambda t, disk, plain: odm.ingest(str(t.path("a.csv")), str(disk / "o.zarr"), chunk_rows=CHUNK_ROWS),
        lambda t, disk, plain: ["ingest", str(t.path("a.csv")), str(disk / "o.zarr"), "--chunk-rows", str(CHUNK_ROWS)],
        _on_disk("o.zarr"),
    ),
    Operation("ingest of words", _ingest_words, None, _on_disk("o.zarr")),
    Operation(
        "save",
        lambda t, disk, plain: load_model(t.path("model.zarr")).save(disk / "o.zarr"),
        None,
        _on_disk("o.zarr"),
    ),
    _predict("o.zarr"),
    _predict("o.csv"),
    *(_fit(family, "checkpoint", "c.zarr") for family in FAMILIES),
    *(_fit(family, "scratch", "") for family in FAMILIES if family.name in ("exact", "sodm", "dsvrg", "hulls by mnp")),
]  # fmt: skip


def digest_model(path: Path) -> str:
    """Of a model's arrays and what it predicts of fixed rows."""
    model = load_model(path)
    arrays = {name: value for name, value in vars(model).items() if isinstance(value, np.ndarray)}
    return digest_arrays(arrays | {"f": model.decision_function(made_up(7, 50)[0])})
