"""The optimal margin distribution machine as a scikit-learn classifier.

Order of calls: `ODMClassifier.fit` checks its parameters, turns what it was given into rows in memory or a
store (`inputs.py`), settles labels and weights, and hands over to the recipe that ``solver`` names.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import _check_sample_weight, validate_data

from dask_odm.data.partitioned import Labelling
from dask_odm.data.scaling import METHODS
from dask_odm.data.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.base import PredictingClassifier, as_input_error
from dask_odm.estimators.inputs import LazyArrays, as_dask, require_two, resolve, spool, to_memory, weight_per_class
from dask_odm.estimators.training import (
    WHOLE_BYTES,
    FitSettings,
    Trained,
    checkpoint_seed,
    scratch_folder,
    train_arrays,
    train_store,
)
from dask_odm.events import listen
from dask_odm.problems.odm import ODMSettings
from dask_odm.solvers.base import SolverSettings
from dask_odm.strategies.cluster import active_client
from dask_odm.strategies.tree import TreeSettings

Array = NDArray[Any]


@dataclass(frozen=True)
class Recipe:
    """How one ``solver`` learns from rows in memory, and from a store."""

    from_arrays: Callable[[Array, Array, Array, tuple[float, float], FitSettings], Trained]
    from_store: Callable[[Store, Labelling, FitSettings], Trained]


RECIPES = {"sodm": Recipe(train_arrays, train_store)}
AUTO = "sodm"


class ODMClassifier(PredictingClassifier):
    """Kernel optimal margin distribution machine for two classes.

    Minimises ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−m_i)₊² + υ (m_i−1−θ)₊²]`` over the margins ``m_i = y_i f(x_i)``,
    M the number of rows (with weights, their sum).

    Parameters
    ----------
    kernel : {"rbf", "linear", "poly"}, default="rbf"
    gamma : {"scale", "auto"} or float, default="scale"
        Kernel coefficient of "rbf" and "poly": ``"scale"`` is 1 / (n_features · variance of scaled rows),
        ``"auto"`` 1 / n_features.
    degree : int, default=3
        Of the "poly" kernel.
    coef0 : float, default=1.0
        Constant of the "poly" kernel.
    lam : float, default=1e4
        λ > 0, weight of the loss; larger fits the training rows more closely.
    upsilon : float, default=0.2
        υ in [0, 1], weight of margins above the band against those below it.
    theta : float, default=0.2
        θ in [0, 1), half the width of the band of margins that cost nothing.
    solver : {"auto", "sodm"}, default="auto"
        "sodm" solves stratified partitions and merges them in a tree; "auto" is "sodm".
    tol : float, default=1e-3
        Relative duality gap to reach. Up to about 1,000 rows in memory are solved to rounding.
    max_iter : int, default=200
        Most sweeps of coordinate descent over a partition.
    n_partitions : int or None, default=None
        Partitions the tree starts from. None: one for up to 65,536 rows in memory (or in a store of up to
        256 MiB), else a power of ``fan_in`` that leaves at most 8,192 rows of a store in each.
    fan_in : int, default=4
        Partitions that are merged into one.
    n_landmarks : int, default=64
        Most landmarks, and so strata, that partitions are balanced by.
    stop_at : int, default=1
        End the tree at the first level of at most so many partitions; their models are averaged.
    early_stop : bool, default=False
        End the tree at the first level whose merged starts had all converged.
    scale : {"minmax", "standard"} or None, default=None
        Scaling of features, kept in the model.
    fit_intercept : bool, default=True
        Adds 1 to the kernel: a regularised intercept. The papers have none.
    class_weight : dict, "balanced" or None, default=None
    random_state : int, RandomState instance or None, default=None
        Seed of partitions and of the order of descent.
    memory_limit : int, str or None, default=None
        Bytes (or "2GB") a worker may use. None: its own limit, or half of this machine's free memory.
    scratch : str or None, default=None
        Folder for the partition-ordered copy of a store; all workers must see it. None: Dask's temporary
        directory, else the system's.
    checkpoint : str or None, default=None
        Folder written after every level of the tree.
    resume : bool, default=False
        Go on from ``checkpoint`` if it exists and is of this fit.
    callbacks : list of callables or None, default=None
        Called with the events of `dask_odm.events` while fitting.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (n_features_in_,)
        Where the training rows had names.
    support_ : ndarray of shape (n_support,)
        Rows with a coefficient.
    support_vectors_ : ndarray of shape (n_support, n_features_in_)
        Those rows, raw. Not for the linear kernel.
    dual_coef_ : ndarray of shape (1, n_support)
        ``y_i s_i``.
    coef_ : ndarray of shape (1, n_features_in_)
        Weights of raw features, linear kernel only.
    intercept_ : ndarray of shape (1,)
    dual_gap_ : float
        Relative duality gap (P − D)/P of the whole problem, held against the kernel in float64; nan where
        the tree ended above one partition.
    history_ : list of dict
        One entry per level: level, partitions, rows, sweeps, converged, start_gap, gap, objective, seconds.
    n_iter_ : int
        Sweeps and steps of the longest solve of every level, added up.

    References
    ----------
    Wang, Cao, Zhang, Shi, Jin: *Scalable Optimal Margin Distribution Machine*, IJCAI-23.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import ODMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ODMClassifier(scale="minmax").fit(X, y).score(X, y) > 0.97
    True
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"rbf", "linear", "poly"})],
        "gamma": [StrOptions({"scale", "auto"}), Interval(Real, 0.0, None, closed="neither")],
        "degree": [Interval(Integral, 1, None, closed="left")],
        "coef0": [Interval(Real, 0.0, None, closed="left")],
        "lam": [Interval(Real, 0.0, None, closed="neither")],
        "upsilon": [Interval(Real, 0.0, 1.0, closed="both")],
        "theta": [Interval(Real, 0.0, 1.0, closed="left")],
        "solver": [StrOptions({"auto", *RECIPES})],
        "tol": [Interval(Real, 0.0, None, closed="neither")],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "n_partitions": [Interval(Integral, 1, None, closed="left"), None],
        "fan_in": [Interval(Integral, 2, None, closed="left")],
        "n_landmarks": [Interval(Integral, 1, None, closed="left")],
        "stop_at": [Interval(Integral, 1, None, closed="left")],
        "early_stop": ["boolean"],
        "scale": [StrOptions(set(METHODS)), None],
        "fit_intercept": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "random_state": ["random_state"],
        "memory_limit": [Interval(Integral, 1, None, closed="left"), str, None],
        "scratch": [str, os.PathLike, None],
        "checkpoint": [str, os.PathLike, None],
        "resume": ["boolean"],
        "callbacks": [list, tuple, None],
    }
    _saved: ClassVar[tuple[str, ...]] = ("dual_gap_", "history_", "n_iter_")

    def __init__(
        self,
        kernel: str = "rbf",
        *,
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 1.0,
        lam: float = 1e4,
        upsilon: float = 0.2,
        theta: float = 0.2,
        solver: str = "auto",
        tol: float = 1e-3,
        max_iter: int = 200,
        n_partitions: int | None = None,
        fan_in: int = 4,
        n_landmarks: int = 64,
        stop_at: int = 1,
        early_stop: bool = False,
        scale: str | None = None,
        fit_intercept: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        random_state: Any = None,
        memory_limit: int | str | None = None,
        scratch: str | None = None,
        checkpoint: str | None = None,
        resume: bool = False,
        callbacks: list[Callable[[Any], object]] | None = None,
    ) -> None:
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.lam = lam
        self.upsilon = upsilon
        self.theta = theta
        self.solver = solver
        self.tol = tol
        self.max_iter = max_iter
        self.n_partitions = n_partitions
        self.fan_in = fan_in
        self.n_landmarks = n_landmarks
        self.stop_at = stop_at
        self.early_stop = early_stop
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.random_state = random_state
        self.memory_limit = memory_limit
        self.scratch = scratch
        self.checkpoint = checkpoint
        self.resume = resume
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows and labels.

        Parameters
        ----------
        X : array-like of shape (n, d), dask array, Dataset with ``X``, ``y`` and perhaps ``weight``, or a store's path
        y : array-like or dask array of shape (n,)
            Two label values of any type. None where X holds its own.
        sample_weight : array-like of shape (n,) or None
            Row weights ≥ 0; weight 2 equals a repeated row, weight 0 drops it.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Parameters or data that cannot be learned from.
        MemoryLimitError
            Work that would not fit a worker's memory limit.
        StoreError
            A damaged store.
        """
        as_input_error(self._validate_params)
        source = resolve(X, y, sample_weight)
        with listen(*(self.callbacks or ())):
            if isinstance(source, LazyArrays):
                trained = self._fit_lazy(source)
            elif isinstance(source, Store):
                trained = self._fit_store(source, self._settings())
            else:
                trained = self._fit_arrays(X, y, sample_weight)
        self._set_result(trained)
        return self

    def _settings(self) -> FitSettings:
        checkpoint = None if self.checkpoint is None else os.fspath(self.checkpoint)
        seed = None if isinstance(self.random_state, Integral) or not self.resume else checkpoint_seed(checkpoint)
        if seed is None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return FitSettings(
            kernel=self.kernel,
            gamma=self.gamma if isinstance(self.gamma, str) else float(self.gamma),
            degree=int(self.degree),
            coef0=float(self.coef0),
            bias=1.0 if self.fit_intercept else 0.0,
            scale=self.scale,
            odm=ODMSettings(float(self.lam), float(self.upsilon), float(self.theta)),
            solver=SolverSettings(float(self.tol), int(self.max_iter), seed),
            tree=TreeSettings(int(self.fan_in), int(self.stop_at), bool(self.early_stop)),
            n_partitions=None if self.n_partitions is None else int(self.n_partitions),
            n_landmarks=int(self.n_landmarks),
            memory_limit=self.memory_limit,
            scratch=None if self.scratch is None else os.fspath(self.scratch),
            checkpoint=checkpoint,
            resume=bool(self.resume),
        )

    @property
    def _recipe(self) -> Recipe:
        return RECIPES[AUTO if self.solver == "auto" else self.solver]

    def _fit_arrays(self, X: Any, y: Any, sample_weight: Any) -> Trained:
        X, y, weight = as_input_error(lambda: self._validate_arrays(X, y, sample_weight))
        self.classes_, codes = np.unique(y, return_inverse=True)
        require_two(self.classes_)
        settings = self._settings()
        if active_client() is not None and (settings.n_partitions or 1) > 1:
            classes, names = self.classes_, getattr(self, "feature_names_in_", None)
            trained = self._fit_spooled(LazyArrays(*as_dask(X, y, weight), names), settings)
            self.classes_ = classes  # with the dtype they came in
            return trained
        totals = np.bincount(codes, weights=weight, minlength=2)
        class_weights = self._class_weights(totals)
        left = totals * class_weights
        if not left.any():
            raise InputError("all row weights are zero; nothing is left to learn from.")
        if not left.all():
            raise InputError(f"all rows of class {self.classes_[left == 0].tolist()[0]!r} have weight zero.")
        return self._recipe.from_arrays(X, np.where(codes == 1, 1.0, -1.0), weight, class_weights, settings)

    def _validate_arrays(self, X: Any, y: Any, sample_weight: Any) -> tuple[Array, Array, Array]:
        X, y = validate_data(self, X, y, dtype=[np.float64, np.float32], order="C")
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind == "continuous" and len(np.unique(y)) <= 2:  # two labels such as 0.5 and 1.5
            kind = "binary"
        if kind != "binary":
            check_classification_targets(y)
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        return X, y, weight

    def _fit_store(self, store: Store, settings: FitSettings) -> Trained:
        if not store.has_y or store.classes is None or store.class_counts is None:
            raise InputError(f"store '{store.path}' has no labels; fit needs them.")
        self.classes_ = np.array(store.classes)
        require_two(self.classes_)
        totals = np.array(store.class_counts, dtype=np.float64)
        if store.has_weight and self.class_weight == "balanced":
            totals = weight_per_class(store)
        labelling = Labelling(1, *self._class_weights(totals))
        self.n_features_in_ = store.features
        names = store.feature_names
        if names is not None:
            self.feature_names_in_ = np.array(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self._recipe.from_store(store, labelling, settings)

    def _fit_lazy(self, arrays: LazyArrays) -> Trained:
        if arrays.y is None:
            raise InputError("fit needs labels, but y is None.")
        if arrays.nbytes <= WHOLE_BYTES:
            trained = self._fit_arrays(*to_memory(arrays))
            if arrays.feature_names is not None:
                self.feature_names_in_ = arrays.feature_names.astype(object)
            return trained
        return self._fit_spooled(arrays, self._settings())

    def _fit_spooled(self, arrays: LazyArrays, settings: FitSettings) -> Trained:
        with scratch_folder(settings.scratch) as folder:
            return self._fit_store(spool(arrays, os.path.join(folder, "spooled.zarr")), settings)

    def _class_weights(self, totals: Array) -> tuple[float, float]:
        """Weights of the negative and the positive class; ``totals`` are weights per class."""
        if self.class_weight == "balanced":
            low, high = (totals.sum() / (2.0 * np.maximum(totals, np.finfo(float).tiny))).tolist()
            return low, high
        given = self.class_weight if isinstance(self.class_weight, dict) else {}
        low, high = (float(given.get(label, 1.0)) for label in self.classes_.tolist())
        if not (0 <= low < math.inf and 0 <= high < math.inf):
            raise InputError(f"class_weight must be finite and not negative. Got {given} instead.")
        return low, high

    def _set_result(self, trained: Trained) -> None:
        result = trained.result
        self.support_ = trained.support
        self.dual_gap_ = float(result.gap)
        self.history_ = result.history
        self.n_iter_ = max(1, sum(entry["sweeps"] for entry in result.history))
        self._adopt(trained.predictor)
        self._restore(lambda name: getattr(self, name))
        if not all(solution.converged for solution in result.solutions):
            worst = max(solution.point.gap for solution in result.solutions)
            warnings.warn(
                f"The solver stopped at a relative gap of {worst:.1e}, above tol={self.tol:g}. Increase max_iter "
                f"({self.max_iter} sweeps), scale the features, or decrease lam.",
                ConvergenceWarning,
                stacklevel=3,
            )

    def _saved_arrays(self) -> dict[str, Array]:
        return {"support": np.asarray(self.support_, dtype=np.int64)}

    def _restore(self, arrays: Callable[[str], Array]) -> None:
        predictor = self._predictor
        self.dual_coef_ = predictor.coefficients
        self.intercept_ = predictor.intercept
        if predictor.weights is not None:
            self.coef_ = predictor.weights
        elif hasattr(self, "coef_"):
            del self.coef_
        if not hasattr(self, "support_"):
            self.support_ = arrays("support")

    @property
    def support_vectors_(self) -> Array:
        """Raw rows with a coefficient, (n_support, d); read from the model's file where they were left there."""
        if not hasattr(self, "_predictor"):
            raise AttributeError("support_vectors_")
        return self._predictor.support[: self._predictor.support.shape[0]]
