"""The optimal margin distribution machine as a scikit-learn classifier.

Order of calls: `ODMClassifier.fit` checks its parameters, turns what it was given into rows in memory or a
store (`inputs.py`), settles labels and weights, and hands over to the recipe that ``solver`` names.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.rows.scaling import METHODS
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.data.rows.targets import TwoClasses
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import active_client
from dask_odm.errors import InputError
from dask_odm.estimators.base import PredictingClassifier, Schema
from dask_odm.estimators.fitting.checkpoints import check_checkpoint, checkpoint_seed
from dask_odm.estimators.fitting.training import WHOLE_BYTES, FitSettings, Trained, scratch_folder
from dask_odm.estimators.inputs.checks import (
    as_input_error,
    check_callbacks,
    check_training,
    class_weights,
    require_finite_decisions,
    require_two,
)
from dask_odm.estimators.inputs.kinds import Given, LazyArrays, Resolved
from dask_odm.estimators.inputs.resolving import (
    as_dask,
    dimension_of_features,
    resolve,
    spool,
    to_memory,
    weight_per_class,
)
from dask_odm.estimators.odm.recipes import RECIPES, Choice, choose_solver, is_linear
from dask_odm.events import listen
from dask_odm.kernels.pivots import METHODS as METHODS_OF_CHOICE
from dask_odm.typing import Array


class ODMClassifier(PredictingClassifier):
    """Kernel optimal margin distribution machine for two classes.

    Minimises ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−m_i)₊² + υ (m_i−1−θ)₊²]`` over the margins ``m_i = y_i f(x_i)``,
    M the number of rows (with weights, their sum).

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "linear", "poly", "precomputed"} or callable, default="rbf"
        "laplacian" is exp(−gamma ‖x − z‖₁). "precomputed": `fit` takes kernel values of shape (n, n), `predict`
        of shape (rows, n). A callable takes rows (n, d) and (m, d) and returns values (n, m). Both for rows in
        memory only.
    gamma : {"scale", "auto"} or float, default="scale"
        Kernel coefficient of "rbf", "laplacian" and "poly": ``"scale"`` is 1 / (n_features · variance of scaled rows),
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
    solver : {"auto", "exact", "landmark", "sodm", "newton", "dsvrg", "svrg", "csvrg"}, default="auto"
        "exact" is Newton over all rows, to a certified gap. "landmark" is Newton over the span of ``n_landmarks`` rows:
        much faster, near the optimum. "sodm" solves stratified partitions and merges them in a tree. The others are for
        the linear kernel: "newton" minimises the primal in the weights of the features; "svrg" does so by stochastic
        steps, for rows in memory; "dsvrg" hands them round the workers, partition by partition; "csvrg" takes its
        snapshots from a coreset, and ends near the optimum only. "auto" is the first of these that fits, by the data
        and ``memory_limit`` alone, never by the workers:

        ========= ==================================================================================================
        newton    the kernel is linear
        sodm      partitions are asked for: ``n_partitions``, ``stop_at`` above 1, ``early_stop``
        landmark  landmarks are asked for: ``n_landmarks``, ``landmarks``, ``certify``
        exact     the kernel is precomputed; or rows² · (features + 16) is at most 2³³, and a ``memory_limit`` allows it
        landmark  all else
        ========= ==================================================================================================
    tol : float, default=1e-3
        Relative duality gap to reach; of "landmark", over the span. Up to about 1,000 rows in memory are solved to
        rounding.
    max_iter : int, default=200
        Most sweeps of coordinate descent over a partition, steps of "newton", or epochs of the svrg solvers.
    n_partitions : int or None, default=None
        Partitions the tree starts from. None: one for up to 65,536 rows in memory (or in a store of up to
        256 MiB), else a power of ``fan_in`` that leaves at most 8,192 rows of a store in each. Of "dsvrg", the
        partitions its hops go round; None: eight, fewer below 128 rows.
    fan_in : int, default=4
        Partitions that are merged into one.
    n_landmarks : int or None, default=None
        Of "landmark": rows whose kernel functions span the model. Else the most landmarks, and so strata, that
        partitions are balanced by. None: 1,000, and 64.
    landmarks : {"support", "uniform", "rp"}, default="support"
        How "landmark" draws them. "support": a quarter of them alike among all rows, the others in proportion to the
        dual variables that a rough solution over the first gives the rows. "uniform": all alike. "rp": by randomly
        pivoted Cholesky among twenty times as many rows, each in proportion to what those before leave of its κ(x, x).
    certify : bool, default=False
        After "landmark", find ``dual_gap_`` by a pass over the kernel of all active rows in float64, O(n²), spread over
        the workers. Other solvers certify anyway.
    step_size : {"auto", "bb"} or float, default="auto"
        Step η of "svrg", "csvrg" and "dsvrg". "auto" is 1/(4L), L = 1 + λ max(c̃ ‖x‖²)/(1−θ)² over the rows, of weights
        c̃ scaled to mean 1; "bb" is Barzilai and Borwein's of every epoch, up to 1/L.
    stage_steps : int or None, default=None
        Steps of one hop of "dsvrg", before the next worker's turn. None: all rows of a partition.
    coreset_size : int, default=1024
        Rows that the snapshots of "csvrg" are made of, drawn from every stratum.
    stop_at : int, default=1
        End the tree at the first level of at most so many partitions; their models are averaged.
    early_stop : bool, default=False
        End the tree at the first level whose merged starts had all converged.
    scale : {"minmax", "standard"} or None, default=None
        Scaling of features, kept in the model.
    fit_intercept : bool, default=True
        Adds 1 to the kernel: a regularised intercept. The papers have none.
    class_weight : dict, "balanced" or None, default=None
    dtype : {"float32", "float64"} or None, default=None
        What to compute in; None keeps the rows' own type. The gap is always held against float64.
    warm_start : bool, default=False
        Start from the last fit's weights. Linear solvers only.
    random_state : int, RandomState instance or None, default=None
        Seed of landmarks, partitions and the order of descent.
    memory_limit : int, str or None, default=None
        Bytes (or "2GB") a worker may use. None: its own limit, or half of this machine's free memory.
    scratch : str or None, default=None
        Folder for the partition-ordered copy of a store; all workers must see it. None: Dask's temporary
        directory, else the system's.
    checkpoint : str or None, default=None
        Folder written after every level of the tree, step or epoch, and after a solve without any. It replaces a
        checkpoint of the same fit; one of other data or parameters is an error.
    resume : bool, default=False
        Go on from ``checkpoint`` if it exists, to the same model; the data are partitioned anew.
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
        Relative duality gap (P − D)/P of the whole problem, held against the kernel in float64; nan where it is not
        known: the tree ended above one partition, or the solver was "landmark" without ``certify``, and what its
        landmarks leave of the kernel, which is looked at where that costs little, is no bound below 0.1.
    history_ : list of dict
        One entry per level: level, partitions, rows, sweeps, converged, start_gap, gap, objective, seconds. Of
        "exact", "landmark" (its gap over the span) and linear solvers one per step or epoch, a step that was then
        shortened included: iteration, gap, objective, passes, seconds. The first also has the solver, and why.
    n_iter_ : int
        Sweeps and steps of the longest solve of every level, added up; or steps or epochs.

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
        "kernel": [StrOptions({"rbf", "laplacian", "linear", "poly", "precomputed"}), callable],
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
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
        "landmarks": [StrOptions({"support", *METHODS_OF_CHOICE})],
        "certify": ["boolean"],
        "step_size": [StrOptions({"auto", "bb"}), Interval(Real, 0.0, None, closed="neither")],
        "stage_steps": [Interval(Integral, 1, None, closed="left"), None],
        "coreset_size": [Interval(Integral, 1, None, closed="left")],
        "stop_at": [Interval(Integral, 1, None, closed="left")],
        "early_stop": ["boolean"],
        "scale": [StrOptions(set(METHODS)), None],
        "fit_intercept": ["boolean"],
        "class_weight": [StrOptions({"balanced"}), dict, None],
        "dtype": [StrOptions({"float32", "float64"}), None],
        "warm_start": ["boolean"],
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
        kernel: str | Callable[[Array, Array], Array] = "rbf",
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
        n_landmarks: int | None = None,
        landmarks: str = "support",
        certify: bool = False,
        step_size: float | str = "auto",
        stage_steps: int | None = None,
        coreset_size: int = 1024,
        stop_at: int = 1,
        early_stop: bool = False,
        scale: str | None = None,
        fit_intercept: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        dtype: str | None = None,
        warm_start: bool = False,
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
        self.landmarks = landmarks
        self.certify = certify
        self.step_size = step_size
        self.stage_steps = stage_steps
        self.coreset_size = coreset_size
        self.stop_at = stop_at
        self.early_stop = early_stop
        self.scale = scale
        self.fit_intercept = fit_intercept
        self.class_weight = class_weight
        self.dtype = dtype
        self.warm_start = warm_start
        self.random_state = random_state
        self.memory_limit = memory_limit
        self.scratch = scratch
        self.checkpoint = checkpoint
        self.resume = resume
        self.callbacks = callbacks

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = self.kernel != "precomputed" and not callable(self.kernel)
        tags.input_tags.pairwise = self.kernel == "precomputed"
        return tags

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows and labels.

        Parameters
        ----------
        X : rows of shape (n, d)
            Array-like, pandas or dask DataFrame, dask array, xarray DataArray of two dimensions in any order, xarray
            Dataset with ``X``, ``y`` and perhaps ``weight``, or a store, by path or open. The dimension of an xarray
            X that runs along the rows is the one it shares with ``y``, else "sample", else the first.
        y : array-like, Series, dask array or Series, or DataArray of shape (n,)
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
        self._set_result(*self._train(X, y, sample_weight))
        return self

    def lam_path(self, X: Any, y: Any = None, *, lams: Any, sample_weight: Any = None) -> list[Self]:
        """Models for every λ of ``lams``, each from the solution of the one before, over the same rows.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.
        lams : sequence of float
            Values > 0; near ones after each other cost a pass or two each.

        Returns
        -------
        list of ODMClassifier
            Fitted, with ``lam`` set; this one stays as it was.

        Raises
        ------
        InputError
            No Newton on a linear kernel, a λ that is none, or as `fit`.
        """
        values: Array = as_input_error(lambda: np.asarray(lams, dtype=np.float64))
        if values.ndim != 1:
            raise InputError(f"lams must be a sequence of numbers. Got {lams!r} instead.")
        models = [clone(self).set_params(lam=lam) for lam in values.tolist()]
        if not models or self.kernel != "linear" or self.solver not in ("auto", "newton"):
            raise InputError("lam_path takes one λ at least, and needs kernel='linear' with solver='newton' or 'auto'.")
        for model in models:
            as_input_error(model._validate_params)
        trained, schema = models[0]._train(X, y, sample_weight, tuple(values.tolist()))
        for model, found in zip(models, trained.path, strict=True):
            model._set_result(found, schema)
        return models

    def _train(self, X: Any, y: Any, sample_weight: Any, lams: tuple[float, ...] = ()) -> tuple[Trained, Schema]:
        as_input_error(self._validate_params)
        check_callbacks(self.callbacks)
        source = resolve(X, y, sample_weight)
        with listen(*(self.callbacks or ())):
            trained, schema = self._fit_source(source, lams)
        return trained, replace(schema, feature_dimension=dimension_of_features(X, y, sample_weight))

    def _fit_source(self, source: Resolved, lams: tuple[float, ...]) -> tuple[Trained, Schema]:
        if isinstance(source, LazyArrays):
            return self._fit_lazy(source, lams)
        settings = self._settings(lams)
        return self._fit_store(source, settings) if isinstance(source, Store) else self._fit_arrays(source, settings)

    def _start(self) -> tuple[Array, float] | None:
        """Weights and intercept to start from."""
        if not self.warm_start:
            return None
        if not is_linear(self.solver, self.kernel):
            raise InputError("warm_start is for linear solvers (kernel='linear'); set it to False.")
        return (self.coef_[0], float(self.intercept_[0])) if hasattr(self, "coef_") else None

    def _settings(self, lams: tuple[float, ...] = ()) -> FitSettings:
        checkpoint = None if self.checkpoint is None else os.fspath(self.checkpoint)
        check_checkpoint(checkpoint, resume=bool(self.resume))
        seed = None if isinstance(self.random_state, Integral) or not self.resume else checkpoint_seed(checkpoint)
        if seed is None:
            seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        return FitSettings.of(self, seed, lams, self._start())

    def _reading(self) -> dict[str, Any]:
        """Options of scikit-learn's validation of rows in memory."""
        options: dict[str, Any] = {} if self.dtype is None else {"dtype": np.dtype(self.dtype)}
        return options | ({"accept_sparse": "csr"} if self.__sklearn_tags__().input_tags.sparse else {})

    def _fit_arrays(self, given: Given, settings: FitSettings) -> tuple[Trained, Schema]:
        rows = check_training(self, given.X, given.y, given.weight, **self._reading())
        schema = Schema(rows.classes, rows.X.shape[1], rows.names)
        weights = class_weights(self.class_weight, rows.classes, np.bincount(rows.codes, rows.weight, minlength=2))
        choice = self._choice(settings, *rows.X.shape)
        parts = (settings.n_partitions or 1) > 1 and choice.recipe.partitions
        named = isinstance(self.kernel, str) and self.kernel != "precomputed"
        if active_client() is not None and parts and named and not issparse(rows.X):
            lazy = LazyArrays(*as_dask(rows.X, rows.y, rows.weight), rows.names)
            return self._fit_spooled(lazy, settings)[0], schema  # with the classes in the dtype they came in
        y = np.where(rows.codes == 1, 1.0, -1.0)
        return choice.told(choice.recipe.from_arrays(rows.X, y, rows.weight, weights, settings)), schema

    def _choice(self, settings: FitSettings, rows: int, features: int) -> Choice:
        is_linear(self.solver, self.kernel)  # for what it refuses
        return choose_solver(self.solver, settings, rows, features)

    def _fit_store(self, store: Store, settings: FitSettings) -> tuple[Trained, Schema]:
        store.require_classes()
        schema = Schema(np.array(store.classes), store.features, store.feature_names)
        require_two(schema.classes)
        labelling = TwoClasses(1, *class_weights(self.class_weight, schema.classes, weight_per_class(store)))
        choice = self._choice(settings, store.rows, store.features)
        return choice.told(choice.recipe.from_store(store, labelling, settings)), schema

    def _fit_lazy(self, arrays: LazyArrays, lams: tuple[float, ...]) -> tuple[Trained, Schema]:
        if arrays.y is None:
            raise InputError("fit needs labels, but y is None.")
        if arrays.nbytes <= WHOLE_BYTES:
            return self._fit_arrays(to_memory(arrays), self._settings(lams))
        return self._fit_spooled(arrays, self._settings(lams))

    def _fit_spooled(self, arrays: LazyArrays, settings: FitSettings) -> tuple[Trained, Schema]:
        with scratch_folder(settings.scratch) as folder:
            return self._fit_store(spool(arrays, os.path.join(folder, "spooled.zarr")), settings)

    def _set_result(self, trained: Trained, schema: Schema) -> None:
        """Set every fitted attribute; nothing that can fail comes after the first of them."""
        predictor = trained.predictor
        require_finite_decisions(predictor)
        self._take(schema)
        self.support_ = trained.support
        self.dual_gap_, self.history_, self.n_iter_ = trained.gap, trained.history, trained.n_iter
        self._adopt(predictor)
        self._restore(lambda name: getattr(self, name))
        if trained.warning is not None:
            warnings.warn(trained.warning, ConvergenceWarning, stacklevel=3)

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
        support = self._predictor.support
        return support.X if isinstance(support, SparseRows) else support[: support.shape[0]]
