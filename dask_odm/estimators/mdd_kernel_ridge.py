"""Kernel ridge regression by shards, as a scikit-learn regressor: parameters and their constraints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from numbers import Integral
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.estimators.mdd_ridge import LAM_CONSTRAINT, SAVED, SHARD_CONSTRAINTS
from dask_odm.estimators.mixins import StoreRegressor
from dask_odm.estimators.shared_parameters import KernelParameters
from dask_odm.learning.parameters import with_parameters
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.methods.ridge.recipe import choose_kernel_ridge
from dask_odm.methods.ridge.settings import DISCREPANCY, MDDFit
from dask_odm.typing import Array


@with_parameters
class MDDKernelRidge(KernelParameters, StoreRegressor):
    """Kernel ridge regression, by one shard of the rows or by many that learn beside each other.

    One shard is kernel ridge regression, ``1/n Σ (y − f(x))² + lam ‖f‖²``: `sklearn.kernel_ridge.KernelRidge` with
    ``alpha = n lam``. Several shards are drawn at random, each is solved by itself, and the model is the mean of theirs
    (KDRR). With ``discrepancy`` they also tell each other their values in rounds, and each is pushed from the others,
    or drawn to them (``mode``). A shard's matrix is factored in a worker's memory, 8 n_i² bytes; with ``n_landmarks``
    functions in the span of so many rows are learned instead, in one pass over any number of rows.

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "linear", "poly"} or callable, default="rbf"
        How alike two rows are. A callable takes rows (n, d) and (m, d) and returns values (n, m), for rows in memory
        only.
    lam : float, "loo" or array-like, default=1e-3
        Weight λ of ‖f‖² against the mean squared error. With ``n_landmarks`` it may be several values, of which the one
        is taken whose leave-one-out error is least; "loo" stands for the powers of ten from 1e-8 to 1e3.
    discrepancy : float, default=0.0
        How strongly a shard's values are pushed from the others' mean on its own rows, nγ/2 in the paper's terms. Below
        1 the rounds always converge; hardly any data allow more. In consensus it is the pull to the others, of any
        size. With ``n_landmarks`` it is in units of ``lam``, as in `MDDRidge`. 0: every shard for itself.
    mode : {"discrepancy", "consensus"}, default="discrepancy"
        "discrepancy" pushes shards apart, as the paper has it. "consensus" draws their values together.
    n_partitions : int, default=1
        Shards, of equal numbers of rows.
    n_landmarks : int or None, default=None
        Rows, drawn uniformly, in whose span functions are learned. None: of all rows of a shard.
    tol : float, default=1e-6
        Distance of the shards' solutions from the fixed point of the rounds to reach, as a share of their size.
    max_iter : int, default=10000
        Most rounds.
    loo : bool, default=False
        Work out the leave-one-out error in the span of landmarks for one ``lam`` too, by one more pass.
    dtype : {"float32", "float64"} or None, default=None
        What rows are kept in. None: their own type. Factors and sums are in float64.
    random_state : int, RandomState instance or None, default=None
        Seed by which rows are dealt to shards and landmarks drawn.
    checkpoint : str or None, default=None
        Folder written after every round, for ``resume``.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As scikit-learn has them; the names where the training rows had any.
    dual_coef_ : ndarray of shape (n_support,), or (n_support, n_targets)
        Coefficients of the support rows, that of the mean of all shards' functions.
    support_ : ndarray of shape (n_support,)
        Numbers of these rows: all, or the landmarks.
    intercept_ : float, or ndarray of shape (n_targets,)
        0.
    lam_, loo_score_, loo_errors_, gap_, contraction_, n_iter_, history_
        As `MDDRidge` has them; leave-one-out figures are those in the span of the landmarks.

    Warns
    -----
    ConvergenceWarning
        ``max_iter`` is too small.

    Notes
    -----
    A shard's coefficients are ``(K_ii + n_i λ I)⁻¹ (y_i − discrepancy · ḡ_∖i)``, ḡ_∖i the mean of the others' values at
    its rows; in consensus ``((1 + μ) K_ii + n_i λ I)⁻¹ (y_i + μ ḡ_∖i)``. A round takes O(N²), not O(N).
    Every positive ``discrepancy`` that we tried raised the error on new rows (``examples/compare_mdd.py``).

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

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"rbf", "laplacian", "linear", "poly"}), callable],
        "lam": LAM_CONSTRAINT,
        **SHARD_CONSTRAINTS,
        "n_landmarks": [Interval(Integral, 1, None, closed="left"), None],
    }
    _saved: ClassVar[tuple[str, ...]] = (*SAVED, "support_")
    _takes_many_targets: ClassVar[bool] = True

    kernel: str | Callable[[Array, Array], Array] = "rbf"
    _: KW_ONLY
    lam: Any = 1e-3
    discrepancy: float = 0.0
    mode: str = DISCREPANCY
    n_partitions: int = 1
    n_landmarks: int | None = None
    tol: float = 1e-6
    max_iter: int = 10_000
    loo: bool = False

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = not callable(self.kernel)
        return tags

    def _settings(self, run: FitRun, **more: Any) -> MDDFit:
        count = None if self.n_landmarks is None else int(self.n_landmarks)
        return MDDFit.of(self, run, kernel=KernelChoice.of(self), n_landmarks=count)

    def _choose(self, fit: MDDFit, rows: int, features: int) -> Choice[MDDFit]:
        return choose_kernel_ridge(fit)
