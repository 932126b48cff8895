"""The optimal margin distribution machine of real targets as a scikit-learn regressor: parameters, intervals.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the recipes are those of `ODMClassifier`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.rows.targets import RealValues
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.resolving import is_xarray
from dask_odm.estimators.mixins import StoreRegressor
from dask_odm.estimators.odm_estimator import settings_of
from dask_odm.estimators.scoring import LeftOutScores
from dask_odm.estimators.shared_parameters import MachineParameters
from dask_odm.estimators.target_kinds import RealTargets
from dask_odm.kernels import KERNELS
from dask_odm.learning.machines import Attributes, joined, joined_attributes, runs_of
from dask_odm.learning.parameters import (
    NOT_NEGATIVE,
    POSITIVE,
    Registered,
    parameter,
    solver_word,
    with_parameters,
)
from dask_odm.learning.problem.losses import ODMSettings, ResidualLoss, ResidualSettings, RowLosses
from dask_odm.learning.training.recipe import Choice, Trained, advice_on_features
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.left_out import LEFT_OUT_ROWS, OF_MACHINE
from dask_odm.methods.metric import with_metric
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import ODMFamily, learns_several
from dask_odm.methods.settings import Cells, Exact, Landmark, Newton
from dask_odm.models.sets import MACHINES, conformity_table, ends, spread_ends, spread_sizes, thresholds_of
from dask_odm.typing import Array

# υ of the expectiles beside the prediction: so many times its own, and a part. 9 covers no better, 2 is noisier.
SPREAD = 4.0


@dataclass(frozen=True)
class RegressionFit(ODMFit):
    """Settings of one fit of real targets."""

    odm: ResidualSettings
    problem: ClassVar[type[ODMSettings]] = ResidualSettings
    has_real_targets: ClassVar[bool] = True
    spread: bool = False  # whether expectiles on either side are learned, too

    def loss(self, data: TrainingData) -> Any:
        return ResidualLoss(self.odm, data.total_weight)

    def in_units(self, targets: RealValues) -> RegressionFit:
        """Return the settings with the start of targets in other units; raise InputError if it has fewer or more."""
        machines = MACHINES if self.spread else np.size(targets.unit)
        self.require_machines(machines)
        mean, unit = (np.broadcast_to(each, machines) for each in (targets.mean, targets.unit))
        starts = tuple((raw / u, (b - m) / u) for (raw, b), m, u in zip(self.starts, mean, unit, strict=False))
        last = self.last and replace(self.last, coefficients=self.last.coefficients / unit[:, None])
        return replace(self, starts=starts, last=last)

    def machines(self) -> list[RegressionFit]:
        """Return the settings of the prediction, and of the expectiles below and above it.

        The larger weight of the two sides of a residual is the same for all.
        """
        odm = self.odm
        below = replace(odm, upsilon=SPREAD * odm.upsilon, lam=odm.lam / SPREAD)
        above = replace(odm, upsilon=odm.upsilon / SPREAD)
        each = enumerate(zip((odm, below, above), runs_of(self.run, MACHINES), strict=True))
        return [replace(self.of_machine(i, MACHINES, run), odm=own) for i, (own, run) in each]

    def row_losses(self, y: Array, weight: Array) -> RowLosses:
        return RowLosses(self.odm, np.ones(len(y)), weight, targets=y)


class RegressionFamily(ODMFamily):
    """The machine of real targets, which are learned in units of their own deviation."""

    def train(self, choice: Choice[Any], data: TrainingData, fit: Any) -> Trained:
        if fit.spread and (data.n_targets > 1 or not choice.recipe.several):
            raise InputError("noise='uneven' is for one target, and not for solver='cells'; set noise to 'even'.")
        targets = units_of(data)
        fit = fit.for_data(data).in_units(targets)
        scaled = data.with_targets(targets)
        fit, of_metric = with_metric(scaled, fit)
        if fit.spread:
            scaled = scaled.beside(2 * data.nbytes)  # support rows of the machines before
            trained = joined((choice.train(scaled, each) for each in fit.machines()), 0, self.joined_targets)
        else:
            trained = self.learned(choice, scaled, fit)
        attributes = {name: value for name, value in trained.attributes.items() if name != OF_MACHINE}
        attributes |= {"lam_": fit.odm.lam, "scale_": fit.kernel.scale} | of_metric
        if fit.loo:
            attributes |= _left_out(targets, fit.spread, *trained.attributes[OF_MACHINE])
        model: Any = trained.model.rescaled(targets.unit, targets.mean)
        model = replace(model, spread=fit.spread)
        return replace(trained, model=model, attributes=attributes, advice=advice_on_features(data, fit.kernel))

    def joined_targets(self, machines: Sequence[Attributes]) -> Attributes:
        """Return the attributes of the machines of several targets; what leaving out found has a column for each."""
        found = joined_attributes(machines)
        if OF_MACHINE in found:
            values, y, weight = zip(*found[OF_MACHINE], strict=True)
            found[OF_MACHINE] = np.stack(values, axis=-1), np.stack(y, axis=-1), weight[0]
            found["loo_parameters_"] = float(found["loo_parameters_"].sum())
        return found


def units_of(data: TrainingData) -> RealValues:
    """Return targets less their mean, in units of their deviation; of constant ones, the unit is 1."""
    if data.n_targets > 1:  # one after the other, since all copies of all would take much memory
        each = [units_of(data.of_target(i)) for i in range(data.n_targets)]
        return RealValues(np.array([one.mean for one in each]), np.array([one.unit for one in each]))
    _, y, weight = data.taking_part
    power = int(np.frexp(np.abs(y).max())[1])  # which squares of targets overflow without, or underflow
    near = np.ldexp(y, -power)
    mean = float(np.average(near, weights=weight))
    unit = float(np.sqrt(np.average((near - mean) ** 2, weights=weight)))
    return RealValues(math.ldexp(mean, power), math.ldexp(unit, power) if unit > 1e-12 * abs(mean) else 1.0)


def _left_out(targets: RealValues, spread: bool, values: Array, y: Array, weight: Array) -> dict[str, Any]:
    """Return the fitted attributes that follow from left-out ``values`` (n,), or (n, t) of several targets.

    They are NaN for rows that take no part. If the model is ``spread``, they are those of its machines.
    """
    counted = np.flatnonzero(weight)
    sizes = spread_sizes(values[counted], y[counted, 0]) if spread else None
    values, y = (each[:, 0] if spread else each for each in (values, y))
    residuals = (values - y)[counted]
    units = weight[counted]
    sizes = (targets.unit * np.abs(residuals) if sizes is None else sizes).reshape(len(counted), -1)
    tables = [conformity_table(-size, np.ones(len(size), np.int64), units, 2) for size in sizes.T]
    table = tables[0] if len(tables) == 1 else np.stack([each[2] for each in (*tables, tables[0])])
    score = float(1.0 - np.average(residuals**2, axis=0, weights=units).mean())
    del residuals, sizes  # each as large as what is kept
    return {
        "loo_prediction_": targets.mean + targets.unit * values,
        LEFT_OUT_ROWS: (targets.mean + targets.unit * y, weight),
        "loo_score_": score,
        "conformity_": table,
    }


@with_parameters
class RegressionEstimator(LeftOutScores, StoreRegressor):
    """A regressor by the loss of the optimal margin distribution machine, with intervals if rows were left out.

    Parameters
    ----------
    upsilon : float, default=1.0
        υ > 0, weight of the loss of predictions that are too high, relative to that of those that are too low.
    theta : float, default=0.0
        θ ≥ 0, residuals that cost nothing, in standard deviations of the targets.
    solver : {…} or solver object, default="auto"
        As in `ODMClassifier`: "newton" for the linear kernel, otherwise "exact", "landmark" or "cells", which "auto"
        chooses from.
    noise : {"even", "uneven"}, default="even"
        Whether targets spread alike everywhere. With "uneven" and ``loo``, an expectile on either side is learned as
        well, in three times the time, and intervals are as wide as these say. For one target, and not for "cells". Of
        even noise, such intervals are a tenth to a quarter wider than plain ones.
    """

    _solvers = (Exact, Landmark, Newton, Cells)
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_prediction_",)
    scored_by = "r2"
    _left_out = "loo_prediction_"

    _: KW_ONLY
    upsilon: float = parameter(1.0, POSITIVE)
    theta: float = parameter(0.0, NOT_NEGATIVE)
    noise: str = parameter("even", StrOptions({"even", "uneven"}))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output &= learns_several(solver_word(self.solver))
        return tags

    def predict_interval(self, X: Any, coverage: float = 0.9) -> Any:
        """Return lower and upper ends of an interval for the target of every row, in the form of `predict`.

        Its half width is the same for all rows: the residual that a share ``coverage`` of the training rows does not
        exceed, each predicted by the model without it (jackknife). With ``noise="uneven"``, residuals are in units of
        an expectile's distance from the prediction, which differs by place and side. New rows like those of the fit
        lie inside with about this probability if single rows hardly change the model. For any data, nothing is
        guaranteed: that takes the models without each row themselves (jackknife+), or rows that were held out.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            As `predict` takes them.
        coverage : float, default=0.9
            In (0, 1).

        Returns
        -------
        interval : array of shape (n, 2), or (n, n_targets, 2), or DataArray
            A DataArray has a dimension "end", low and high. Several targets have an array for rows in memory. Intervals
            are infinite if there were too few training rows for the coverage.

        Raises
        ------
        InputError
            The model was fitted without ``loo``; a coverage beyond (0, 1); several targets for rows that are not in
            memory; or as `predict`.
        """
        check_is_fitted(self)
        if not hasattr(self, "conformity_"):
            raise InputError("predict_interval needs left-out residuals: fit with loo=True (--loo).")
        giver, then = self._of_intervals(coverage)
        if self._model.outputs > 1:
            values = None if self._cube_to_predict(X) is not None else self._values(self._resolve(X))
            if not isinstance(values, np.ndarray):
                raise InputError("intervals of several targets are for rows in memory: pass arrays, or parts of X.")
            return then(values)
        found = self._answered(X, "interval", then, columns=2, giver=giver)
        return found.rename(target="end").assign_coords(end=["low", "high"]) if is_xarray(found) else found

    def _of_intervals(self, coverage: float) -> tuple[Self, Callable[[Array], Array]]:
        """Return whose values intervals are made of, all machines' of a spread model, and by what."""
        several = self._model.outputs > 1
        sizes = -thresholds_of(self.conformity_, coverage, by_class=several)
        size: Any = sizes if several else float(sizes[0])
        if self._model.spread:
            return self._changed("spread", spread=False), partial(spread_ends, size=size)
        return self, partial(ends, size=size)


