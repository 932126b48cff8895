"""The search for settings of `ODMRegressor`: kernel, γ and λ by left-out rows of a sample."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import HasMethods, Interval

from dask_odm.estimators.groups import numbered
from dask_odm.estimators.odm_estimator import advise_groups
from dask_odm.estimators.odm_regressor import (
    ODMRegressor,
    RegressionEstimator,
    RegressionFamily,
    RegressionFit,
    units_of,
)
from dask_odm.estimators.scoring import NumberScoring, Scorer, deciding_scorers
from dask_odm.estimators.search.recipe import results_of
from dask_odm.estimators.search.search_fit import Splitter, several, splits_of
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import Registered, solver_object, solver_word, with_parameters
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import Choice, Recipe, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.search.climb import TUNING, Axes, Search, Setting
from dask_odm.methods.search.samples import SampleTrials
from dask_odm.methods.search.trials import Given, Splits, explained
from dask_odm.methods.settings import Landmark
from dask_odm.typing import Array

BOTH = ("rbf", "laplacian")
SHARES = tuple(10.0 * share for share in TUNING.shares)  # λ/M: targets are seldom as noisy as classes


@dataclass(frozen=True)
class RegressionSearch(RegressionFit):
    """Settings of a search: values to choose from, or None for ranges that suit the data, and the splits."""

    kernels: tuple[str, ...] = ()
    gammas: tuple[float, ...] | None = None
    lams_tried: tuple[float, ...] | None = None
    cv: int | float | Given | Splitter | None = None
    left_out: Array | None = None  # groups that the search leaves out, (n,)
    scorers: dict[str, Scorer] | None = None  # by name, the one that decides first; None for R²


class RegressionSearchRecipe(Recipe[RegressionSearch]):
    """Trials on samples of the rows, and a fit of all rows with the best setting."""

    def train(self, data: TrainingData, fit: RegressionSearch) -> Trained:
        fit = fit.for_data(data)
        cv = fit.cv.splits(data) if isinstance(fit.cv, Splitter) else fit.cv
        splits = Splits(cv, fit.run.seed)
        units = units_of(*data.taking_part[1:])
        score = explained if fit.scorers is None else NumberScoring(fit.scorers, units)
        scaled = data.with_targets(units)
        trials = SampleTrials(scaled, fit.kernel, fit.run, splits, score=score, groups=fit.left_out)
        search = Search(_axes(data, fit), trials.scores, splits.count, trials.goes_on, None, lambda state: None)
        state = search.run()
        best = Setting.of(state.history[search.best])
        params = [_parameters(Setting.of(record), data) for record in state.history]
        lam = best.share * data.total_weight
        kernel = replace(fit.kernel, kernel=best.kernel, gamma=best.gamma)
        groups = fit.left_out if fit.loo else None
        plain = {each.name: getattr(fit, each.name) for each in fields(RegressionFit)}
        last = RegressionFit(**plain | {"kernel": kernel, "odm": replace(fit.odm, lam=lam), "groups": groups})
        family = RegressionFamily()
        trained = family.train(family.choose(last, data.rows, data.features), data, last)
        trained.attributes.update(
            best_params_=params[search.best],
            best_score_=state.history[search.best]["objective"],
            best_index_=search.best,
            nested_score_=trials.nested_score(state),
            cv_results_=results_of(state, trials, params, list(fit.scorers or ())),
        )
        return trained


class RegressionSearchFamily(Family[RegressionSearch]):
    """A search for settings of the machine of real targets."""

    def choose(self, fit: RegressionSearch, rows: int, features: int) -> Choice[Any]:
        for kernel in fit.kernels:  # raises if the solver does not suit a kernel
            RegressionFamily().choose(replace(fit, kernel=replace(fit.kernel, kernel=kernel)), 1, 1)
        return Choice("search", "settings are searched for", RegressionSearchRecipe())

    def train(self, choice: Choice[Any], data: TrainingData, fit: RegressionSearch) -> Trained:
        return choice.recipe.train(data, fit)


def _parameters(setting: Setting, data: TrainingData) -> dict[str, Any]:
    """Return the parameters of `ODMRegressor` for a setting."""
    gamma = {"gamma": setting.gamma} if hasattr(KERNELS[setting.kernel], "gamma") else {}
    return {"kernel": setting.kernel, **gamma, "lam": setting.share * data.total_weight}


def _axes(data: TrainingData, fit: RegressionSearch) -> Axes:
    """Return the values to choose from: the user's, or ranges that suit the data."""

    def gammas(name: str) -> tuple[float, ...]:
        if not hasattr(KERNELS[name], "gamma"):
            return (1.0,)
        if fit.gammas is not None:
            return fit.gammas
        kernel: Any = replace(fit.kernel, kernel=name, gamma="scale").make(data.statistics(fit.kernel.scale))
        return tuple(float(kernel.gamma) * factor for factor in TUNING.gammas)

    shares = SHARES if fit.lams_tried is None else tuple(lam / data.total_weight for lam in fit.lams_tried)
    return Axes(fit.kernels, tuple(map(gammas, fit.kernels)), shares, (fit.odm.upsilon,), (fit.odm.theta,), (None,))


