"""The estimators that the contracts hold, with quick settings and rows.

A family joins by a line in `CASES` for each way it learns, and one in `CHECKED`. A contract that an estimator cannot
keep is named in ``without``, with the reason, and is then skipped. What only some estimators have (a kernel, a solver,
a dual gap, support, one score a row) is asked for nowhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import is_regressor
from sklearn.metrics.pairwise import linear_kernel

from contracts.toy_family import CentroidClassifier
from dask_odm import (
    MDDKernelRidge,
    MDDRidge,
    Metric,
    MixingClassifier,
    ODMClassifier,
    ODMClassifierCV,
    ODMRegressor,
    ODMRegressorCV,
    OneClassODM,
    SaddleSVC,
)
from dask_odm.data.store.store import Store
from dask_odm.estimators.registry import register
from dask_odm.events import CheckpointOpened, Event, PartitionSolved, Progress
from dask_odm.solvers import CSVRG, DC, DSVRG, MNP, SODM, SVRG, Cascade, Cells, DiP, Landmark, Saddle
from small_problems import blobs
from small_stores import store_of

Rows = tuple[np.ndarray, np.ndarray]
CHUNKS = 5  # of a store, the last of them smaller


def two_classes(n: int = 200) -> Rows:
    """Rows of three features in float64, labels "no" and "yes"."""
    X, y = blobs(n, 3, seed=5)
    return X, np.where(y > 0, "yes", "no")


def outliers() -> Rows:
    """The same rows, labels -1 and 1."""
    X, y = two_classes()
    return X, np.where(y == "yes", 1, -1)


def three_classes() -> Rows:
    """Rows of three features, labels 0, 1 and 2."""
    X, y = blobs(200, 3, seed=7)
    third = np.arange(200) % 3 == 0
    return X + 3.0 * third[:, None], np.where(third, 2, (y > 0).astype(int))


def apart() -> Rows:
    """Rows of two classes whose reduced hulls do not meet."""
    X, y = blobs(200, 3, seed=5, distance=4.0)
    return X, np.where(y > 0, "yes", "no")


def across() -> Rows:
    """Rows of three features, of which two differences say nothing of the labels, so that a metric is learned."""
    X, _ = blobs(200, 3, seed=5)
    return X, np.where(np.sin(1.5 * (X[:, 0] + X[:, 1])) > 0, "yes", "no")


def real_targets() -> Rows:
    """Rows of three features in float64, real targets that are not quite linear in them."""
    X, y = blobs(200, 3, seed=5)
    return X, X @ [1.0, -2.0, 0.5] + np.sin(X[:, 0]) + y


def several_targets() -> Rows:
    """The same rows, two real targets each."""
    X, y = real_targets()
    return X, np.column_stack([y, 10.0 * np.cos(X[:, 1])])


def several_labels() -> Rows:
    """Rows of three features, a 0/1 matrix of three labels."""
    X, y = real_targets()
    return X, np.column_stack([y > 0, X[:, 2] > 0.5, X[:, 1] < 0]).astype(int)


@dataclass(frozen=True)
class Case:
    """An estimator as the contracts take it.

    Attributes
    ----------
    name : str
    kind : class
        The estimator's.
    word : str
        What the command line calls it.
    settings : mapping
        Parameters of a quick fit that gets near enough to the optimum for ``tol``.
    other : mapping
        Parameters that make another fit of it, for a checkpoint to refuse.
    rows : callable
        Makes rows and labels.
    tol : float
        How far scores may be from those of the same rows in another form, as a share of the largest.
    without : mapping of str to str
        Contracts that it cannot keep, and why: "targets", "sparse", "passes", "checkpoint", "events", "memory limit",
        "cluster", "weights".
    """

    name: str
    kind: type[Any]
    word: str
    settings: Mapping[str, Any]
    other: Mapping[str, Any]
    rows: Callable[[], Rows] = two_classes
    tol: float = 1e-4
    without: Mapping[str, str] = field(default_factory=dict)

    def make(self, **changes: Any) -> Any:
        """A new estimator."""
        return self.kind(**{**self.settings, **changes})

    def fit(self, *data: Any, **changes: Any) -> Any:
        """A new estimator that has learned from ``data``, by default from its rows in memory."""
        return self.make(**changes).fit(*(data or self.rows()))

    def store(self, folder: Path) -> Store:
        """Its rows as a store."""
        X, y = self.rows()
        real = is_regressor(self.make()) or y.ndim > 1
        return store_of(folder / "rows.zarr", X, y, chunk_rows=len(y) // CHUNKS + 1, real=real)

    def require(self, contract: str) -> None:
        """Skip the test where the estimator cannot keep the contract."""
        if contract in self.without:
            pytest.skip(f"{self.name}, {contract}: {self.without[contract]}")

    def same(self, found: Any, expected: Any) -> None:
        """Fail unless two sets of scores are equal but for the tolerance."""
        np.testing.assert_allclose(found, expected, rtol=0, atol=self.tol * np.abs(expected).max())


def scores(model: Any, X: Any) -> np.ndarray:
    """A model's scores, or values where it is a regressor."""
    return np.asarray(getattr(model, "decision_function", model.predict)(X))


