"""Recipe of a search: try settings on samples of the rows, then fit all rows with the best, in memory or in a store."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from operator import itemgetter
from typing import Any

import numpy as np

from dask_odm.data.rows.scaling import Stretch
from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.estimators.odm_regressor import units_of
from dask_odm.estimators.search.search_fit import (
    DEFAULT_VIEWS,
    MANY,
    SEARCHED,
    SearchFit,
    axes_of,
    checked_splits,
    views_of,
)
from dask_odm.kernels import KERNELS
from dask_odm.kernels.named import RBF
from dask_odm.learning.machines import Scheme
from dask_odm.learning.parameters import solver_word
from dask_odm.learning.solution import Record
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice, Recipe, Trained
from dask_odm.learning.training.run import KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.cells.choosing import chosen_cells, learned_rows, right_of
from dask_odm.methods.cells.recipe import sampled
from dask_odm.methods.metric import learn_metric
from dask_odm.methods.metric_settings import Metric
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import LEAVE_OUT, ODMFamily, choose_by_trials, in_pairs, suits_narrow_cells
from dask_odm.methods.search.axes import (
    BUDGETS,
    COARSE,
    FINE,
    LEARNED,
    TUNING,
    WHOLE,
    Axes,
    SearchState,
    Setting,
    View,
)  # fmt: skip
from dask_odm.methods.search.climb import Search
from dask_odm.methods.search.samples import SampleTrials
from dask_odm.methods.search.trials import Splits
from dask_odm.methods.settings import Cells, Landmark
from dask_odm.typing import Array

PARAMS = ("kernel", "scale", "metric", "gamma", "lam", "upsilon", "theta", "solver")
ODM = ODMFamily()  # learns by the settings that were found


class SearchRecipe(Recipe[SearchFit]):
    """A search for the settings of all classes together. Its last fit trains the machines of more than two."""

    def train(self, data: TrainingData, fit: SearchFit) -> Trained:
        found = train_search(data, fit)
        advice = found.advice
        if advice is not None:  # λ was searched for, and features may still hide others
            advice = replace(advice, nothing=False) if advice.crowding else None
        return replace(found, advice=advice)


class SearchFamily(Family[SearchFit]):
    """A search for settings of the optimal margin distribution machine."""

    def of_classes(self, fit: SearchFit, classes: Array | None) -> SearchFit:
        return replace(super().of_classes(fit, classes), classes=classes)

    def scheme(self, fit: SearchFit) -> Scheme:
        return fit.settings.scheme

    def choose(self, fit: SearchFit, rows: int, features: int) -> Choice[SearchFit]:
        return Choice("search", "settings are searched for", SearchRecipe())

    def train(self, choice: Choice[SearchFit], data: TrainingData, fit: SearchFit) -> Trained:
        return choice.recipe.train(data, fit)


def train_search(data: TrainingData, fit: SearchFit, why: str = "") -> Trained:
    """Search for the best setting, and train all rows with it; ``why`` says why its solver was taken."""
    budget = BUDGETS[fit.budget]
    of_classes = len(data.class_weights) > 0
    in_cells = of_classes and solver_word(fit.first.solver) == "cells"
    if in_cells and fit.metric == "auto":  # landmarks cannot follow the γ of cells
        fit = replace(fit, metric=None)
    views = views_of(fit, budget, data)
    each = in_cells and getattr(fit.first.solver, "settings", "") == "each"
    if each and len(fit.kernels) == 1:  # the scaling is that of all cells
        views = views[:1]
    fit = replace(fit, first=fit.first_with(views[0]))
    for view in views:
        chosen = fit.estimator(view)
        chosen._family.choose(chosen._settings(fit.run), 1, 1)  # raises if the solver does not suit the kernel
    axes = axes_of(fit, data, views, in_cells=in_cells)
    if each:
        return _train_each(data, fit, axes)
    cv = checked_splits(fit.cv, fit.groups, data)
    fit = replace(fit, cv=cv)
    splits = Splits(cv, fit.run.seed)
    resume, save = open_steps("search", data.fingerprint, fit, SearchState)
    trials = _Trials(data, fit, splits, axes.views, told=bool(why))
    # accuracy, and what decides, or R²
    scores = (2 if of_classes else 1) if fit.scorers is None else len(fit.scorers)
    require_state(fit, resume is None or _fits(resume, splits, scores))
    search = Search(axes, trials, budget, resume, save)
    state = search.run()
    narrow = trials.narrow_cells(*search.winner, clearly=True)
    if not narrow:
        state = search.go_on()
        narrow = trials.narrow_cells(*search.winner)
    setting, score = search.winner
    if narrow:
        search.end()
        # some cells are searched within seconds, so that an interrupted search begins with them anew
        run = replace(fit.run, checkpoint=None, resume=False)
        kernels = (
            tuple(each for each in fit.kernels if each in DEFAULT_VIEWS) if setting.kernel in DEFAULT_VIEWS else ()
        )
        cells = replace(fit, first=fit.estimator(setting.view, solver=Cells()), kernels=kernels or (setting.kernel,))
        stretches = trials.metrics_of_cells(setting, state.history) if kernels else {}
        trained = train_search(data, replace(cells, run=run, metric=None, stretches=stretches), narrow)
        trained.attributes.update(trials.of_metric(setting), search_seconds_=search.seconds)
        return trained
    if last := trials.last_solver(setting, score):
        state = search.go_on_as_learned(in_cells=last == "cells")
        setting, score = search.winner
    search.end()
    trained = trials.trained(setting, why)
    params = [trials.parameters(Setting.of(record)) for record in state.history]
    trained.attributes.update(
        best_params_=params[search.best],
        best_score_=score,
        best_index_=search.best,
        nested_score_=trials.nested_score(state),
        search_seconds_=search.seconds,
        **trials.of_metric(setting),
        cv_results_=_results_of(state, trials, params, list(fit.scorers or ())),
    )
    return trained


def _train_each(data: TrainingData, fit: SearchFit, axes: Axes) -> Trained:
    given = fit.cv, fit.scorers, fit.groups, axes.views[0].metric
    if any(each is not None for each in given) or len(axes.views) > 1:
        raise InputError("Cells(settings='each') leaves out rows one by one, with one kernel, and judges by accuracy: "
                         "set cv, scoring and metric to None, name one kernel, and give no groups.")  # fmt: skip
    own = replace(fit.estimator(axes.views[0])._settings(fit.run), axes=axes)
    return ODM.train(ODM.choose(own, data.rows, data.features), data, own)


def _fits(state: SearchState, splits: Splits, scores: int) -> bool:
    """Whether the state from a checkpoint belongs to a search by these splits and this number of scores."""
    tried = len(state.history)
    width = splits.count if splits.count > 1 else 1 + TUNING.parts
    return state.scores.shape == (tried, scores, width) and state.points.shape == (tried, 6)


class _Trials(SampleTrials):
    """The trials of an estimator's settings: on samples of the rows, on some cells, or on all rows."""

    def __init__(
        self, data: TrainingData, fit: SearchFit, splits: Splits, views: tuple[View, ...], told: bool = False
    ) -> None:
        solver = fit.first.solver
        most = int((solver if isinstance(solver, Landmark) else Landmark()).n_landmarks)  # of the last fit
        units = None if data.class_weights else units_of(data)
        super().__init__(
            data if units is None else data.with_targets(units), fit.kernel, fit.run, splits, views, most,
            fit.score(units), fit.groups, learn=learn_metric,
            metric=fit.metric if isinstance(fit.metric, Metric) else SEARCHED,
        )  # fmt: skip
        self._given = data
        self._fit = fit
        self._family: Family[Any] = fit.first._family  # learns by the settings that were found
        self._told = told  # kernel and scale, even if there is no choice left

    def parameters(self, setting: Setting) -> dict[str, Any]:
        """Return the parameters of the estimator for a setting; of kernel, scale and solver those of several."""
        lam = setting.share * self.data.total_weight
        found: dict[str, Any] = {"lam": lam, "upsilon": setting.upsilon, "theta": setting.theta}
        if not self._of_classes:  # of numbers, both are the user's, and the kernel is always told
            found = {"kernel": setting.kernel, "lam": lam}
        found |= self.seen_by(setting, told=self._told)
        if (stretch := self._fit.stretches.get(setting.scale)) is not None:
            found["metric"] = Metric(values=stretch.values.tolist())
        if hasattr(KERNELS[setting.kernel], "gamma"):
            found["gamma"] = setting.gamma
        if setting.n_landmarks is not None:
            found["solver"] = next(each for each in self._fit.solvers or () if each.n_landmarks == setting.n_landmarks)
        return {name: found[name] for name in PARAMS if name in found}

    def _samples_of(self, stage: int) -> list[MemoryData]:
        """Draw the samples of a stage: one of all rows, or the cells that all splits divide, smaller ones first."""
        if not self._in_cells:
            return super()._samples_of(stage)
        solver = self._fit.first.solver
        most = (solver if isinstance(solver, Cells) else Cells()).most_rows(pairs=False)
        # so small that all rows are landmarks, or a kernel of large γ looks worse than it is
        rows = max(1, most // 4 if stage == COARSE else min(most, TUNING.more_landmarks))
        count = AUTO.trial_cells * (1 if stage == COARSE else min(4, most // rows))
        sample = sampled(self.data, self.kernel, self.run.seed)
        cells = chosen_cells(self.data, sample, self.kernel, rows, count)
        return [cell for cell in cells if self.splits.divide(cell.kept)] or super()._samples_of(stage)

    @property
    def _all_alike(self) -> TrainingData:
        return self.data if self._in_cells else super()._all_alike

    def rows(self, stage: int) -> int:
        if stage == LEARNED:
            return learned_rows(self.data, apart=self._end.solver != "cells")
        return self.data.labelled_rows if stage == WHOLE and self._many else super().rows(stage)

    def work(self, stage: int) -> float:
        if stage == LEARNED:
            if not self._is_plain or self.data.labelled_rows < MANY or self._many:
                return 0.0
            return super().work(FINE)
        if self._in_cells and stage in (COARSE, FINE):  # all rows of a cell are landmarks
            return self.work_of(self.rows(stage), min(TUNING.more_landmarks, self.samples(stage)[-1].rows))
        return super().work(stage)

    @property
    def last_work(self) -> float:
        """Work of the last fit; that of cells grows with the rows alone."""
        if not self._in_cells:
            return super().last_work
        return self.work(FINE) * self.data.labelled_rows / self.rows(FINE)

    def scores(self, stage: int, settings: Sequence[Setting]) -> Array:
        if stage == LEARNED or (stage == WHOLE and self._many):
            score = self._as_learned if stage == LEARNED else self._on_all
            found = np.array([score(setting)[:, None] for setting in settings])
            return np.pad(found, ((0, 0), (0, 0), (0, TUNING.parts)), constant_values=np.nan)
        return super().scores(stage, settings)

    def _count(self, stage: int, setting: Setting) -> int:
        return TUNING.more_landmarks if self._in_cells else super()._count(stage, setting)

    @property
    def _many(self) -> bool:
        """Whether the last stage is of all rows: with two classes and no splits, landmarks disturb the rows' order."""
        ordered = self._fit.scorers is not None and self.splits.cv is None and len(self.data.class_weights) == 2
        return super()._many or ordered

    @property
    def _in_cells(self) -> bool:
        return self._of_classes and solver_word(self._fit.first.solver) == "cells"

    def goes_on(self, setting: Setting) -> bool:
        """Whether a last stage is worth its time: of many rows, if their leave-one-out error is available."""
        if self._in_cells:  # which were tried as they are
            return False
        if not self._many:
            return super().goes_on(setting)
        possible = self.splits.cv is None and len(self.data.class_weights) == 2
        return possible and self._chosen(setting)[0].solver in LEAVE_OUT

    def _on_all(self, setting: Setting) -> Array:
        """Return the scores (q,) on all rows."""
        choice, fit = self._chosen(setting, loo=True)
        fit = replace(fit, whole_rows=True)
        if choice.solver == "landmark":  # fewer, a larger gap and no certificate suffice to compare settings
            fit = fit.with_own(n_landmarks=min(TUNING.landmarks[WHOLE], fit.own.n_landmarks), certify=False)
            fit = replace(fit, solver=replace(fit.solver, tol=max(TUNING.tol, fit.solver.tol)))
        with warnings.catch_warnings():  # of a setting that is too hopeful, or stops short: others may be better
            warnings.simplefilter("ignore")
            trained = choice.train(self.data, fit)
        left = trained.attributes["loo_decision_function_"]
        y, weight = self.data.columns()
        rows = slice(None) if self.data.row_numbers[1] is None else self.data.row_numbers[1]
        known = ~np.isnan(left[rows])
        if self._judged_apart(WHOLE):
            units = np.arange(len(left)) if self.groups is None else self.groups
            known &= ~np.isin(units[rows], self._known_units)
        shares = weight[known] if weight.size else np.ones(known.sum())
        found = self.score(left[rows][known], (y[known] == 1).astype(np.int64), shares)
        found[self.decides] = found[0]  # chance moves accuracy little by so many rows, so that it decides (cod-rna)
        return found

    def _as_learned(self, setting: Setting) -> Array:
        """Return the scores (q,) of rows that the solver of all rows predicts without having learned from them.

        Of the exact solver, what decides is less by a standard error of the gain on the setting that was found
        before (benchmarks/MEASURED.md).
        """
        right, shares = self._before if setting == self._start else self._right(setting)
        found = np.full(self.decides + 1, right @ shares + (not self._of_classes))
        if self._end.solver == "exact" and setting != self._start:
            more = (right - self._before[0]) * shares
            found[self.decides] -= max(np.sqrt(more @ more), shares.max())  # of a gain of 0, one row is in doubt
        return found

    @cached_property
    def _before(self) -> tuple[Array, Array]:
        return self._right(self._start)

    def _right(self, setting: Setting) -> tuple[Array, Array]:
        choice, fit = self._suited(setting)
        if self._end.solver == "cells":
            return right_of(self._end, self.data, fit)
        return right_of(choice, self.data, fit, self._known_units if self._judged_apart(LEARNED) else np.empty(0))

    def last_solver(self, setting: Setting, score: float) -> str:
        """Return the solver of all rows whose trials go on from a setting, "cells" or "exact"; "" if none does.

        ``score`` is that of the setting. Where nearly all rows are right, others cannot be told from it.
        """
        if not self._is_plain:
            return ""
        self._start = setting
        self._end, fit = self._suited(setting)
        if self._end.solver == "landmark" and self._of_classes:
            self._end, _ = choose_by_trials(self._end, self.data, fit)
        told = self.data.labelled_rows >= MANY and score < 1.0 - TUNING.few_errors
        return self._end.solver if self._end.solver in ("cells", "exact" if told else "") else ""

    def _suited(self, setting: Setting) -> tuple[Choice[ODMFit], ODMFit]:
        choice, fit = self._chosen(setting)
        fit = in_pairs(self.data, fit)
        return ODM.suited(choice, self.data, fit), fit

    @property
    def _is_plain(self) -> bool:
        """Whether "auto" learns, by accuracy or R² of single rows."""
        given = self._fit.cv, self._fit.scorers, self.groups
        return self._fit.first.solver == "auto" and all(each is None for each in given)

    def narrow_cells(self, setting: Setting, score: float, *, clearly: bool = False) -> str:
        """Return why cells have to be searched, too, with narrower kernels, or "" if they need not.

        ``score`` is the best over landmarks. Cells are searched for accuracy by single rows only, which is compared.
        They may be ``clearly`` better before landmarks are tried with all rows, which would then be in vain.
        """
        if not (self._is_plain and self._of_classes) or (clearly and not self.goes_on(setting)):
            return ""
        choice, fit = self._suited(setting)
        counts = np.unique(self.samples(FINE)[0].y, return_counts=True)[1]
        largest = counts.max() / counts.sum()
        found = (score - largest) / (1.0 - largest) if largest < 1.0 else 0.0
        return suits_narrow_cells(choice, self.data, fit, found, TUNING.few_errors if clearly else 0.0)

    def kernel_of(self, setting: Setting) -> KernelChoice:
        kernel = super().kernel_of(setting)
        stretches = self._fit.stretches
        return replace(kernel, metric=stretches.get(setting.scale)) if stretches else kernel

    def metrics_of_cells(self, setting: Setting, history: Sequence[Record]) -> dict[str | None, Stretch | None]:
        """Return the metric of cells for each scaling, learned with RBF's best setting over landmarks."""
        last = max(record["stage"] for record in history)
        of_rbf = [each for each in history if each["stage"] == last and each["kernel"] == RBF.name]
        if setting.kernel != RBF.name and of_rbf:
            setting = Setting.of(max(of_rbf, key=itemgetter("objective")))
        asked = Metric() if self._fit.metric == "auto" else self._fit.metric
        asked = Metric(asked) if isinstance(asked, str) else asked
        scales = dict.fromkeys(view.scale for view in self.views)
        if asked is None:
            return {}
        if asked.values is not None:
            return dict.fromkeys(scales, Stretch.of(asked.values, self.data.features))
        band = setting.share, setting.upsilon, setting.theta
        found = {}
        for scale in scales:
            kernel = replace(self.kernel, kernel=RBF.name, scale=scale, gamma="scale")
            try:
                found[scale] = learn_metric(self.data, kernel, band, asked, self.run).metric
            except MemoryLimitError:
                return {}
        return found

    def trained(self, setting: Setting, why: str = "") -> Trained:
        """Train all rows with a setting; ``why`` says why its solver was taken."""
        choice, fit = self._chosen(setting)
        return self._family.train(replace(choice, why=why) if why else choice, self._given, fit)

    def _chosen(self, setting: Setting, *, loo: bool = False) -> tuple[Choice[ODMFit], ODMFit]:
        """Return the solver of all rows with a setting, and its settings, with rows left out if ``loo`` says so."""
        own = {name: value for name, value in self.parameters(setting).items() if name not in View._fields}
        estimator = self._fit.estimator(setting.view, **own)
        fit = estimator._settings(replace(self._fit.run, checkpoint=None, resume=False))
        fit = replace(fit, kernel=replace(fit.kernel, metric=self.kernel_of(setting).metric))
        loo = loo or fit.loo
        fit = replace(fit, loo=loo, groups=self.groups if loo else None)
        return self._family.choose(fit, self.data.rows, self.data.features), fit


def _results_of(
    state: SearchState, trials: SampleTrials, params: Sequence[dict[str, Any]], names: Sequence[str]
) -> dict[str, Any]:
    """Return ``cv_results_`` as scikit-learn's halving searches have it, for ``params`` of each trial.

    Several scores have their ``names`` in place of "score", whose rank is by the score that decides.
    """
    history = state.history
    stages = np.array([record["stage"] for record in history])
    found: dict[str, Any] = {
        "iter": stages,
        "n_resources": np.array([trials.rows(int(stage)) for stage in stages]),
        "mean_fit_time": np.array([record["seconds"] for record in history]),
        **{f"param_{name}": _column(name, params) for name in PARAMS if any(name in each for each in params)},
        "params": params,
    }
    # the last stage first, in each stage the best first, and the smoothest first among equals, as the search chooses
    k, g, s, u, t, n = state.points.T
    for i, name in enumerate(names if len(names) > 1 else ["score"]):
        scores = state.scores[:, i, : trials.n_splits]
        means = scores.mean(axis=1)
        deciding = state.scores[:, i or trials.decides, : trials.n_splits].mean(axis=1)
        ranks = np.empty(len(means), dtype=np.int32)
        ranks[np.lexsort((t, u, k, g, s, n, -deciding, -stages))] = np.arange(1, len(means) + 1)
        found |= {
            **{f"split{split}_test_{name}": scores[:, split] for split in range(scores.shape[1])},
            f"mean_test_{name}": means,
            f"std_test_{name}": scores.std(axis=1),
            f"rank_test_{name}": ranks,
        }
    return found


def _column(name: str, params: Sequence[dict[str, Any]]) -> Any:
    """Return a parameter of all settings as a masked array, masked for settings without it, as scikit-learn does."""
    some = next(each[name] for each in params if name in each)
    values = np.array([each.get(name, some) for each in params])
    return np.ma.masked_array(values, mask=[name not in each for each in params])
