"""Special routes of kernel values: dask_odm/kernels."""

from __future__ import annotations

import lzma
import os
from pathlib import Path

import numpy as np
from sklearn.datasets import load_svmlight_file

import dask_odm.models.kernel_model as kernel_model
from benchmarks.weight.route import Route, Routes
from dask_odm import ODMClassifier


def routes(scale: float) -> Routes:
    folder = os.environ.get("DASK_ODM_DATA")
    if folder is None:
        return
    with lzma.open(Path(folder, "mnist10k.train.svm.xz")) as file:
        X, y = load_svmlight_file(file, n_features=784, dtype=np.float32)
    n = int(6000 * scale)
    X = X[:n].toarray() / 255.0
    model = ODMClassifier(multi_class="ovo", gamma=0.02, lam=1e5, scale=None, random_state=0).fit(X, y[:n])
    some = X[: n // 2]
    yield Route.replacing(
        "sparse tiles",
        f"prediction of {n // 2:,} × 784 digits, pairs of {n:,}, or dense tiles",
        lambda: model.predict(some),
        kernel_model,
        tiles_of=lambda kernel, rows: kernel,
    )
