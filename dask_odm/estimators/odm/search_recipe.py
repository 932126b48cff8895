"""Settings by a search over samples of the rows, then a fit of all rows with the best: in memory or over a store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_odm.estimators.fitting.checkpoints import open_steps, require_state
from dask_odm.estimators.fitting.kernel_choice import KernelChoice
from dask_odm.estimators.fitting.machines import Scheme, train_machines
from dask_odm.estimators.fitting.recipe import Choice
from dask_odm.estimators.fitting.run import FitRun
from dask_odm.estimators.fitting.trained import Trained
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.odm.recipes import LEAVE_OUT, choose_solver
from dask_odm.estimators.odm.search import FINE, GAMMAS, SHARES, THETAS, UPSILONS, WHOLE, Axes, Search, SearchState
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.estimators.odm.trials import TOL, Given, Splits, TrialRows, trial_rows
from dask_odm.problems.odm import ODMSettings
from dask_odm.typing import Array

ROWS = (2000, 8000)  # of the sample of each stage
LANDMARKS = (150, 300, 500)
MORE_LANDMARKS = 1000  # of the last stage where it is of the larger sample
NEEDED = (
    0.8  # of the landmarks of the larger sample: where a kernel needs more of them, it may need more than there are
)
MANY = 2  # times the rows of the larger sample: then settings are tried on all rows, too
Setting = tuple[float, float, float, float]


@dataclass(frozen=True)
class SearchFit:
    """Settings of a search.

    Attributes
    ----------
    fit : ODMFit
        Of a fit with the first of all settings; the search replaces γ, λ, υ and θ in it.
    solver : str
        Of the last fit.
    scheme : str
        Of more than two classes.
    gammas, lams, upsilons, thetas : tuple of float, or None
        What to choose from; None: ranges that come from the data.
    cv : int, float, tuple of splits, or None
    joined : callable
        Makes fitted attributes of several machines those of the whole.
    """

    fit: ODMFit
    solver: str
    gammas: tuple[float, ...] | None
    lams: tuple[float, ...] | None
    upsilons: tuple[float, ...] | None
    thetas: tuple[float, ...] | None
    cv: int | float | Given | None
    scheme: Scheme
    joined: Callable[..., dict[str, Any]]

    @property
    def run(self) -> FitRun:
        return self.fit.run

    def identity(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in ("fit", "joined")}
        return plain | {"fit": self.fit.identity()}


def train_search(data: TrainingData, fit: SearchFit) -> Trained:
    """Search, and train with what was found."""
    axes = _axes(data, fit)
    splits = Splits(fit.cv, fit.run.seed)
    resume, save = open_steps("search", data.fingerprint, fit, SearchState)
    require_state(fit, resume is None or _fits(resume, splits))
    trials = _Trials(data, fit, splits)
    search = Search(axes, trials.scores, trials.go_on, resume, save)
    state = search.run()
    results = _results(state, data, trials)
    best = search.best
    found = results["params"][best]
    setting = (state.history[best]["gamma"], state.history[best]["share"], found["upsilon"], found["theta"])
    trained = trials.trained(setting)
    trained.attributes.update(
        best_params_=found, best_score_=results["mean_test_score"][best], best_index_=best, cv_results_=results
    )
    return trained


def _fits(state: SearchState, splits: Splits) -> bool:
    """Whether a state is one of a search by such splits."""
    tried = len(state.history)
    return state.scores.shape == (tried, splits.count) and state.points.shape == (tried, 4)


class _Trials:
    """Samples of the rows as kernels see them; those of the last kernel are kept."""

    def __init__(self, data: TrainingData, fit: SearchFit, splits: Splits) -> None:
        self._data, self._fit, self._splits = data, fit, splits
        self._samples: dict[int, Any] = {}
        self._last: tuple[tuple[int, float], TrialRows] | None = None

    def sample(self, stage: int) -> Any:
        """The rows of a stage."""
        if stage not in self._samples:
            self._samples[stage] = self._data.sample(ROWS[stage], self._fit.run.seed)
        return self._samples[stage]

    def rows(self, stage: int) -> int:
        """How many there are in a stage."""
        return self._data.labelled_rows if stage == WHOLE and self._many else int(self.sample(min(stage, FINE)).rows)

    def scores(self, stage: int, gamma: float, settings: Sequence[tuple[float, float, float]]) -> Array:
        """As `Search` asks for them."""
        if stage == WHOLE and self._many:
            return np.array([[self._on_all((gamma, *setting))] for setting in settings])
        return self._seen(stage, gamma).scores(settings, self._splits)

    def _seen(self, stage: int, gamma: float) -> TrialRows:
        """The sample of a stage by one kernel."""
        if self._last is None or self._last[0] != (stage, gamma):
            choice = replace(self._fit.fit.kernel, gamma=gamma)
            count = min((*LANDMARKS[:WHOLE], MORE_LANDMARKS)[stage], self._most)
            rows = trial_rows(
                self.sample(min(stage, FINE)), choice, count, self._fit.run, leaves_one=self._splits.cv is None
            )
            self._last = (stage, gamma), rows
        return self._last[1]

    @property
    def _many(self) -> bool:
        """Whether all rows are many more than the larger sample."""
        return self._data.labelled_rows > MANY * ROWS[FINE]

    @property
    def _most(self) -> int:
        """Landmarks that the last fit has at most."""
        return self._fit.fit.n_landmarks or self._data.labelled_rows

    def go_on(self, gamma: float) -> bool:
        """Whether there is a last stage: many more rows, left out one by one, or landmarks that ``gamma`` needs."""
        data, fit = self._data, self._fit
        if not self._many:
            least = NEEDED * LANDMARKS[FINE]
            room = min(MORE_LANDMARKS, self._most, self.rows(FINE)) > LANDMARKS[FINE]
            return room and fit.fit.kernel.kernel != "linear" and self._seen(FINE, gamma).features.k > least
        if self._splits.cv is not None or len(data.class_weights) != 2:
            return False
        return choose_solver(fit.solver, fit.fit, data.rows, data.features).solver in LEAVE_OUT

    def _on_all(self, setting: Setting) -> float:
        """The score on all rows; over landmarks, fewer of them and a larger gap tell which setting is better."""
        choice, fit = self._chosen(setting)
        if choice.solver == "landmark":
            few = min(LANDMARKS[WHOLE], fit.n_landmarks or LANDMARKS[WHOLE])
            fit = replace(fit, n_landmarks=few, solver=replace(fit.solver, tol=max(TOL, fit.solver.tol)))
        score: float = choice.train(self._data, replace(fit, loo=True)).attributes["loo_score_"]
        return score

    def trained(self, setting: Setting) -> Trained:
        """The model of γ, λ/M, υ and θ on all rows."""
        choice, fit = self._chosen(setting)
        if len(self._data.class_weights) > 2:
            return train_machines(choice, self._data, fit, self._fit.scheme, self._fit.joined)
        return choice.train(self._data, fit)

    def _chosen(self, setting: Setting) -> tuple[Choice[ODMFit], ODMFit]:
        """How all rows are learned from with a setting."""
        data, fit = self._data, self._fit
        gamma, share, upsilon, theta = setting
        chosen = replace(
            fit.fit,
            run=replace(fit.run, checkpoint=None, resume=False),
            kernel=replace(fit.fit.kernel, gamma=gamma),
            odm=ODMSettings(share * data.total_weight, upsilon, theta),
        )
        return choose_solver(fit.solver, chosen, data.rows, data.features), chosen


def _axes(data: TrainingData, fit: SearchFit) -> Axes:
    """Values to choose from: the user's, or ranges that suit the data."""
    kernel = fit.fit.kernel
    gammas = fit.gammas or (1.0,)
    if fit.gammas is None and kernel.kernel != "linear":
        scale: Any = KernelChoice.make(replace(kernel, gamma="scale"), data.statistics())
        gammas = tuple(float(scale.gamma) * factor for factor in GAMMAS)
    shares = SHARES if fit.lams is None else tuple(lam / data.total_weight for lam in fit.lams)
    each = gammas, shares, fit.upsilons or UPSILONS, fit.thetas or THETAS
    return Axes(*(tuple(sorted(set(values))) for values in each))


