"""`dask-odm warmup`: compile every loop now, and keep it for later processes.

Loops are compiled for number types, for dense and sparse rows, and for the few widths to which rows are padded. This is
useful when an image is built, or on a cluster's workers before their first task.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from dask import config
from scipy.sparse import csr_array

from dask_odm.data.ingest import ingest
from dask_odm.data.rows.scaling import NUMPY_ENTRIES, Scaling
from dask_odm.estimators.mdd_kernel_ridge import MDDKernelRidge
from dask_odm.estimators.mdd_ridge import MDDRidge
from dask_odm.estimators.mixing_classifier import MixingClassifier
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.estimators.odm_classifier_cv import ODMClassifierCV
from dask_odm.estimators.saddle_svc import SaddleSVC
from dask_odm.events import Progress, report
from dask_odm.kernels.loops import FEATURES
from dask_odm.methods.hulls.solver_objects import Saddle
from dask_odm.methods.solver_objects import SODM, Landmark

ROWS = 60
WIDE = 2049  # features of text-like rows, for which machines of many classes have loops of their own
THIN = 80  # features of mostly zero rows, more than the loops for few features take
SOME = 300  # rows of a solve by Cholesky in float32
MANY = 1100  # rows of a solve by more than Cholesky alone
Fit = Callable[[], Any]


def warm_up_all() -> float:
    """Compile every loop, or load it if that was done before. Returns seconds, and reports `Progress`."""
    began = time.perf_counter()
    fits = _fits()
    report(Progress("warmup", 0, len(fits), "fits"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # these fits end early
        for i, fit in enumerate(fits):
            fit()
            report(Progress("warmup", i + 1, len(fits), "fits"))
    return time.perf_counter() - began


def _fits() -> list[Fit]:
    found: list[Fit] = []
    for dtype in (np.float32, np.float64):
        for width in range(3, 3 + FEATURES + 1):  # an RBF pads two columns to steps of up to `FEATURES`
            found += [_fit(ODMClassifier(kernel), dtype, features=width - 2) for kernel in ("rbf", "laplacian")]
        found += [_fit(ODMClassifier(), dtype, rows=rows) for rows in (SOME, MANY)]
        found += [_fit(ODMClassifier(solver=SODM(4)), dtype, rows=MANY)]
        found += [_fit(ODMClassifier(solver=Landmark(20, certify=True)), dtype, rows=MANY)]
        found += [partial(Scaling(np.zeros(1), np.ones(1)), np.zeros((NUMPY_ENTRIES + 1, 1), dtype))]
        found += [
            _fit(ODMClassifier("linear", solver=solver), dtype) for solver in ("newton", "dsvrg", "svrg", "csvrg")
        ]
        found += [_fit(ODMClassifier(), dtype, classes=3)]
        found += [_fit(ODMClassifierCV(kernel), dtype) for kernel in ("linear", "rbf")]
        found += [
            _fit(ODMClassifier("linear"), dtype, features=WIDE, sparse=True, share=0.1, classes=classes)
            for classes in (2, 3)
        ]
        found += [_fit(ODMClassifier("linear"), dtype, rows=SOME, features=THIN, share=share) for share in (0.1, 1.0)]
        found += [_fit(SaddleSVC(solver=solver), dtype) for solver in ("mnp", "saddle", "gilbert")]
        found += [_fit(SaddleSVC(solver=Saddle(n_clients=2)), dtype), _fit(SaddleSVC(kernel="rbf"), dtype)]
        found += [_fit(SaddleSVC(), dtype, stored=True), _fit(MixingClassifier(), dtype, sparse=True)]
        found += [_fit(MixingClassifier(local), dtype) for local in ("perceptron", "pa", "pa1", "odm")]
        found += [_fit(MDDRidge(n_partitions=2), dtype), _fit(MDDKernelRidge(n_landmarks=10), dtype)]
    wide = 2048  # features, too many for newton to form a Hessian
    found += [_fit(ODMClassifier("linear"), np.float64, features=wide)]
    found += [_fit(ODMClassifier("linear"), np.float64, sparse=True)]
    return found


def _fit(model: Any, dtype: Any, *, rows: int = ROWS, features: int = 5, sparse: bool = False, classes: int = 2,
         share: float = 1.0, stored: bool = False) -> Fit:  # fmt: skip
    """Return a small fit with a prediction.

    ``share`` of the features are not zero; with ``stored`` the rows are read from a store.
    """

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
        yield (ingest((X, y), os.path.join(folder, "rows.zarr"), dtype=X.dtype.name).path,)
