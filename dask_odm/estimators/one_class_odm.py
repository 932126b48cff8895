"""The optimal margin distribution machine of one class as a scikit-learn outlier detector: parameters, offset.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the recipes are those of `ODMClassifier`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import OutlierMixin
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.rows.scaling import SCALINGS
from dask_odm.estimators.inputs.resolving import is_xarray
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.estimators.scoring import share_threshold
from dask_odm.estimators.shared_parameters import GammaParameters, NewtonParameters
from dask_odm.estimators.target_kinds import NormalRows
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import (
    POSITIVE,
    Registered,
    SolverObject,
    parameter,
    solver_object,
    solver_word,
    with_parameters,
)
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import Choice, Trained, advice_on_features
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.left_out import LEFT_OUT, OF_MACHINE
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import choose_solver
from dask_odm.methods.settings import Exact, Landmark, Newton


@dataclass(frozen=True)
class OneClassFit(ODMFit):
    """Settings of one fit; ``nu`` is the share of normal rows that are predicted as outliers."""

    nu: float = 0.1

    def identity(self) -> dict[str, Any]:
        return {name: value for name, value in super().identity().items() if name != "nu"}  # a checkpoint is of scores


class OneClassFamily(Family[OneClassFit]):
    """The machine of rows that are all positive, whose offset is a quantile of left-out scores."""

    def choose(self, fit: OneClassFit, rows: int, features: int) -> Choice[Any]:
        return choose_solver(fit, rows, features)

    def train(self, choice: Choice[Any], data: TrainingData, fit: OneClassFit) -> Trained:
        """Train, and take the offset from the left-out scores."""
        fit = fit.for_data(data)
        trained = super().train(choice, data, fit)
        scores, _, weight = trained.attributes[OF_MACHINE]
        counted = np.flatnonzero(weight)
        offset = share_threshold(scores[counted], weight[counted], 1.0 - fit.nu)
        model: Any = trained.model
        attributes = {name: value for name, value in trained.attributes.items() if name not in {*LEFT_OUT, OF_MACHINE}}
        attributes |= {
            "lam_": fit.odm.lam,
            "scale_": fit.kernel.scale,
            "offset_": offset,
            "loo_parameters_": trained.attributes["loo_parameters_"],
            "loo_decision_function_": scores - offset,
        }
        model = replace(model, intercept=model.intercept - offset)
        advice = advice_on_features(data, fit.kernel)
        return replace(trained, model=model, attributes=attributes, advice=advice)


@with_parameters
class OneClassODM(OutlierMixin, GammaParameters, NewtonParameters, StoreClassifier):
    """Novelty detection: learns what normal rows look like, and finds outliers at a known rate of false alarms.

    It is the optimal margin distribution machine of rows that are all positive, and minimises
    ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−f_i)₊² + υ (f_i−1−θ)₊²]`` over the scores ``f_i = w·φ(x_i)``, where M is the number
    of rows. Scores are near 1 among the training rows, and fall to 0 far from them. A row is an outlier if its score is
    below ``offset_``. This is a quantile of the *left-out* scores of the training rows: the score of a row by a model
    without this row, in closed form. So about a share ``nu`` of new normal rows are outliers, however closely the model
    fits.

    Parameters
    ----------
    nu : float, default=0.1
        In (0, 1): the share of normal rows that are predicted as outliers.
    kernel : {…}, default="rbf"
        Kernel function, without a bias. {…}
    lam : float or "auto", default="auto"
        λ > 0, weight of the loss. A larger value brings the scores of training rows nearer to 1. "auto" is twice the
        number of rows, or the sum of their weights.
    upsilon : float, default=0.2
        υ in [0, 1], weight of the loss above the band of scores, relative to the loss below it.
    theta : float, default=0.2
        θ in [0, 1), half the width of the band around 1 in which scores cost nothing.
    solver : {…} or solver object, default="auto"
        As in `ODMClassifier`: "newton" for the linear kernel and up to 2,048 features, otherwise "exact" or "landmark".
        "auto" chooses by the number of rows.
    scale : {…} or None, default="auto"
        Scaling of the features, which the model also applies to new rows. "auto" is "standard", but None for the
        linear kernel, for which 0 is outside, and for sparse rows such as texts: more than 2,048 features, of which at
        most a twentieth is stored.

    Attributes
    ----------
    lam_, scale_
        λ and scaling of the fit, which "auto" chose if it was to.
    offset_ : float
        The score below which a row is an outlier: `decision_function` is `score_samples` minus ``offset_``.
    loo_decision_function_ : ndarray of shape (n,)
        Decision value of every training row by the model without this row, NaN for rows of weight zero. A share ``nu``
        of these values is negative. Models from a file do not have this attribute.
    classes_ : ndarray of shape (2,)
        −1 and 1, what `predict` returns.
    support_, support_vectors_, dual_coef_
        Numbers of the rows with a coefficient, these rows before scaling, and their coefficients (1, n_support). Not
        for the linear kernel.
    coef_, intercept_ : ndarray of shape (1, d), and (1,)
        Weights of the features before scaling, for the linear kernel only. The intercept includes the offset.
    dual_gap_, history_, n_iter_, loo_parameters_
        As in `ODMClassifier`.

    Notes
    -----
    In the one-class ν-SVM (`sklearn.svm.OneClassSVM`), the offset is part of the problem, and ν refers to training rows
    that the model has seen. With a narrow kernel all of these are inside, but new rows are not.

    References
    ----------
    Schölkopf, Platt, Shawe-Taylor, Smola, Williamson: *Estimating the support of a high-dimensional distribution*,
    Neural Computation 13, 2001, for the ν-SVM. With ``theta=0`` and ``upsilon=1`` it is the mean of a Gaussian process
    whose targets are all 1, as in Kemmler, Rodner, Wacker, Denzler: *One-class classification with Gaussian processes*,
    Pattern Recognition 46, 2013.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import OneClassODM
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> benign, malignant = X[y == 1], X[y == 0]
    >>> model = OneClassODM(0.05).fit(benign)
    >>> bool((model.predict(malignant) == -1).mean() > 0.8)
    True
    """

    _family = OneClassFamily()
    _targets = NormalRows()
    _solvers = (Exact, Landmark, Newton)
    _saved: ClassVar[tuple[str, ...]] = (
        "lam_", "scale_", "offset_", "dual_gap_", "support_", "dual_coef_", "loo_parameters_"
    )  # fmt: skip
    _unsaved: ClassVar[tuple[str, ...]] = ("loo_decision_function_",)
    fit_intercept: ClassVar[bool] = False  # a constant feature would bring all scores near 1, far from rows, too
    loo: ClassVar[bool] = True

    nu: float = parameter(0.1, Interval(Real, 0.0, 1.0, closed="neither"))
    _: KW_ONLY
    kernel: str = parameter("rbf", Registered(KERNELS))
    lam: float | str = parameter("auto", POSITIVE, StrOptions({"auto"}))
    upsilon: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="both"))
    theta: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="left"))
    solver: str | SolverObject = "auto"
    scale: str | None = parameter("auto", Registered(SCALINGS, "auto"), None)

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn what normal rows look like.

        Parameters
        ----------
        y : ignored
            Except for a cube: there, the rows with a label are learned from.
        """
        return self._fitted(X, y, sample_weight)

    def score_samples(self, X: Any) -> Any:
        """Return `decision_function` with ``offset_`` added: near 1 for rows like those of the fit, 0 far from them.

        Parameters
        ----------
        X : rows of shape (n, d), or a cube
            As `decision_function` takes them.
        """
        values = self.decision_function(X) + self.offset_
        return values.rename("score_samples") if is_xarray(values) else values

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.classifier_tags = None
        return tags

    def _settings(self, run: FitRun, **more: Any) -> OneClassFit:
        own = solver_object(self.solver, self._solvers) or Landmark()
        return OneClassFit.of(self, own, run, (), word=solver_word(self.solver), nu=float(self.nu))
