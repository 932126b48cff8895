"""Ridge regression by shards, linear and of kernels, as scikit-learn regressors: parameters and their constraints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import KW_ONLY, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import csr_array, issparse
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.readers.texts import is_texts, rows_of_texts
from dask_odm.data.rows.targets import NEGLIGIBLE_WEIGHT, RealValues
from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error, check_features, check_rows
from dask_odm.estimators.inputs.resolved import BLOCK_BYTES, Given
from dask_odm.estimators.inputs.resolving import resolve_training
from dask_odm.estimators.mixins import StoreRegressor
from dask_odm.estimators.shared_parameters import GammaParameters
from dask_odm.estimators.target_kinds import RealTargets
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import COUNT, NOT_NEGATIVE, POSITIVE, Registered, parameter, with_parameters
from dask_odm.learning.training.family import OnlyRecipe
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.papers.mdd.kept_moments import KeptMoments
from dask_odm.papers.mdd.recipe import MOMENTS, KernelRidgeFamily, update_ridge
from dask_odm.papers.mdd.settings import CONSENSUS, DISCREPANCY, MDDFit
from dask_odm.typing import Array


@with_parameters
class ShardRegressor(StoreRegressor):
    """Ridge regression on all rows at once, or on several shards of the rows.

    Parameters
    ----------
    mode : {"discrepancy", "consensus"}, default="discrepancy"
        "discrepancy" pushes shards apart, as in the paper. "consensus" draws shards together: a larger ``discrepancy``
        brings the model nearer to ridge regression on all rows, and takes more rounds.
    n_partitions : int, default=1
        Number of shards. All have the same number of rows.
    max_iter : int, default=10000
        Maximum number of rounds.
    loo : bool, default=False
        Compute the leave-one-out error also if there is one ``lam``. This takes one more pass.
    """

    _saved: ClassVar[tuple[str, ...]] = ("gap_", "contraction_", "lam_", "loo_score_", "loo_errors_")
    _targets = RealTargets(several=True)

    _: KW_ONLY
    lam: Any = parameter(1e-3, POSITIVE, StrOptions({"loo"}), "array-like")
    discrepancy: float = parameter(0.0, NOT_NEGATIVE)
    mode: str = parameter(DISCREPANCY, StrOptions({DISCREPANCY, CONSENSUS}))
    n_partitions: int = parameter(1, COUNT)
    tol: float = parameter(1e-10, Interval(Real, 0.0, 1.0, closed="neither"))
    max_iter: int = parameter(10_000, COUNT)
    loo: bool = False


@with_parameters
class MDDRidge(ShardRegressor):
    """Ridge regression, on all rows at once or on several shards of the rows.

    With one shard, this is ridge regression, ``1/n Σ (y − w·x)² + lam ‖w‖²``, in one pass over rows in memory or in a
    store. It equals `sklearn.linear_model.Ridge` with ``alpha = n lam``. With several shards, rows are dealt to them at
    random, each shard is solved separately, and the model is the mean of their models: divide and conquer (DRR). With
    ``discrepancy``, shards also exchange their mean in rounds, and each is pushed away from the others, or drawn
    towards them (``mode``).

    Parameters
    ----------
    lam : float, "loo" or array-like, default=1e-3
        Weight λ of ‖w‖² against the mean squared error. Of several values, the one with the smallest leave-one-out
        error on all rows is chosen. "loo" stands for the powers of ten from 1e-8 to 1e3. Choosing takes one more pass,
        and one factorisation for any number of values.
    discrepancy : float, default=0.0
        How strongly a shard is pushed away from the mean of the others, in units of ``lam``: γ/2 = discrepancy · lam.
        Below 1, the rounds always converge. Above 1, they converge up to a threshold that depends on the data, which
        the error names. In consensus, it is the pull towards the others, μ = discrepancy · lam, of any size. 0: shards
        are solved separately.
    tol : float, default=1e-10
        Relative distance to reach between the weights of the shards and the fixed point of the rounds.
    fit_intercept : bool, default=True
        Whether to fit an intercept, which is not penalised. It comes from the means of all rows and targets.

    Attributes
    ----------
    coef_ : ndarray of shape (d,), or (n_targets, d)
        Weights of raw features.
    intercept_ : float, or ndarray of shape (n_targets,)
    lam_ : float
        The λ that was used.
    loo_score_ : float
        R² of the predictions of each row by ridge regression on all other rows with ``lam_``, if ``lam`` or ``loo``
        asks for it.
    loo_errors_ : ndarray of shape (n_lams,)
        Root mean square error of these predictions, for every value of ``lam``.
    moments_, moments_layout_ : ndarray of shape (n_moments, d + n_targets + 1), and dict
        With one shard, the sums over the rows so far that `update` needs. They are saved with the model, and take up to
        ``8 (d + n_targets + 1)²`` bytes for each binary digit of the number of blocks of rows, and as much
        twice, or 1 MiB. ``del model.moments_`` before `save` makes the file smaller.
    gap_ : float
        Upper bound of the relative distance between the weights of the shards and the fixed point.
    contraction_ : float
        The factor by which a round shrinks that distance, or an upper bound of it. From a ``discrepancy`` of 1 on, it
        is exact and proportional to ``discrepancy``: it is ``discrepancy`` divided by the threshold.
    n_iter_ : int
        Number of rounds, at least 1.
    history_ : list of dict
        One entry before the rounds and one per round: iteration, gap (as ``gap_``), objective (mean squared error of
        the weights of each shard on its own rows), passes over the rows and seconds so far. The first entry also has
        the solver and why it was chosen.

    Warns
    -----
    ConvergenceWarning
        ``max_iter`` is too small.
    UserWarning
        A target is constant; or there are so few rows that the leave-one-out error is too optimistic.

    Notes
    -----
    The weights of a shard are ``A_i⁻¹(b_i − γ/2 · w̄_∖i)``, where A_i is its scatter matrix divided by n_i, plus λI,
    and w̄_∖i is the mean of the others. In consensus they are ``(A_i + μI)⁻¹(b_i + μ w̄_∖i)``, with means weighted by
    n_i. All rows are centred by one mean. On the data that we tried, discrepancy changed the error by 1 % at most.
    Consensus helped a little more if shards were small or different (``examples/compare_mdd.py``).

    References
    ----------
    *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithm 1, without its lemma 4.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dask_odm import MDDRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = MDDRidge("loo").fit(X, y)
    >>> model.score(X, y) > model.loo_score_ > 0.4
    True
    """

    _family = OnlyRecipe(MOMENTS)
    _saved: ClassVar[tuple[str, ...]] = ("moments_", "moments_layout_")

    lam: Any = 1e-3
    _: KW_ONLY
    fit_intercept: bool = True

    def update(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Add new rows to the model, without reading the rows of the fit again.

        The model has the same bits as a fit of the old rows followed by the new rows. If the old rows were in memory,
        or in a store or dask array of up to ``dask_odm.read-into-memory``, that is a fit in memory. Otherwise it is a
        fit over a store with the same ``chunk_rows``, with or without workers. Fits of the other kind differ by
        rounding. New rows are converted to the type of the old rows: float32 or float64, sparse or dense. This process
        reads them, a block at a time. ``lam``, ``fit_intercept`` and ``scale`` may differ from those of the fit, but a
        fit without ``scale`` cannot get one. There are no checkpoints.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.

        Returns
        -------
        self

        Raises
        ------
        InputError
            As `fit`; several shards, several values of ``lam``, or ``loo``, since these need all rows; new rows with
            other features or another number of targets; a model without ``moments_``.
        """
        check_is_fitted(self)
        as_input_error(self._validate_params)
        if not hasattr(self, "moments_"):
            raise InputError(
                "this model has no moments_ to add rows to: it is of several shards, was saved by a version before "
                "update, or they were deleted; fit all rows."
            )
        fit = self._settings(replace(FitRun.of(self), checkpoint=None, resume=False))
        try:
            kept = KeptMoments.unpacked(self.moments_, self.moments_layout_, self._model.features)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError("moments_ were changed, or are damaged; fit all rows.") from error
        if is_texts(X) and hasattr(self, "text_recipe_"):
            X = rows_of_texts(X, self.text_recipe_)
        recipe = getattr(self, "column_recipe_", None)
        resolved = resolve_training(X, y, sample_weight, memory_limit=self.memory_limit, recipe=recipe)
        with nullcontext(resolved) if isinstance(resolved, Given) else resolved.stored(self._targets) as rows:
            trained = update_ridge(kept, self._blocks(rows, kept), fit)
            new = rows.rows if isinstance(rows, Store) else rows.X.shape[0]
        known = self._schema.rows
        self._publish(trained, replace(self._schema, rows=None if known is None else known + new))
        return self

    def _blocks(self, rows: Given | Store, kept: KeptMoments) -> Iterator[RowBlock]:
        """Yield checked rows as the fit took them, block by block."""
        if isinstance(rows, Given):
            check_rows(self, rows.X, **self._reading())
            checked = self._targets.checked(self, rows)
            found: Iterator[tuple[Any, Array, Array]] = iter([(checked.X, checked.y, checked.weight)])
        else:
            rows = rows.of_features(map(str, getattr(self, "feature_names_in_", ())))
            check_features(self, rows)
            rows.require_targets("update")
            found = ((block.X, *RealValues()(block)[1:]) for block in rows.blocks())
        for X, y, weight in found:
            y = y.reshape(len(y), -1)
            if y.shape[1] != kept.targets:
                raise InputError(f"y has {y.shape[1]} targets a row, but those of the fit have {kept.targets}.")
            at = slice(None) if kept.in_store else np.flatnonzero(weight > NEGLIGIBLE_WEIGHT)
            form: Any = csr_array(X) if kept.sparse else X
            form = form[at].astype(kept.dtype, copy=False)
            if kept.sparse or not issparse(form):
                yield RowBlock(form, y[at], weight[at])
                continue
            step = max(1, BLOCK_BYTES // (form.dtype.itemsize * form.shape[1]))
            for start in range(0, max(1, form.shape[0]), step):
                piece = slice(start, start + step)
                yield RowBlock(form[piece].toarray(), y[at][piece], weight[at][piece])

    def _settings(self, run: FitRun, **more: Any) -> MDDFit:
        return MDDFit.of(self, run, fit_intercept=bool(self.fit_intercept))


@with_parameters
class MDDKernelRidge(GammaParameters, ShardRegressor):
    """Kernel ridge regression, on all rows at once or on several shards of the rows.

    With one shard, this is kernel ridge regression, ``1/n Σ (y − f(x))² + lam ‖f‖²``. It equals
    `sklearn.kernel_ridge.KernelRidge` with ``alpha = n lam``. With several shards, rows are dealt to them at random,
    each shard is solved separately, and the model is the mean of their models (KDRR). With ``discrepancy``, shards also
    exchange their values in rounds, and each is pushed away from the others, or drawn towards them (``mode``). The
    matrix of a shard is factored in the memory of a worker, 8 n_i² bytes. With ``n_landmarks``, functions in the span
    of so many rows are learned instead, in one pass over any number of rows.

    Parameters
    ----------
    kernel : {…} or callable, default="rbf"
        Kernel function. A callable takes rows (n, d) and (m, d) and returns values (n, m), for rows in memory only.
    lam : float, "loo" or array-like, default=1e-3
        Weight λ of ‖f‖² against the mean squared error. With ``n_landmarks``, there may be several values, and the one
        with the smallest leave-one-out error is chosen. "loo" stands for the powers of ten from 1e-8 to 1e3.
    discrepancy : float, default=0.0
        How strongly the values of a shard on its own rows are pushed away from the mean of the others, nγ/2 in the
        paper. Below 1, the rounds always converge; hardly any data allow more. In consensus, it is the pull towards the
        others, of any size. With ``n_landmarks``, it is in units of ``lam``, as in `MDDRidge`. 0: shards are solved
        separately.
    n_landmarks : int or None, default=None
        Number of rows in whose span functions are learned, drawn uniformly. None: all rows of a shard.
    tol : float, default=1e-6
        Relative distance to reach between the solutions of the shards and the fixed point of the rounds.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_support,), or (n_support, n_targets)
        Coefficients of the support rows in the mean of the functions of all shards.
    support_ : ndarray of shape (n_support,)
        Numbers of these rows: all, or the landmarks.
    intercept_ : float, or ndarray of shape (n_targets,)
        0.
    lam_, loo_score_, loo_errors_, gap_, contraction_, n_iter_, history_
        As in `MDDRidge`. Leave-one-out errors and scores are for functions in the span of the landmarks.

    Warns
    -----
    ConvergenceWarning
        ``max_iter`` is too small.

    Notes
    -----
    The coefficients of a shard are ``(K_ii + n_i λ I)⁻¹ (y_i − discrepancy · ḡ_∖i)``, where ḡ_∖i is the mean of the
    values of the others at its rows. In consensus they are ``((1 + μ) K_ii + n_i λ I)⁻¹ (y_i + μ ḡ_∖i)``. A round takes
    O(N²), not O(N). Every positive ``discrepancy`` that we tried raised the error on new rows
    (``examples/compare_mdd.py``).

    References
    ----------
    *Max-Discrepancy Distributed Learning: Fast Risk Bounds and Algorithms*, algorithm 2, without its lemma 4.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from dask_odm import MDDKernelRidge
    >>> X, y = load_diabetes(return_X_y=True)
    >>> MDDKernelRidge(lam=1e-3, scale="standard").fit(X, y - y.mean()).score(X, y - y.mean()) > 0.5
    True
    """

    _family = KernelRidgeFamily()
    _saved: ClassVar[tuple[str, ...]] = ("support_",)

    kernel: str | Callable[[Array, Array], Array] = parameter("rbf", Registered(KERNELS), callable)
    _: KW_ONLY
    n_landmarks: int | None = parameter(None, COUNT, None)
    tol: float = 1e-6

    def _settings(self, run: FitRun, **more: Any) -> MDDFit:
        count = None if self.n_landmarks is None else int(self.n_landmarks)
        return MDDFit.of(self, run, kernel=KernelChoice.of(self, marks=run.marks), n_landmarks=count)
