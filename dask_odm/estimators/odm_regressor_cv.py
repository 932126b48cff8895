"""The search for settings of `ODMRegressor`: kernel, γ and λ by left-out rows of a sample."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, fields, replace
from typing import Any, ClassVar

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
from dask_odm.estimators.search.recipe import with_results
from dask_odm.estimators.search.search_fit import (
    CONSTRAINTS,
    SCALES,
    Splitter,
    axes_of,
    checked_splits,
    kernels_of,
    metric_of,
    several,
    splits_of,
    views_of,
)
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import solver_object, solver_word, with_parameters
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import Choice, Recipe, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.metric import learn_metric
from dask_odm.methods.search.climb import BUDGETS, TUNING, Setting
from dask_odm.methods.search.samples import SampleTrials
from dask_odm.methods.search.trials import Given, Splits, explained
from dask_odm.methods.settings import Landmark
from dask_odm.typing import Array

SHARES = tuple(10.0 * share for share in TUNING.shares)  # of λ in rows: targets are seldom as noisy as classes


@dataclass(frozen=True)
class RegressionSearch(RegressionFit):
    """Settings of a search: values to choose from, or None for ranges that suit the data, and the splits."""

    kernels: tuple[str, ...] = ()
    scale: str | None = None
    budget: str = "default"
    gammas: tuple[float, ...] | None = None
    lams_tried: tuple[float, ...] | None = None
    cv: int | float | Given | Splitter | None = None
    left_out: Array | None = None  # groups that the search leaves out, (n,)
    scorers: dict[str, Scorer] | None = None  # by name, the one that decides first; None for R²


class RegressionSearchRecipe(Recipe[RegressionSearch]):
    """Trials on samples of the rows, and a fit of all rows with the best setting."""

    def train(self, data: TrainingData, fit: RegressionSearch) -> Trained:
        fit = fit.for_data(data)
        splits = Splits(checked_splits(fit.cv, fit.left_out, data), fit.run.seed)
        units = units_of(data)
        score = explained if fit.scorers is None else NumberScoring(fit.scorers, units)
        scaled = data.with_targets(units)
        budget = BUDGETS[fit.budget]
        views = views_of(fit, budget, data, fit.left_out)
        kernel = fit.kernel
        trials = SampleTrials(
            scaled, kernel, fit.run, splits, views, score=score, groups=fit.left_out, metric=metric_of(fit.metric),
            learn=learn_metric,
        )  # fmt: skip
        axes = axes_of(
            data, kernel, views, shares=SHARES,
            gammas=fit.gammas, lams=fit.lams_tried, upsilons=(fit.odm.upsilon,), thetas=(fit.odm.theta,),
        )  # fmt: skip
        search = trials.search(axes, budget)
        state = search.run()
        best = Setting.of(state.history[search.best])
        params = [_parameters(Setting.of(record), data, trials) for record in state.history]
        lam = best.share * data.total_weight
        kernel = trials.kernel_of(best)
        groups = fit.left_out if fit.loo else None
        plain = {each.name: getattr(fit, each.name) for each in fields(RegressionFit)}
        plain |= {"kernel": kernel, "metric": None, "odm": replace(fit.odm, lam=lam), "groups": groups}
        last = RegressionFit(**plain)
        family = RegressionFamily()
        trained = family.train(family.choose(last, data.rows, data.features), data, last)
        return with_results(trained, state, search.best, trials, params, list(fit.scorers or ()))


class RegressionSearchFamily(Family[RegressionSearch]):
    """A search for settings of the machine of real targets."""

    def choose(self, fit: RegressionSearch, rows: int, features: int) -> Choice[Any]:
        for kernel in fit.kernels:  # raises if the solver does not suit a kernel
            RegressionFamily().choose(replace(fit, kernel=replace(fit.kernel, kernel=kernel)), 1, 1)
        return Choice("search", "settings are searched for", RegressionSearchRecipe())

    def train(self, choice: Choice[Any], data: TrainingData, fit: RegressionSearch) -> Trained:
        return choice.recipe.train(data, fit)


def _parameters(setting: Setting, data: TrainingData, trials: SampleTrials) -> dict[str, Any]:
    """Return the parameters of `ODMRegressor` for a setting."""
    gamma = {"gamma": setting.gamma} if hasattr(KERNELS[setting.kernel], "gamma") else {}
    return {"kernel": setting.kernel, **trials.seen_by(setting), **gamma, "lam": setting.share * data.total_weight}


@with_parameters
class ODMRegressorCV(RegressionEstimator):
    """`ODMRegressor` that finds its kernel, scaling, γ and λ by left-out rows of samples, and learns all rows.

    Parameters
    ----------
    kernel : {…}, array-like of them, or None, default="auto"
        Kernel, or kernels to choose from. "auto" or None: "rbf" and "laplacian".
    gammas, lams : array-like or None, default=None
        Values of γ and λ to choose from. None: ranges that suit the data.
    cv : int, float, splitter, splits, or None, default=None
        How rows are left out: in folds, as one share, or as scikit-learn's splitters say. None: one by one.
    scoring : str, callable, several of them, dict, or None, default=None
        Score of left-out rows, or several: scorers of scikit-learn's or their names, such as
        "neg_mean_absolute_error". None: R².
    refit : str or None, default=None
        Name of the score that decides, if there are several. None: the first.
    metric : {"auto", "diagonal", "full"}, `dask_odm.Metric` or None, default="auto"
        As in `ODMClassifierCV`.
    budget : {"fast", "default", "thorough"}, default="default"
        As in `ODMClassifierCV`, and so is scale="auto".

    Attributes
    ----------
    best_params_ : dict
        ``kernel``, ``gamma`` and ``lam``, as `ODMRegressor` takes them for all rows, ``scale`` if there were several,
        and ``metric``, with its values, if one is better.
    best_score_ : float
        Score of left-out rows of the sample. Since it is the best of many, it is a little too optimistic.
    nested_score_ : float
        Score without this optimism: each part of the rows is judged by the setting that is best on the others.
    best_index_, cv_results_, feature_importances_
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
        **CONSTRAINTS,
        "kernel": [*CONSTRAINTS["kernel"], None],
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

    kernel: Any = "auto"
    _: KW_ONLY
    metric: Any = "auto"
    gammas: Any = None
    lams: Any = None
    cv: Any = None
    scoring: Any = None
    refit: str | None = None
    budget: str = "default"

    def _settings(self, run: FitRun, **more: Any) -> RegressionSearch:
        own = solver_object(self.solver, self._solvers) or Landmark()
        groups = more.get("groups")
        if more.get("places") and groups is None:
            advise_groups()
        both = self.kernel is None or self.kernel == "auto"  # None: as before there was "auto"
        kernels = tuple(SCALES) if both else kernels_of(self, ODMRegressor)
        first = type(self)(**self.get_params(deep=False) | {"kernel": kernels[0]})
        return RegressionSearch.of(
            first, own, run, (), word=solver_word(self.solver), kernels=kernels, scale=self.scale,
            budget=self.budget, gammas=self._ascending("gammas"),
            lams_tried=self._ascending("lams"), cv=splits_of(self.cv, groups),
            left_out=numbered(groups) if groups is not None and self.cv is None else None,
            scorers=deciding_scorers(self.scoring, self.refit),
            spread=self.loo and self.noise == "uneven",
        )  # fmt: skip

    def _ascending(self, name: str) -> tuple[float, ...] | None:
        return None if getattr(self, name) is None else tuple(sorted(several(self, name, ODMRegressor)))