@with_parameters
class ODMRegressorCV(RegressionEstimator):
    """`ODMRegressor` that finds its kernel, γ and λ by left-out rows, in closed form on samples, and learns all rows.

    Parameters
    ----------
    kernel : {…}, array-like of them, or None, default=None
        Kernel, or kernels to choose from. None: "rbf" and "laplacian".
    gammas, lams : array-like or None, default=None
        Values of γ and λ to choose from. None: ranges that suit the data.
    cv : int, float, splitter, splits, or None, default=None
        How rows are left out: in folds, as one share, or as scikit-learn's splitters say. None: one by one.
    scoring : str, callable, several of them, dict, or None, default=None
        Score of left-out rows, or several: scorers of scikit-learn's or their names, such as
        "neg_mean_absolute_error". None: R².
    refit : str or None, default=None
        Name of the score that decides, if there are several. None: the first.

    Attributes
    ----------
    best_params_ : dict
        ``kernel``, ``gamma`` and ``lam``, as `ODMRegressor` takes them for all rows.
    best_score_ : float
        Score of left-out rows of the sample. Since it is the best of many, it is a little too optimistic.
    nested_score_ : float
        Score without this optimism: each part of the rows is judged by the setting that is best on the others.
    best_index_, cv_results_
        As in `ODMClassifierCV`.
    lam_, scale_, loo_prediction_, loo_score_, loo_parameters_, conformity_, n_features_in_, feature_names_in_, \
missing_rows_, support_, support_vectors_, dual_coef_, coef_, intercept_, dual_gap_, history_, n_iter_
        As in `ODMRegressor`, from the last fit.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dask_odm import ODMRegressorCV
    >>> X, y = load_diabetes(return_X_y=True)
    >>> ODMRegressorCV(random_state=0).fit(X, y).nested_score_ > 0.45
    True
    """

    _family: ClassVar[Family[Any]] = RegressionSearchFamily()
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [Registered(KERNELS), "array-like", None],
        "gammas": ["array-like", None],
        "lams": ["array-like", None],
        "cv": [
            Interval(Integral, 2, None, closed="left"),
            Interval(Real, 0.0, 1.0, closed="neither"),
            "array-like",
            HasMethods(["split", "get_n_splits"]),
            None,
        ],
        "scoring": [str, callable, "array-like", None],
        "refit": [str, None],
    }
    _saved: ClassVar[tuple[str, ...]] = (
        *RegressionEstimator._saved,
        "best_params_",
        "best_score_",
        "best_index_",
        "nested_score_",
    )
    _unsaved: ClassVar[tuple[str, ...]] = (*RegressionEstimator._unsaved, "cv_results_")
    lam: ClassVar[str] = "auto"
    gamma: ClassVar[str] = "scale"

    kernel: Any = None
    _: KW_ONLY
    gammas: Any = None
    lams: Any = None
    cv: Any = None
    scoring: Any = None
    refit: str | None = None

    def _settings(self, run: FitRun, **more: Any) -> RegressionSearch:
        own = solver_object(self.solver, self._solvers) or Landmark()
        groups = more.get("groups")
        if more.get("places") and groups is None:
            advise_groups()
        named = (self.kernel,) if isinstance(self.kernel, str) else BOTH
        kernels = named if isinstance(self.kernel, str | None) else several(self, "kernel", ODMRegressor)
        first = type(self)(**self.get_params(deep=False) | {"kernel": kernels[0]})
        return RegressionSearch.of(
            first, own, run, (), word=solver_word(self.solver), kernels=kernels, gammas=self._ascending("gammas"),
            lams_tried=self._ascending("lams"), cv=splits_of(self.cv, groups),
            left_out=numbered(groups) if groups is not None and self.cv is None else None,
            scorers=deciding_scorers(self.scoring, self.refit),
            spread=self.loo and self.noise == "uneven",
        )  # fmt: skip

    def _ascending(self, name: str) -> tuple[float, ...] | None:
        return None if getattr(self, name) is None else tuple(sorted(several(self, name, ODMRegressor)))
