"""Settings of one fit of the optimal margin distribution machine, from the parameters of a classifier or regressor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from dask_odm.errors import InputError
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.odm_estimator import advise_groups
from dask_odm.learning.parameters import solver_object, solver_word
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods.odm_fit import LastFit, ODMFit
from dask_odm.methods.recipes import is_linear
from dask_odm.methods.settings import Landmark
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.pair_model import PairModel

F = TypeVar("F", bound=ODMFit)


def settings_of(model: Any, kind: type[F], run: FitRun, more: dict[str, Any], **own_settings: Any) -> F:
    """Return the settings of the fit ``run`` of an estimator; ``more`` are as `StoreEstimator._settings` takes them."""
    own = solver_object(model.solver, model._solvers) or Landmark()  # "auto" takes others later, if at all
    groups = None if more.get("groups") is None else numbered(more["groups"])
    if groups is not None and not model.loo:
        raise InputError("groups say what leave-one-out leaves out: set loo to True, or give none.")
    if more.get("places") and groups is None and model.loo:
        advise_groups()
    found = kind.of(model, own, run, more.get("lams", ()), word=solver_word(model.solver), **own_settings)
    return replace(found, groups=groups, **(_start(model) if model.warm_start else {}))


def _start(estimator: Any) -> dict[str, Any]:
    """Return the start for ``warm_start``: weights and intercepts, or the solution of the last fit of a kernel."""
    word = solver_word(estimator.solver)
    model: Any = getattr(estimator, "_model", None)
    if is_linear(word, estimator.kernel):
        found = zip(model.weights, model.intercept.tolist(), strict=True) if hasattr(estimator, "coef_") else ()
        return {"starts": tuple(found)}
    if word not in ("auto", "exact", "landmark", "cells") or not KernelChoice.of(estimator).is_named:
        raise InputError(
            "warm_start is for kernels by their names, by solver 'exact', 'landmark' or 'cells', and for linear "
            "solvers; set it to False."
        )
    if not isinstance(model, KernelModel) or isinstance(model, PairModel) or not hasattr(estimator, "support_"):
        return {}
    tree = getattr(model, "tree", None)
    last = LastFit(estimator.support_, model.raw_support, model.machine_coefficients, model.scaling, tree)
    if getattr(estimator, "multi_class", "") is None:
        return {"last": last, "scheme": "ovo" if model.pairs else "ovr", "any_scheme": False}
    return {"last": last}