def _results(state: SearchState, data: TrainingData, trials: _Trials) -> dict[str, Any]:
    """``cv_results_`` in the manner of scikit-learn's searches by halving: stages are ``iter``."""
    history, means = state.history, state.scores.mean(axis=1)
    shares = [record["share"] for record in history]
    linear = trials._fit.fit.kernel.kernel == "linear"
    columns = {
        "gamma": [record["gamma"] for record in history],
        "lam": [share * data.total_weight for share in shares],
        "upsilon": [record["upsilon"] for record in history],
        "theta": [record["theta"] for record in history],
    }
    columns = {name: column for name, column in columns.items() if not (linear and name == "gamma")}
    stages = np.array([record["stage"] for record in history])
    # the last stage first, the best of each first, and of equally good ones the smoothest, as the search chooses
    g, s, u, t = state.points.T
    order = np.lexsort((t, u, g, s, -means, -stages))
    ranks = np.empty(len(means), dtype=np.int32)
    ranks[order] = np.arange(1, len(means) + 1)
    return {
        "iter": stages,
        "n_resources": np.array([trials.rows(int(stage)) for stage in stages]),
        "mean_fit_time": np.array([record["seconds"] for record in history]),
        **{f"param_{name}": np.array(column) for name, column in columns.items()},
        "params": [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)],
        **{f"split{k}_test_score": state.scores[:, k] for k in range(state.scores.shape[1])},
        "mean_test_score": means,
        "std_test_score": state.scores.std(axis=1),
        "rank_test_score": ranks,
    }