def fitted(model: Any) -> dict[str, Any]:
    """The fitted attributes of a model that a file holds, without what a clock says."""
    names = [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]
    found = {name: getattr(model, name) for name in names if name not in model._unsaved}
    if "history_" in found:
        found["history_"] = [{k: v for k, v in record.items() if k != "seconds"} for record in found["history_"]]
    return found


def assert_equal(one: Any, another: Any) -> None:
    """Fail unless two models have the same fitted attributes, bit for bit."""
    assert set(fitted(one)) == set(fitted(another))
    for name, value in fitted(one).items():
        np.testing.assert_array_equal(getattr(value, "dtype", None), getattr(fitted(another)[name], "dtype", None))
        np.testing.assert_array_equal(value, fitted(another)[name], err_msg=name)


def steps(heard: list[Event]) -> list[Event]:
    """The events that end a step, a level or an epoch."""
    return [event for event in heard if not isinstance(event, Progress | PartitionSolved | CheckpointOpened)]


register("CentroidClassifier", "contracts.toy_family", "centroids")  # all that a family outside this package takes
SHARDS = {"weights": "which shard a row is in, it is told by its number"}
SHARDED = {"n_partitions": 4, "lam": 0.1, "random_state": 0}
MEMORY = {
    "passes": "it refuses a store that is not read into memory",
    "cluster": "it runs in memory only",
    "memory limit": "it needs nothing beside the rows, which are there",
}
MEDIANS = {"weights": "cells are divided at medians of rows, of which there are more where one is there twice"}
HELD = {"weights": "which rows judge a metric, it is told by their places: two are not one of twice the weight"}
MIXES = MEDIANS | {"sparse": "a matrix mixes columns, and leaves no zeros"}
REPEATED = {"weights": "landmarks are drawn among repeated rows, as they are not merged for several targets"}
LAM = {"lam": 7.0}
odm = partial(Case, kind=ODMClassifier, word="odm", other=LAM)
mdd = partial(Case, kind=MDDRidge, word="mdd-ridge", other=LAM, rows=real_targets)
mddk = partial(Case, kind=MDDKernelRidge, word="mdd-kernel-ridge", other=LAM, rows=real_targets)
KERNEL_RIDGE = {"gamma": 0.5, "lam": 0.1, "random_state": 0}
kernel = {"gamma": 0.5, "lam": 100.0, "tol": 1e-8, "random_state": 0, "scale": None}
mixing = partial(
    Case,
    kind=MixingClassifier,
    word="mixing",
    other={"kappa": None, "beta": 0.2},
    tol=1e-3,
    without={"weights": "a step for each row goes by the order of the rows: two are not one of twice the weight"},
)
one_class = partial(
    Case, kind=OneClassODM, word="one-class", other=LAM, rows=outliers, without={"targets": "it learns from no targets"}
)
regression = partial(Case, kind=ODMRegressor, word="regressor", other=LAM, rows=real_targets)
TRIALS = {"checkpoint": "it is one of trials, which are no steps; its own tests go on from it"}
# of several, folds may choose others: equal rows are in different folds
ONE_VIEW = {"kernel": "rbf", "scale": "minmax"}
GRID = {"gammas": [0.5], "lams": [50.0, 100.0], "upsilons": [0.3], "thetas": [0.1], "tol": 1e-8, "random_state": 0}
GRID |= ONE_VIEW
linear = {"kernel": "linear", "lam": 100.0, "tol": 1e-8, "random_state": 0, "scale": "minmax", "max_iter": 4000}

