"""`dask-odm warmup`: compile every loop now, and keep it for later processes.

Loops are compiled for number types, and for dense and sparse rows. This is useful when an image is built, or on a
cluster's workers before their first task.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from dask import config
from scipy.sparse import csr_array

import dask_odm as odm
from dask_odm.data.readers.libsvm_rows import parse_rows
from dask_odm.data.rows.scaling import Scaling
from dask_odm.events import Progress, report
from dask_odm.kernels import KERNELS
from dask_odm.solvers import SODM, Cells, Landmark, Saddle

Fit = Callable[[], Any]


def warm_up_all() -> None:
    """Compile every loop, or load it if that was done before. Reports `Progress`."""
    fits = _fits()
    report(Progress("warmup", 0, len(fits), "fits"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these fits end early
        for i, fit in enumerate(fits):
            fit()
            report(Progress("warmup", i + 1, len(fits), "fits"))


def _fits() -> list[Fit]:
    found: list[Fit] = []
    distances = [name for name, kernel in KERNELS.items() if kernel.of_distances]  # which have loops of their own
    for dtype in (np.float32, np.float64):
        fit = partial(_fit, dtype=dtype)
        found += [fit(odm.ODMClassifier(kernel)) for kernel in distances]
        cholesky = 300  # rows of a solve by Cholesky in float32; 1,100 are solved by more than that
        found += [fit(odm.ODMClassifier(), rows=rows) for rows in (cholesky, 1100)] + [
            fit(odm.ODMClassifier(solver=Cells(30)))
        ]
        found += [fit(odm.ODMClassifier(solver=each), rows=1100) for each in (SODM(4), Landmark(20, certify=True))]
        found += [partial(Scaling(np.zeros(1), np.ones(1)), np.zeros((1, 1), dtype))]
        text: dict[str, Any] = {"features": 2049, "sparse": True, "share": 0.1}
        found += [fit(odm.ODMClassifier(scale="ranks")), fit(odm.ODMClassifier(scale="ranks"), **text)]
        found += [fit(odm.ODMClassifier("laplacian", metric="full"))]
        found += [fit(odm.ODMClassifier("linear", solver=solver)) for solver in ("newton", "dsvrg", "svrg", "csvrg")]
        found += [fit(odm.ODMClassifier("linear", solver="dsvrg"), sparse=True)]
        found += [
            fit(odm.ODMClassifier(), classes=3),
            fit(odm.ODMClassifierCV("linear")),
            fit(odm.ODMClassifierCV("rbf")),
        ]
        found += [fit(odm.ODMClassifier(solver=Landmark(20), multi_class="ovr"), classes=3)]
        # rows like texts, for which machines of many classes have loops of their own
        found += [fit(odm.ODMClassifier("linear", scale=None), classes=classes, **text) for classes in (2, 3)]
        # kernel values of rows with many features
        found += [
            fit(odm.ODMClassifier(kernel, scale=None), **text | {"sparse": KERNELS[kernel].takes_csr})
            for kernel in distances
        ]
        # rows that are mostly zero or not
        found += [fit(odm.ODMClassifier("linear"), rows=cholesky, features=80, share=share) for share in (0.1, 1.0)]
        found += [fit(odm.SaddleSVC(solver=solver)) for solver in ("mnp", "saddle", "gilbert", Saddle(n_clients=2))]
        found += [
            fit(odm.SaddleSVC(kernel="rbf")),
            fit(odm.SaddleSVC(), stored=True),
            fit(odm.MixingClassifier(), sparse=True),
        ]
        found += [fit(odm.MixingClassifier(local)) for local in ("perceptron", "pa", "pa1", "odm")]
        found += [fit(odm.MDDRidge(n_partitions=2)), fit(odm.MDDKernelRidge(n_landmarks=10))]
        found += [fit(odm.OneClassODM()), fit(odm.ODMRegressor()), fit(odm.ODMRegressorCV())]
    found += [_fit(odm.ODMClassifier("linear"), features=2048)]  # too many features for Newton to form a Hessian
    found += [_fit(odm.ODMClassifier("linear"), sparse=True)]
    return [*found, partial(parse_rows, b"1 1:1\n", 1)]


def _fit(model: Any, dtype: Any = np.float64, *, rows: int = 60, features: int = 5, sparse: bool = False,
         classes: int = 2, share: float = 1.0, stored: bool = False) -> Fit:  # fmt: skip
    """Return a small fit with a prediction, of rows of which a ``share`` of the features are not zero."""

    def run() -> None:
        rng = np.random.default_rng(0)
        dense = rng.standard_normal((rows, features)).astype(dtype)
        dense[:, : int((1.0 - share) * features)] = 0.0
        X: Any = csr_array(dense) if sparse else dense
        scores = dense[:, -1] + 0.1 * rng.standard_normal(rows)
        y = np.sign(scores) if classes == 2 else np.argsort(np.argsort(scores)) * classes // rows
        if "max_iter" in model.get_params():
            model.set_params(max_iter=2)
        with _stored(X, y) if stored else nullcontext((X, y)) as given:
            model.fit(*given).predict(given[0])

    return run


@contextmanager
def _stored(X: Any, y: Any) -> Iterator[tuple[str]]:
    """Yield the path of a store of the rows that is not read into memory, as small stores otherwise are."""
    with TemporaryDirectory() as folder, config.set({"dask_odm.read-into-memory": 0}):
        yield (odm.ingest((X, y), os.path.join(folder, "rows.zarr"), dtype=X.dtype.name).path,)
