"""Rows, labels and parameters that cannot be learned from, or predicted."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

import dask_odm
from dask_odm import InputError, ODMClassifier, ODMClassifierCV, SaddleSVC, ingest, load_model
from dask_odm.data.rows.scaling import SCALINGS
from dask_odm.solvers import MNP, SODM, Cells
from faults.table import Fault, check_fault, each_way, raises, refused
from small_stores import store_of
from small_texts import write_lines

ROWS = 40
MANY = np.arange(3000)
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = np.arange(ROWS) % 2
DAMAGED = csr_array((np.ones(2), [0, 3], [0, 1, 2]), shape=(2, 3))
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(outcome=Y)


def nothing(folder: Path) -> None:
    """What is wrong is in the call."""


def of_store(bad: Callable[[Path], Any], *flags: object, **parameters: Any) -> dict[str, Any]:
    """`fit` on a store that ``bad`` writes, and on one of sound rows."""

    def cure(folder: Path) -> None:
        shutil.rmtree(folder / "s.zarr")
        store_of(folder / "s.zarr", X, Y, weight=np.ones(ROWS))

    return {
        "cause": lambda folder: bad(folder / "s.zarr"),
        "cure": cure,
        "python": lambda folder: ODMClassifier(random_state=0, **parameters).fit(str(folder / "s.zarr")),
        "command": lambda folder: ["fit", folder / "s.zarr", folder / "m.zarr", "--random-state", 0, *flags],
    }


def labelled(y: Any, weight: Any = None) -> Callable[[Path], Any]:
    return lambda path: store_of(path, X, y, weight=weight)


def rows(values: np.ndarray) -> Callable[[Path], Any]:
    return lambda path: store_of(path, values, Y)


FAULTS = [
    Fault("One class", **of_store(labelled(np.ones(ROWS)))),
    Fault("No labels", **of_store(labelled(None))),
    Fault("All weights zero", **of_store(labelled(Y, np.zeros(ROWS)))),
    Fault(
        "All weights zero",
        **of_store(labelled(Y, np.zeros(ROWS)), "--solver", "sodm", "--n-partitions", 4, solver=SODM(4)),
        note="tree",
    ),
    Fault("Features beyond numbers' range", **of_store(rows(X.astype(float) * 1e200))),
    Fault("gamma beyond numbers' range", **of_store(rows(X.astype(float) * 1e-25), "--scale", "none", scale=None)),
]


@each_way(FAULTS)
def test_a_store_that_cannot_be_learned_from(fault, way, tmp_path):
    check_fault(fault, tmp_path, way)


# Parameters: what is wrong is in the call, so the cure is another call. --------------------------------------

PARAMETERS = [
    ("lam out of range", "lam", (0.0, -1.0, float("nan"), float("inf")), 1e3),
    ("theta out of range", "theta", (1.0, 1.5, -0.1), 0.9),
    ("upsilon out of range", "upsilon", (1.1, -0.1), 1.0),
    ("gamma out of range", "gamma", (0.0, -1.0), 0.5),
    ("More partitions than rows", "solver", (SODM(ROWS + 1),), SODM(4)),
    ("Too little memory", "memory_limit", ("1kB",), "1GB"),
    ("Solver of another kernel", "solver", ("newton", "svrg"), "exact"),
]
CASES = [(row, name, value, good) for row, name, values, good in PARAMETERS for value in values]


def flags(name: str, value: Any) -> list[Any]:
    own = ["--n-partitions", value.n_partitions] if isinstance(value, SODM) else []
    return [f"--{name.replace('_', '-')}", getattr(value, "word", value), *own]


@pytest.mark.parametrize("way", ["memory", "store", "command"])
@pytest.mark.parametrize(("row", "name", "bad", "good"), CASES, ids=[f"{each[1]}={each[2]}" for each in CASES])
def test_a_parameter_out_of_range(row, name, bad, good, way, tmp_path):
    store = store_of(tmp_path / "s.zarr", X, Y)

    def fit(value: Any) -> dict[str, Any]:
        source = (X, Y) if way == "memory" else (store.path,)
        return {
            "python": lambda folder: ODMClassifier(random_state=0, **{name: value}).fit(*source),
            "command": lambda folder: ["fit", store.path, folder / "m.zarr", *flags(name, value)],
        }

    way = "python" if way != "command" else way
    chosen = [bad]
    mend = {"cause": nothing, "cure": lambda folder: chosen.append(good)}
    calls = {each: lambda folder, each=each: fit(chosen[-1])[each](folder) for each in ("python", "command")}
    check_fault(Fault(row, **mend, **calls), tmp_path, way)


# Rows in memory ---------------------------------------------------------------------------------------------


IN_MEMORY = {
    "one class": ("One class", lambda: ODMClassifier().fit(X, np.ones(ROWS))),
    "several labels": ("Several labels per row", lambda: SaddleSVC().fit(X, np.column_stack([Y, 1 - Y]))),
    "halves": ("Fractions as labels", lambda: ODMClassifier().fit(X, np.arange(ROWS) / 2)),
    "periods": ("Objects as labels", lambda: ODMClassifier().fit(X, pd.period_range("2020", periods=ROWS))),
    "words and numbers": (
        "Objects as labels",
        lambda: ODMClassifier().fit(X, np.array(["a", 1] * (ROWS // 2), object)),
    ),
    "pairs": ("More classes than can be learned", lambda: ODMClassifier().fit(MANY[:, None], MANY % 1000)),
    "no y": ("No labels", lambda: ODMClassifier().fit(X, None)),
    "another type": ("Labels of another type", lambda: ODMClassifier().fit(X, Y).score(X, ["a", "b"] * 20)),
    "labels inside": ("Labels among the columns", lambda: ODMClassifier().fit(FRAME, FRAME["outcome"])),
    "moved": ("Parameter of a solver", lambda: ODMClassifier(n_landmarks=9)),
    "solver": ("Solver of another estimator", lambda: ODMClassifier(solver=MNP()).fit(X, Y)),
    "auto": ("Parameters of no solver", lambda: ODMClassifier().set_params(solver__n_landmarks=9)),
    "lengths": ("Lengths that differ", lambda: ODMClassifier().fit(X[:-1], Y)),
    "nan": ("Missing value in memory", lambda: ODMClassifier().fit(X * np.nan, Y)),
    "infinity": ("Infinity in memory", lambda: ODMClassifier().fit(np.full_like(X, np.inf), Y)),
    "damaged": ("Damaged sparse rows", lambda: ODMClassifier().fit(DAMAGED, [0, 1])),
    "weights": ("All weights zero", lambda: ODMClassifier().fit(X, Y, sample_weight=np.zeros(ROWS))),
}


@pytest.mark.parametrize(("row", "call"), IN_MEMORY.values(), ids=IN_MEMORY)
def test_rows_in_memory(row, call):
    raises(row, call)


@pytest.mark.parametrize(("row", "parameters"), [
    ("Too little memory for landmarks", {"solver": "landmark", "memory_limit": "1kB"}),
    ("Solver of another kernel", {"solver": "landmark", "kernel": "linear"}),
    ("Solver of another kernel", {"solver": "exact", "kernel": "linear"}),
    ("Solver of another kernel", {"solver": "cells", "kernel": "linear"}),
    ("Ranks for a linear kernel", {"scale": "ranks", "kernel": "linear"}),
    ("Metric for another kernel", {"metric": "diagonal", "kernel": "poly"}),
    ("Too little memory", {"metric": "full", "memory_limit": "1kB"}),
    ("Kernel that needs rows in memory", {"solver": "cells", "kernel": lambda A, B: np.exp(A @ B.T)}),
    ("Cells of one class each", {"solver": Cells(1)}),
    ("Cells with settings of their own", {"solver": Cells(20, settings="each")}),
    ("Too little memory", {"solver": Cells(20), "memory_limit": "1kB"}),
    ("Function that is not a kernel", {"solver": "exact", "kernel": lambda A, B: np.tanh(3 * A @ B.T - 1)}),
    ("Function that is not a kernel", {"solver": "landmark", "kernel": lambda A, B: A[:, :1] - B[:, :1].T}),
])  # fmt: skip
def test_kernels_and_solvers_that_do_not_go_together(row, parameters):
    raises(row, lambda: ODMClassifier(random_state=0, **parameters).fit(X, Y))


@pytest.mark.parametrize("rows", [csr_array(X), np.tile(X, (1, 1001))], ids=["sparse", "wide"])
def test_a_matrix_of_other_than_some_dense_columns(rows):
    raises("Matrix of sparse or wide rows", lambda: ODMClassifier(metric="full").fit(rows, Y))


@pytest.mark.parametrize("more", [{"cv": 3}, {"kernel": ["rbf", "laplacian"]}, {"metric": "diagonal"}])
def test_cells_search_by_leaving_one_out_with_one_kernel(more):
    model = ODMClassifierCV(solver=Cells(20, settings="each"), **more)
    raises("Cells that search with other options", lambda: model.fit(X, Y))


def test_cells_that_search_leave_no_groups_out():
    model = ODMClassifierCV(solver=Cells(20, settings="each"))
    raises("Cells that search with other options", lambda: model.fit(X, Y, groups=np.arange(len(Y)) // 2))


@pytest.mark.parametrize("bad", [0.0, -1.0, 1.01, float("nan")])
def test_an_alpha_out_of_range(bad, tmp_path):
    raises("alpha out of range", lambda: SaddleSVC(bad).fit(X, Y))
    raises("alpha out of range", lambda: SaddleSVC().alpha_path(X, Y, alphas=[0.9, bad]))


@pytest.mark.parametrize(("row", "call"), [
    ("Linear solver of SaddleSVC for a kernel", lambda: SaddleSVC(kernel="rbf", solver="gilbert").fit(X, Y)),
    ("Invalid alpha path", lambda: SaddleSVC(kernel="rbf").alpha_path(X, Y, alphas=[0.9])),
    ("Invalid alpha path", lambda: SaddleSVC().alpha_path(X, Y, alphas=[])),
    ("Invalid alpha path", lambda: SaddleSVC().alpha_path(X, Y, alphas=0.5)),
    ("Invalid alpha path", lambda: SaddleSVC(solver="gilbert").alpha_path(X, Y, alphas=[0.9])),
    ("Invalid alpha path", lambda: SaddleSVC(checkpoint="c.zarr").alpha_path(X, Y, alphas=[0.9])),
    ("Features beyond numbers' range, unscaled", lambda: SaddleSVC().fit(X.astype(float) * 1e200, Y)),
    ("One class", lambda: SaddleSVC().fit(X, np.ones(ROWS))),
    ("Missing value in memory", lambda: SaddleSVC().fit(X * np.nan, Y)),
])  # fmt: skip
def test_what_reduced_hulls_are_not_made_of(row, call):
    raises(row, call)


# Prediction -------------------------------------------------------------------------------------------------


def test_a_model_from_a_file_has_no_left_out_values(tmp_path):
    ODMClassifier(lam=1.0, loo=True, random_state=0).fit(X, Y).save(tmp_path / "m.zarr")
    model = load_model(tmp_path / "m.zarr")
    raises("No left-out values", model.tune_threshold)
    raises("No left-out values", model.loo_score)
    model.tune_threshold("balanced_accuracy", X, Y)  # a way out that the message names


def of_prediction(command: str, *out: str) -> dict[str, Any]:
    """Rows with a feature less than the model's, and with as many."""

    def cause(folder: Path) -> None:
        ODMClassifier(random_state=0).fit(X, Y).save(folder / "m.zarr")
        store_of(folder / "s.zarr", X[:, :2].copy(), Y)

    def cure(folder: Path) -> None:
        shutil.rmtree(folder / "s.zarr")
        store_of(folder / "s.zarr", X, Y)

    return {
        "cause": cause,
        "cure": cure,
        "python": lambda folder: load_model(folder / "m.zarr").predict(str(folder / "s.zarr")).compute(),
        "command": lambda folder: [command, folder / "m.zarr", folder / "s.zarr", *(folder / each for each in out)],
    }