CASES = [
    odm("exact", settings={"solver": "exact", **kernel}, rows=partial(two_classes, 3100)),  # fewer take one step
    odm("defaults", settings={"tol": 1e-8, "random_state": 0}),
    Case("search", ODMClassifierCV, "odm-cv", settings=GRID, other={}, tol=1e-2, without=TRIALS),
    odm("landmark", settings={"solver": Landmark(200), **kernel}),
    odm("cells", settings={"solver": Cells(40), **kernel}, without=MEDIANS),
    odm("cells on ranks", settings={"solver": Cells(40), **kernel, "scale": "ranks"}, without=MEDIANS),
    odm("ranks", settings={"solver": Landmark(200), **kernel, "scale": "ranks"}),
    Case(
        "search, metric",
        ODMClassifierCV,
        "odm-cv",
        settings={**GRID, "metric": "diagonal"},
        other={},
        rows=across,
        tol=1e-2,
        without=TRIALS | HELD,
    ),
    odm("metric", settings={"solver": Landmark(200), **kernel, "metric": Metric(rounds=1)}, rows=across, without=HELD),
    odm(
        "cells by a matrix",
        settings={"solver": Cells(40), **kernel, "metric": Metric("full", rounds=1)},
        rows=across,
        without=MIXES,
    ),
    odm("cells, many", settings={"solver": Cells(40), **kernel}, rows=three_classes, without=MEDIANS),
    odm("sodm", settings={"solver": SODM(4, fan_in=2), **kernel}),
    odm("cascade", settings={"solver": Cascade(4, fan_in=2), **kernel}),
    odm("dip", settings={"solver": DiP(4, fan_in=2, n_clusters=6), **kernel}),
    odm("dc", settings={"solver": DC(4, fan_in=2), **kernel}),
    odm("newton", settings={"solver": "newton", **linear}),
    odm("landmark, many", settings={"solver": Landmark(200), "multi_class": "ovr", **kernel}, rows=three_classes),
    odm("newton, pairs", settings={"solver": "newton", "multi_class": "ovo", **linear}, rows=three_classes),
    odm("dsvrg", settings={"solver": DSVRG(n_partitions=4), **linear}, tol=1e-3),
    odm("svrg", settings={"solver": SVRG("bb"), **linear}, tol=1e-3, without=MEMORY),
    Case("nearest point", SaddleSVC, "saddle", settings={"tol": 1e-9}, other={"alpha": 0.95}, rows=apart, tol=1e-3),
    Case(
        "hulls over landmarks",
        SaddleSVC,
        "saddle",
        settings={"kernel": "rbf", "gamma": 0.06, "solver": MNP(200), "tol": 1e-6, "random_state": 0},
        other={"alpha": 0.95},
        rows=apart,
        tol=1e-2,
    ),
    Case(
        "saddle point",
        SaddleSVC,
        "saddle",
        settings={"solver": "saddle", "tol": 1e-4, "random_state": 0},
        other={"alpha": 0.95},
        rows=apart,
        tol=1e-2,
    ),
    Case(
        "saddle point by clients",
        SaddleSVC,
        "saddle",
        settings={"solver": Saddle(n_clients=3), "tol": 1e-4, "random_state": 0},
        other={"solver": Saddle(n_clients=4)},
        rows=apart,
        tol=1e-2,
    ),
    Case(
        "centroids",
        CentroidClassifier,
        "centroids",
        settings={},
        other={},
        rows=three_classes,
        without={"checkpoint": "it takes one pass"},
    ),
    mdd("ridge", settings={"lam": 0.1}, without={"checkpoint": "it takes one pass"}),
    mdd("discrepancy", settings={"discrepancy": 0.5, **SHARDED}, without=SHARDS),
    mdd("consensus", settings={"discrepancy": 3.0, "mode": "consensus", **SHARDED}, without=SHARDS),
    mddk("kernel ridge", settings=KERNEL_RIDGE, without={"checkpoint": "one solve"}),
    mddk("kernel shards", settings={"discrepancy": 0.6, **KERNEL_RIDGE, **SHARDED}, without=SHARDS),
    mddk("kernel landmarks", settings={"n_landmarks": 400, **KERNEL_RIDGE}, without={"checkpoint": "one solve"}),
    mixing("mixing", settings={"n_shards": 6, "max_iter": 12, "random_state": 0}),
    mixing("robust odm", settings={"local": "odm", "beta": 0.5, "n_shards": 7, "max_iter": 8, "random_state": 0}),
    one_class("one class", settings={"solver": Landmark(200), **kernel}),
    one_class("one class, linear", settings=linear),
    regression("regression", settings={"solver": "exact", "upsilon": 0.4, "theta": 0.2, **kernel}),
    regression("regression, landmark", settings={"solver": Landmark(200), "upsilon": 3.0, "loo": True, **kernel}),
    regression("regression, cells", settings={"solver": Cells(40), "loo": True, **kernel}, without=MEDIANS),
    regression("regression, linear", settings={"theta": 0.3, "noise": "uneven", "loo": True, **linear}),
    regression(
        "several targets",
        settings={"solver": Landmark(200), "loo": True, **kernel},
        rows=several_targets,
        without=REPEATED,
    ),
    regression("several targets, exact", settings={"solver": "exact", **kernel}, rows=several_targets),
    odm("several labels", settings={"solver": Landmark(200), **kernel}, rows=several_labels, without=REPEATED),
    odm("several labels, linear", settings={"loo": True, **linear}, rows=several_labels),
    Case(
        "regression, search",
        ODMRegressorCV,
        "regressor-cv",
        settings={"gammas": [0.5], "lams": [50.0, 500.0], "tol": 1e-8, "random_state": 0, **ONE_VIEW},
        other={},
        rows=real_targets,
        tol=1e-2,
        without=TRIALS,
    ),
    odm("csvrg", settings={"solver": CSVRG(coreset_size=1000), **linear}, tol=1e-3, without=MEMORY),
]
# weights of a whole class shrink its hull, or leave it as it is; they do not move the offset towards the other
HULLS = {"check_class_weight_classifiers": ""}
# the check passes any numbers off as kernel values, over which P has no least value
NEGATIVE_DIAGONAL = {"check_positive_only_tag_during_fit": "negative diagonal"}
# steps draw rows: one that is there twice is drawn as two, and one of weight 2 as one, so that the draws are others
DRAWN = {
    "check_sample_weight_equivalence_on_dense_data": "not equivalent",
    "check_sample_weight_equivalence_on_sparse_data": "not equivalent",
}
# Settings that scikit-learn's checks run in, each with the checks that fail in it and what they say.
# weights are shares of a step, and a repeated row is a step more, in another place
UNEVEN = {f"check_sample_weight_equivalence_on_{rows}_data": "Comparing the output" for rows in ("dense", "sparse")}
CHECKED: list[tuple[Any, dict[str, str]]] = [
    (CentroidClassifier(), {}),
    (MixingClassifier(max_iter=10, random_state=0), UNEVEN),
    (MixingClassifier("odm", mixing="kl", scale="minmax", max_iter=10, random_state=0), UNEVEN),
    (SaddleSVC(), HULLS),
    (OneClassODM(), {}),
    (OneClassODM(solver="landmark"), {}),
    (OneClassODM(kernel="linear"), {}),
    (ODMRegressor(), {}),
    (ODMRegressor(solver="landmark"), {}),
    (ODMRegressor(solver="cells"), {}),
    (ODMRegressor(noise="uneven", loo=True), {}),
    (ODMRegressor("linear", theta=0.1), {}),
    # λ is tried in units of the number of rows, whatever the scale of their weights, and a row is left out whole
    (ODMRegressorCV("rbf", gammas=[0.1, 1.0]), UNEVEN),
    (MDDRidge(), {}),
    (MDDRidge("loo", scale="standard"), {}),
    (MDDKernelRidge(), {}),
    (MDDKernelRidge(n_landmarks=50, random_state=0), {}),
    (
        MDDRidge(n_partitions=2, discrepancy=0.5),
        {
            "check_fit2d_1sample": "n_partitions must be at most the number of rows, 1",
            # which shard a row is in, it is told by its number
            "check_sample_weight_equivalence_on_dense_data": "",
            "check_sample_weight_equivalence_on_sparse_data": "",
        },
    ),
    (ODMClassifier(), {}),
    (ODMClassifierCV(gammas=[0.1, 1.0], lams=[10.0, 1e3], upsilons=[0.2], thetas=[0.2]), {}),
    (ODMClassifier("linear"), {}),
    (ODMClassifier("linear", solver="sodm"), {}),
    (ODMClassifier(linear_kernel), {}),
    (ODMClassifier(scale="minmax"), {}),
    (ODMClassifier(solver=SODM(2)), {}),
    (ODMClassifier("precomputed"), NEGATIVE_DIAGONAL),
    (ODMClassifier("precomputed", solver="sodm"), NEGATIVE_DIAGONAL),
    (ODMClassifier(solver="landmark"), {}),
    (ODMClassifier(solver="cells"), {}),
    *((ODMClassifier(solver=solver), {}) for solver in ("cascade", "dip", "dc")),
    (ODMClassifier("linear", solver="dsvrg", max_iter=5), DRAWN),
    (ODMClassifier("linear", solver="svrg"), DRAWN),
    (ODMClassifier("linear", solver="csvrg"), DRAWN),
    (SaddleSVC(solver="gilbert", max_iter=100), HULLS),  # zigzags for long where hulls nearly meet
    (SaddleSVC(alpha=None, offset="midpoint"), HULLS),
    (SaddleSVC(kernel="rbf", solver=MNP(50), random_state=0), HULLS),
    # random coordinates, to a gap of 1e-3, and then the weights of a row that is there twice are halves only about
    (
        SaddleSVC(solver="saddle"),
        HULLS | {f"check_sample_weight_equivalence_on_{rows}_data": "not equivalent" for rows in ("dense", "sparse")},
    ),
]


def each_of(*names: str) -> pytest.MarkDecorator:
    """A test for the cases of these names, or for all."""
    found = [case for case in CASES if not names or case.name in names]
    assert len(found) == len(names or CASES)
    return pytest.mark.parametrize("case", found, ids=lambda case: case.name)


each_case = each_of()
