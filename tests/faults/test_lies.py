"""Models, checkpoints and predictions whose checksums are right and whose content is not: refused, and named."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dask_odm import InputError, ODMClassifier, ODMRegressor, StoreError, load_model
from dask_odm.data.store.records import read_record, write_record
from dask_odm.solvers import SODM, Landmark
from faults.table import raises, refused, tree

ROW = "False model or checkpoint with correct checksums"
X = np.random.default_rng(0).normal(size=(3300, 3))
Y = np.where(X[:, 0] + X[:, 1] ** 2 > 0.5, "ja", "nein")
FEW = slice(0, 60)
Content = dict[str, Any]


def rewrite(path: Path, kind: str, change: Callable[[Content, dict[str, np.ndarray]], object]) -> None:
    """Write a record again, with right checksums, after ``change`` of its attributes and arrays."""
    record = read_record(path, kind)
    arrays = {name: record.array(name) for name in record.arrays}
    change(record.attributes, arrays)
    write_record(path, kind, arrays, record.attributes, overwrite=True)


# Models -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for kernel in ("poly", "linear"):
        model = ODMClassifier(kernel, gamma=0.5, degree=2, random_state=0, class_weight={"ja": 2.0})
        model.fit(X[FEW], Y[FEW]).save(folder / f"{kernel}.zarr")
    return folder


def of(*keys: Any, to: Any) -> Callable[[Content, Any], object]:
    """Set an entry of the attributes; without it where ``to`` is ellipsis."""

    def change(content: Content, arrays: Any) -> None:
        *before, last = keys
        for key in before:
            content = content[key]
        if to is ...:
            del content[last]
        else:
            content[last] = to

    return change


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any, dict[str, np.ndarray]], object]:
    return lambda content, arrays: arrays.update({name: change(arrays.get(name, np.zeros(1)))})


MODEL_LIES = {
    "no parameters": of("parameters", to=...),
    "parameters of another type": of("parameters", to=[1]),
    "a parameter that is none": of("parameters", "epsilon", to=1),
    "a parameter out of range": of("parameters", "theta", to=1.5),
    "gamma": of("parameters", "gamma", to=-1.0),
    "gamma of the kernel": of("model", "kernel", "gamma", to=-1.0),
    "gamma is text": of("model", "kernel", "gamma", to="1"),
    "gamma is infinite": of("model", "kernel", "gamma", to=10**400),
    "degree of the kernel": of("model", "kernel", "degree", to=10**9),
    "degree": of("parameters", "degree", to=10**9),
    "degree is a fraction": of("model", "kernel", "degree", to=2.5),
    "coef0": of("model", "kernel", "coef0", to=-1.0),
    "kernel of no name": of("model", "kernel", "name", to=["poly"]),
    "no schema": of("schema", to=...),
    "features": of("schema", "n_features", to=2),
    "features of another type": of("schema", "n_features", to="3"),
    "names": of("schema", "feature_names", to=["a"]),
    "medians": of("schema", "medians", to=[0.0]),
    "one class": of("schema", "classes", to=["ja"]),
    "three classes": of("schema", "classes", to=["a", "b", "c"]),
    "equal classes": of("schema", "classes", to=["ja", "ja"]),
    "classes in another order": of("schema", "classes", to=["nein", "ja"]),
    "classes of another type": of("schema", "classes", to=[1, 2]),
    "no classes": of("schema", "classes", to=...),
    "wide labels": of("schema", "classes_dtype", to="<U250000000"),
    "narrow labels": of("schema", "classes_dtype", to="<U1"),
    "labels of no type": of("schema", "classes_dtype", to="nonsense"),
    "records as labels": of("schema", "classes_dtype", to="V8"),
    "a method": of("fitted", "predict", to=1),
    "__dict__": of("fitted", "__dict__", to={"pairs": []}),
    "_model": of("fitted", "_model", to=1),
    "another array": array("predict", lambda a: a),
    "iterations": of("fitted", "n_iter_", to="many"),
    "gap": of("fitted", "dual_gap_", to=[1.0]),
    "history": of("fitted", "history_", to=3),
    "history's entries": of("fitted", "history_", to=[{"pairs": [["gap", 1.0]]}]),
    "pairs": of("fitted", "history_", to={"pairs": [3]}),
    "a list for a name": of("fitted", "history_", to={"pairs": [[[1], 2]]}),
    "support is a number": lambda content, arrays: (arrays.pop("support_"), content["fitted"].update(support_=3)),
    "support of floats": array("support_", lambda a: a.astype(float)),
    "support of another length": array("support_", lambda a: a[:-1]),
    "negative support": array("support_", lambda a: -1 - a),
    "coefficients are NaN": array("coefficients", lambda a: a * np.nan),
    "whole coefficients": array("coefficients", lambda a: a.astype(np.int64)),
    "rows are infinite": array("support_vectors", lambda a: a / 0.0),
    "two outputs": lambda content, arrays: arrays.update(
        coefficients=np.tile(arrays["coefficients"], (2, 1)), intercept=np.zeros(2)
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")
@pytest.mark.parametrize("lie", MODEL_LIES)
def test_a_model_that_lies(lie, models, tmp_path):
    path = tmp_path / "m.zarr"
    shutil.copytree(models / "poly.zarr", path)
    rewrite(path, "model", lambda content, arrays: None)
    before = load_model(path)
    rewrite(path, "model", MODEL_LIES[lie])
    assert str(path) in str(raises(ROW, lambda: load_model(path)))
    refused(ROW, "info", path)
    assert before.predict(X[FEW]).tolist() == load_model(models / "poly.zarr").predict(X[FEW]).tolist()


@pytest.mark.parametrize("weights", [np.full((1, 3), np.inf), np.empty((1, 0)), np.zeros((2, 3)), np.zeros(3)])
def test_a_linear_model_that_lies(weights, models, tmp_path):
    path = tmp_path / "m.zarr"
    shutil.copytree(models / "linear.zarr", path)
    rewrite(path, "model", array("weights", lambda _: weights))
    raises(ROW, lambda: load_model(path))


@pytest.mark.parametrize("change", [lambda a: a + 100.0, lambda a: a[[0, 1, 2, 2]]], ids=["crossed", "another class"])
def test_intervals_that_lie(change, tmp_path):
    path = tmp_path / "m.zarr"
    ODMRegressor(loo=True, random_state=0).fit(X[FEW], X[FEW, 0]).save(path)
    rewrite(path, "model", array("conformity_", change))
    raises(ROW, lambda: load_model(path))


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    model = ODMClassifier(random_state=0).fit(X[FEW], Y[FEW])
    with pytest.raises(InputError, match="The 'theta' parameter"):
        model.set_params(theta=2.0).save(tmp_path / "m.zarr")
    assert not list(tmp_path.iterdir())


# Checkpoints ------------------------------------------------------------------------------------------------

FITS = {
    "tree": (60, {"solver": SODM(4, fan_in=2)}),
    "exact": (3300, {"solver": "exact"}),
    "landmark": (400, {"solver": Landmark(40)}),
    "newton": (60, {"kernel": "linear", "solver": "newton"}),
    "svrg": (60, {"kernel": "linear", "solver": "svrg", "max_iter": 3}),
}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoints")
    for name in FITS:
        fit(folder / name, name)
    return folder


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def fit(path: Path, name: str, *, resume: bool = False) -> ODMClassifier:
    rows, settings = FITS[name]
    return ODMClassifier(**settings, random_state=0, checkpoint=path, resume=resume).fit(X[:rows], Y[:rows])


def none(content: Content, arrays: dict[str, np.ndarray]) -> None:
    """No lie: what is written again is gone on from."""


ANY = {
    "no seed": of("seed", to=...),
    "seed is text": of("seed", to="0"),
    "negative seed": of("seed", to=-1),
    "no fit": of("fit", to=...),
    "no history": of("history", to=...),
    "empty history": of("history", to=[]),
    "history of another type": of("history", to={"gap": 1}),
    "history of numbers": of("history", to=[1, 2]),
    "a gap that is text": of("history", 0, "gap", to="0.1"),
    "an entry without objective": of("history", 0, "objective", to=...),
}
LEVELS = {
    "no level": of("level", to=...),
    "level is text": of("level", to="1"),
    "level is true": of("level", to=True),
    "level 99": of("level", to=99),
    "level -1": of("level", to=-1),
    "the level before": of("level", to=1),
    "history of more levels": lambda content, arrays: content["history"].append(content["history"][-1]),
    "no dual variables": lambda content, arrays: arrays.pop("dual"),
    "other figures": array("figures", lambda a: a[:, :2]),
    "flat dual variables": array("dual", lambda a: a.ravel()),
    "dual variables are NaN": array("dual", lambda a: a * np.nan),
    "other rows": array("figures", lambda a: a + np.eye(1, a.shape[1], 2)),
    "figures are infinite": array("figures", lambda a: a + np.inf),
    "fewer partitions": lambda content, arrays: arrays.update({name: a[:0] for name, a in arrays.items()}),
}


def steps(vector: str, whole: str) -> dict[str, Any]:
    return {
        "another field": of("colour", to="red"),
        "a list for a figure": of(whole, to=[1]),
        "a fraction": of(whole, to=1.5),
        "a negative number": of(whole, to=-5),
        "no such figure": of(whole, to=...),
        "a step left out": lambda content, arrays: content["history"].pop(0),
        "a vector of another length": array(vector, lambda a: a[:-1]),
        "a vector of no length": array(vector, lambda a: a[:0]),
        "a vector of NaN": array(vector, lambda a: a * np.nan),
        "a vector of whole numbers": array(vector, lambda a: a.astype(np.int64)),
        "no vector": lambda content, arrays: arrays.pop(vector),
    }


LIES = {
    "tree": ANY | LEVELS,
    "exact": {
        "no such figure": of("double_since", to=...),
        "scores of another length": array("scores", lambda a: a[:-1]),
        "inner": array("inner", lambda a: a[:-1]),
    },
    "landmark": steps("a", "drawn"),
    "newton": ANY | steps("w", "hessian_stride") | {"stride 0": of("hessian_stride", to=0)},
    "svrg": steps("w", "epoch") | {"before": array("before", lambda a: a[:1])},
}


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("name", "lie"), [(name, lie) for name, lies in LIES.items() for lie in lies])
def test_a_checkpoint_that_lies(name, lie, checkpoints, tmp_path):
    path = tmp_path / "c"
    shutil.copytree(checkpoints / name, path)
    rewrite(path, "checkpoint", LIES[name][lie])
    before = tree(tmp_path)
    assert str(path) in str(raises(ROW, lambda: fit(path, name, resume=True)))
    assert tree(tmp_path) == before


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", FITS)
def test_a_checkpoint_that_does_not(name, checkpoints, tmp_path):
    path = tmp_path / "c"
    shutil.copytree(checkpoints / name, path)
    rewrite(path, "checkpoint", none)
    whole = fit(tmp_path / "d", name)
    resumed = fit(path, name, resume=True)
    assert resumed.decision_function(X).tobytes() == whole.decision_function(X).tobytes()


# Predictions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [
    {}, {"targets": 1, "classes": ["a"]}, {"classes": 3}, {"classes": []}, {"classes": [[1]]},
    {"classes": ["a"], "b": 1},
])  # fmt: skip
def test_a_prediction_that_lies(content, tmp_path):
    write_record(tmp_path / "p.zarr", "prediction", {"y": np.zeros(3, np.int8)}, content)
    with pytest.raises(StoreError, match=r"prediction '.*p\.zarr' is not what a prediction is: "):
        read_record(tmp_path / "p.zarr", "prediction").verify()
    refused(ROW, "verify", tmp_path / "p.zarr")