@each_way(
    [
        Fault("Another number of features", **of_prediction("predict", "p.csv"), note="csv"),
        Fault("Another number of features", **of_prediction("predict", "p.zarr"), note="zarr"),
        Fault("Another number of features", **of_prediction("evaluate"), note="evaluate"),
    ]
)
def test_rows_that_cannot_be_predicted(fault, way, tmp_path):
    check_fault(fault, tmp_path, way)


def test_values_of_another_kind(tmp_path):
    model = ODMClassifier("linear").fit(FRAME.assign(d=["p", "q"] * (ROWS // 2)), "outcome")
    model.save(tmp_path / "m.zarr")
    odd = FRAME.drop(columns="outcome").assign(d="p", a="many")
    odd.to_csv(tmp_path / "a.csv", index=False)
    raises("Value of another kind", lambda: model.predict(odd))
    refused("Value of another kind", "predict", tmp_path / "m.zarr", tmp_path / "a.csv", tmp_path / "p.csv")


def test_texts_and_rows_of_other_texts(tmp_path):
    """A store with weights of its own, and texts for a model that learned from numbers."""
    for name, more in (("a", "sea"), ("b", "shore")):
        write_lines(tmp_path / f"{name}.jsonl", body=[f"salt {more}", "pepper", "salt", "tree"], label=[0, 1, 0, 1])
        ingest(tmp_path / f"{name}.jsonl", tmp_path / f"{name}.zarr", text="body", n_features=4096)
    ODMClassifier("linear").fit(str(tmp_path / "a.zarr")).save(tmp_path / "texts.zarr")
    ODMClassifier("linear").fit(X, Y).save(tmp_path / "numbers.zarr")
    model = load_model(tmp_path / "texts.zarr")
    for use in (model.predict, model.score):
        raises("Weights of other texts", lambda use=use: use(str(tmp_path / "b.zarr")))
    refused("Weights of other texts", "predict", tmp_path / "texts.zarr", tmp_path / "b.zarr", tmp_path / "p.csv")
    refused(
        "Texts for a model of numbers", "predict", tmp_path / "numbers.zarr", tmp_path / "a.jsonl", tmp_path / "p.csv",
        "--text", "body",
    )  # fmt: skip
    assert not (tmp_path / "p.csv").exists()


def test_integers_of_polars_that_pyarrow_cannot_read():
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame({"a": polars.Series(MANY[:ROWS], dtype=polars.Int128)})
    raises("Integers of 128 bits", lambda: ODMClassifier().fit(frame, Y))


def test_delayed_rows():
    for method in (ODMClassifier().fit, ODMClassifier().fit(X, Y).score):
        raises("Delayed rows", lambda method=method: method(dask.delayed(len)([]), Y))


ARGUMENTS: dict[str, Callable[[Any], Any]] = {
    "levels": lambda model: ingest(FRAME, "a.zarr", max_levels="x"),
    "repeats": lambda model: dask_odm.permutation_importance(model, X, Y, n_repeats=1.5),
    "shards": lambda model: dask_odm.datasets.deal_shards(10, "x"),
    "axes": lambda model: dask_odm.plot_confusion(dask_odm.evaluate(model, (X, Y)), ax="x"),
}
PATHS: dict[str, Callable[[Any], Any]] = {
    "save": lambda model: model.save(None),
    "load": lambda model: load_model(3),  # type: ignore[arg-type]
    "store": lambda model: dask_odm.open_store([]),  # type: ignore[arg-type]
    "report": lambda model: dask_odm.report(model, (X, Y), None),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("what", [*ARGUMENTS, *PATHS])
def test_arguments_of_other_types(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = ODMClassifier(lam=10.0, random_state=0).fit(X, Y)
    if what in PATHS:
        raises("Path of another type", lambda: PATHS[what](model))
    else:
        raises("Argument of another type", lambda: ARGUMENTS[what](model))
    assert not list(tmp_path.iterdir())


# Numbers that are finite, and yet too much ------------------------------------------------------------------

EXTREMES = {
    "float32, 1e18": (X * np.float32(1e18)),
    "float32, 3e37": (X * np.float32(3e37)),
    "float32, 1e-30": (X * np.float32(1e-30)),
    "float32, denormal": (X * np.float32(1e-42)),
    "1e155": X.astype(float) * 1e155,
    "1e307": X.astype(float) * 1e307,
    "1e-200": X.astype(float) * 1e-200,
    "denormal": X.astype(float) * 1e-310,
    "one": np.where(np.arange(ROWS)[:, None] == 3, 1e300, X.astype(float)),
    "both ends": np.where(np.arange(ROWS)[:, None] == 3, -1.7e308, 1.7e308) * np.sign(X).astype(float),
    "constant": np.column_stack([np.full(ROWS, 1e300), X[:, 0].astype(float)]),
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("scale", [None, *SCALINGS])
@pytest.mark.parametrize("kernel", ["rbf", "linear", "poly"])
@pytest.mark.parametrize("numbers", EXTREMES)
def test_extreme_numbers_are_learned_from_or_refused(numbers, kernel, scale, tmp_path):
    """No other warning, no model of NaN."""
    store = store_of(tmp_path / "s.zarr", EXTREMES[numbers], Y)
    try:
        model = ODMClassifier(kernel=kernel, scale=scale, random_state=0, max_iter=3).fit(store.path)
    except InputError as error:
        assert any(word in str(error) for word in ("scale", "rescale"))  # noqa: PT017
    else:
        assert np.isfinite(model.decision_function(EXTREMES[numbers])).all()
