"""The command that compiles everything, tried with a few of its fits."""

import numpy as np

from cli.running import run_json
from dask_odm import ODMClassifier, SaddleSVC
from dask_odm.cli import warmup
from dask_odm.estimators.registry import ESTIMATORS
from dask_odm.kernels import KERNELS


def test_the_command_makes_every_fit(monkeypatch):
    done = []
    fits = [warmup._fit(ODMClassifier("linear"), np.float64), warmup._fit(SaddleSVC(), np.float64, sparse=False)]
    monkeypatch.setattr(warmup, "_fits", lambda: [*fits, lambda: done.append(True)])
    found = run_json("warmup")
    assert found["seconds"] > 0
    assert done == [True]


def test_rows_like_texts_are_fitted_without_a_hint(monkeypatch, caplog):
    """The hints of these fits would be shown to somebody who has made no choice."""
    fits = {fit: [c.cell_contents for c in getattr(fit, "__closure__", None) or ()] for fit in warmup._fits()}
    fits = {fit: held for fit, held in fits.items() if 2049 in held}
    kernels = {each.kernel for held in fits.values() for each in held if isinstance(each, ODMClassifier)}
    assert kernels == {"linear", *(name for name, kernel in KERNELS.items() if kernel.of_distances)}
    monkeypatch.setattr(warmup, "_fits", lambda: list(fits))
    warmup.warm_up_all()
    assert not caplog.messages


def test_every_estimator_is_warmed_up():
    held = [cell.cell_contents for fit in warmup._fits() for cell in getattr(fit, "__closure__", None) or ()]
    named = {type(each).__name__ for each in held}
    # tests register families of their own, which are no part of the package
    assert {name for name, entry in ESTIMATORS.items() if entry.module.startswith("dask_odm.")} <= named