@with_parameters
class ODMRegressor(MachineParameters, RegressionEstimator):
    """Kernel or linear regression: ridge, expectiles, or a band without cost, with a certified duality gap.

    It is the optimal margin distribution machine of real targets, and minimises
    ``½‖w‖² + λ/(2M) Σ_i [(r_i−θ)₊² + υ (−r_i−θ)₊²]`` over the residuals ``r_i = y_i − f(x_i)``, where M is the number
    of rows, or the sum of their weights. Targets are learned in units of their standard deviation, and so θ is given.
    With ``theta=0`` and ``upsilon=1`` this is ridge regression. With another ``upsilon`` the prediction is an
    *expectile*: as far above the mean as a weight of ``1/(1+υ)`` for positive residuals pulls it.

    Rows may have several targets, y of shape (n, n_targets). Each has a machine, and machines share what they compute
    of the rows. ``coef_`` and ``intercept_`` are then as in `MDDRidge`, ``dual_coef_`` has the shape
    (n_support, n_targets), ``dual_gap_`` is the largest, and ``loo_score_`` the mean.

    Parameters
    ----------
    kernel : {…}, default="rbf"
        Kernel function, with a bias of 1 if ``fit_intercept``. {…}

    Attributes
    ----------
    loo_prediction_ : ndarray of shape (n,), or (n, n_targets)
        With ``loo``, the prediction for every training row by the model without this row, NaN for rows of weight zero.
        Models from a file do not have this attribute.
    loo_score_ : float
        R² of these predictions.
    conformity_ : ndarray
        What `predict_interval` knows of left-out residuals.
    dual_coef_ : ndarray
        Coefficients of the rows of ``support_``. Not for the linear kernel.
    coef_, intercept_
        Weights of the features before scaling, for the linear kernel only, and the intercept with the targets' mean,
        an array of those of all cells.

    References
    ----------
    Zhang, Zhou: *Optimal margin distribution machine*, IEEE TKDE 32, 2020, for the loss. Farooq, Steinwart: *An
    SVM-like approach for expectile regression*, CSDA 109, 2017. Barber, Candès, Ramdas, Tibshirani: *Predictive
    inference with the jackknife+*, Annals of Statistics 49, 2021, for what intervals promise.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dask_odm import ODMRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = ODMRegressor(gamma=0.01, loo=True).fit(X, y)
    >>> low, high = model.predict_interval(X, coverage=0.8).T
    >>> model.score(X, y) > model.loo_score_ > 0.4 and bool(((low < y) & (y < high)).mean() > 0.8)
    True
    """

    _family = RegressionFamily()
    _targets = RealTargets(several=True)

    kernel: str = parameter("rbf", Registered(KERNELS))
    _: KW_ONLY

    def _settings(self, run: FitRun, **more: Any) -> RegressionFit:
        return settings_of(self, RegressionFit, run, more, spread=self.loo and self.noise == "uneven")
