"""The optimal margin distribution machine as a scikit-learn classifier: parameters, starts, paths of λ.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the recipes are in `dask_odm.methods.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, replace
from numbers import Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.data.store.store import Store
from dask_odm.errors import InputError
from dask_odm.estimators.groups import numbered
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.odm_estimator import ODMEstimator
from dask_odm.estimators.shared_parameters import KernelParameters
from dask_odm.learning.machines import Scheme
from dask_odm.learning.parameters import (
    SolverClasses,
    SolverObject,
    SolverOptions,
    solver_object,
    solver_word,
    with_parameters,
)
from dask_odm.learning.training.recipe import Choice, Schema, Trained, warn_of_nothing
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.left_out import LEFT_OUT, OF_MACHINE, group_scores, joined_left_out
from dask_odm.methods.odm_fit import LastFit, ODMFit
from dask_odm.methods.recipes import choose_by_regions, choose_for_machines, choose_solver, is_linear
from dask_odm.methods.settings import ODM_SOLVERS, Landmark
from dask_odm.models.models import KernelModel, Model
from dask_odm.models.pair_model import PairModel
from dask_odm.typing import Array


@with_parameters
class ODMClassifier(KernelParameters, ODMEstimator):
    """Kernel optimal margin distribution machine, for two classes or more.

    Minimises ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−m_i)₊² + υ (m_i−1−θ)₊²]`` over the margins ``m_i = y_i f(x_i)``,
    M the number of rows (with weights, their sum). More than two classes are learned by several such machines of two.
    ``docs/solvers.md`` tells more of solvers, ``docs/clusters.md`` of checkpoints, ``docs/left_out.md`` of ``loo``.

    Parameters
    ----------
    kernel : {"rbf", "laplacian", "linear", "poly", "precomputed"} or callable, default="rbf"
        How alike two rows are. "laplacian" is exp(−gamma ‖x − z‖₁). "precomputed": `fit` takes kernel values (n, n),
        `predict` (rows, n). A callable takes rows (n, d) and (m, d) and returns values (n, m).
    lam : float, default=1e4
        λ > 0, weight of the loss; larger fits the training rows more closely.
    upsilon : float, default=0.2
        υ in [0, 1], weight of margins above the band against those below it.
    theta : float, default=0.2
        θ in [0, 1), half the width of the band of margins that cost nothing.
    solver : str or solver object, default="auto"
        How the problem is solved. A word takes the solver's defaults; an object of `dask_odm.solvers` says more, such
        as ``Landmark(n_landmarks=300, certify=True)``. "exact" is Newton over all rows, to a certified gap; "landmark"
        Newton over the span of some rows, much faster and near the optimum; "newton" for the linear kernel; "sodm" a
        tree of partitions, to a certified gap, with its rivals "cascade", "dip" and "dc"; "dsvrg", "svrg" and "csvrg"
        stochastic steps for the linear kernel; "cells" an exact machine for each region of the feature space. "auto"
        chooses by the data and ``memory_limit``, and never by workers: of data too large for "exact", "cells" if they
        get more rows right than "landmark" in a few regions.
    scale : {"minmax", "standard"} or None, default=None
        Scaling of features, kept in the model. "standard" does not shift sparse rows of the linear kernel.
    warm_start : bool, default=False
        Start from what the last fit found, for more rows after those it had, or for other parameters: from its
        weights, or the coefficients of its rows, with its landmarks among these rows. Solvers "exact", "landmark",
        "cells" and linear ones; exact pairs of many classes start anew.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As scikit-learn has them; the names where the training rows had any.
    missing_rows_ : int
        Of a fit on a cube, how many labelled rows missed a feature, and took no part.
    support_, support_vectors_ : ndarray of shape (n_support,), and (n_support, n_features_in_)
        Numbers of the rows with a coefficient, and those rows, raw; not for the linear kernel.
    dual_coef_ : ndarray of shape (n_machines, n_support)
        ``y_i s_i``. Two classes make one machine, whose positive class is ``classes_[1]``. More make one for each
        class, positive, in their order; or one for every two, (0, 1), (0, 2), …, of which the second is positive.
        Exact machines for every two that are learned at once have ``(n_classes - 1, n_support)``, as scikit-learn's
        `SVC` has: of a row, one for each other class. Rows are then in the order of their classes.
    coef_, intercept_ : ndarray of shape (n_machines, n_features_in_), and (n_machines,)
        Weights of raw features, linear kernel only.
    dual_gap_ : float
        Relative duality gap (P − D)/P of the whole problem, with P of the model as it predicts; nan where it is not
        known, as of "landmark" without its ``certify``. Of several machines it is the worst's.
    history_ : list of dict
        One entry per step, epoch or level: gap, objective, passes over the rows, seconds; the first also has the
        solver, and why. Of several machines the entries of each follow those of the one before. Cells begin with
        one entry per level of their tree: nodes, cells, rows of the smallest and the largest, seconds.
    n_iter_ : int
        Sweeps and steps of the longest solve of every level, added up; or steps or epochs. Of several machines the
        most.
    loo_decision_function_, loo_score_, loo_parameters_, probability_link_
        With ``loo``: the decision value of every row by the model without it, the accuracy of these, the effective
        number of parameters, and the decision values and log-odds that probabilities are made of.
    loo_group_scores_ : ndarray of shape (n_groups,)
        With groups that were left out, the accuracy of each one's rows, in the order in which groups first occur.

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

    _solvers: ClassVar[SolverClasses] = ODM_SOLVERS
    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "kernel": [StrOptions({"rbf", "laplacian", "linear", "poly", "precomputed"}), callable],
        "lam": [Interval(Real, 0.0, None, closed="neither")],
        "upsilon": [Interval(Real, 0.0, 1.0, closed="both")],
        "theta": [Interval(Real, 0.0, 1.0, closed="left")],
        "solver": [SolverOptions(ODM_SOLVERS)],
        "warm_start": ["boolean"],
    }
    _instead: ClassVar[dict[str, str]] = {
        "landmarks": "its name is choice, and the solver has it now: solver=dask_odm.solvers.Landmark(choice=…).",
        "C": "lam is the weight of the loss, and 2 * n_rows * C a place to start (docs/from_svc.md has the others).",
    }
    # Words of parameters for rows in memory only: no store, and so no command, can take them.
    _needs_memory: ClassVar[dict[str, frozenset[str]]] = {"kernel": frozenset({"precomputed"})}

    kernel: str | Callable[[Array, Array], Array] = "rbf"
    _: KW_ONLY
    lam: float = 1e4
    upsilon: float = 0.2
    theta: float = 0.2
    solver: str | SolverObject = "auto"
    warm_start: bool = False

    def lam_path(self, X: Any, y: Any = None, *, lams: Any, sample_weight: Any = None) -> list[Self]:
        """Fit a model for every λ of ``lams``, each starting from the solution for the λ before it.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.
        lams : sequence of float
            Values > 0. Close values, one after the other, take a pass or two each.

        Returns
        -------
        list of ODMClassifier
            Fitted, with ``lam`` set; this one stays as it was.

        Raises
        ------
        InputError
            Another solver than Newton, or another kernel than "linear"; an invalid λ; or as `fit`.
        """
        values: Array = as_input_error(lambda: np.asarray(lams, dtype=np.float64))
        if values.ndim != 1:
            raise InputError(f"lams must be a sequence of numbers. Got {lams!r} instead.")
        if not len(values) or self.kernel != "linear" or solver_word(self.solver) not in ("auto", "newton"):
            raise InputError("lam_path takes one λ at least, and needs kernel='linear' with solver='newton' or 'auto'.")
        return self._path(X, y, sample_weight, "lam", values.tolist())

    def _publish(self, trained: Trained, schema: Schema) -> None:
        super()._publish(trained, schema)
        if len(self.classes_) == 2:
            warn_of_nothing(trained.history, float(self.lam))

    def _settings(self, run: FitRun, **more: Any) -> ODMFit:
        own = solver_object(self.solver, ODM_SOLVERS) or Landmark()  # "auto" takes others later, if at all
        groups = None if more.get("groups") is None else numbered(more["groups"])
        if groups is not None and not self.loo:
            raise InputError("groups say what leave-one-out leaves out: set loo to True, or give none.")
        found = ODMFit.of(self, own, run, more.get("lams", ()))
        return replace(found, groups=groups, **(self._start() if self.warm_start else {}))

    def _joined(self, machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        others = (*LEFT_OUT, *self._unsaved, OF_MACHINE)
        plain = [{name: value for name, value in each.items() if name not in others} for each in machines]
        return super()._joined(plain) | joined_left_out(machines, pairs=self._scheme == "ovo")

    def _start(self) -> dict[str, Any]:
        """Return what ``warm_start`` begins from: weights and intercepts, or what the last fit of a kernel found."""
        word = solver_word(self.solver)
        if is_linear(word, self.kernel):
            found = zip(self.coef_, self.intercept_.tolist(), strict=True) if hasattr(self, "coef_") else ()
            return {"starts": tuple(found)}
        if word not in ("auto", "exact", "landmark", "cells") or not KernelChoice.of(self).is_named:
            raise InputError(
                "warm_start is for kernels by their names, by solver 'exact', 'landmark' or 'cells', and for linear "
                "solvers; set it to False."
            )
        model = getattr(self, "_model", None)
        if not isinstance(model, KernelModel) or isinstance(model, PairModel) or not hasattr(self, "support_"):
            return {}
        tree = getattr(model, "tree", None)
        return {"last": LastFit(self.support_, model.raw_support, model.machine_coefficients, model.scaling, tree)}

    @property
    def _scheme(self) -> Scheme:
        if self.multi_class is None:
            return "ovr" if self.kernel == "linear" or self.loo else "ovo"
        return super()._scheme

    def _trained(self, choice: Choice[ODMFit], data: TrainingData, fit: ODMFit) -> Trained:
        if self.solver == "auto":
            many = len(data.class_weights) > 2
            choice = choose_for_machines(choice, data, fit, self._scheme) if many else choice
            choice, fit = choose_by_regions(choice, data, fit, pairs=many and self._scheme == "ovo")
        trained = super()._trained(choice, data, fit)
        if fit.groups is not None:
            trained.attributes.update(group_scores(trained.attributes, fit.groups))
        return trained

    def _choose(self, fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
        return choose_solver(solver_word(self.solver), fit, rows, features)

    def _stored_data(self, run: FitRun, store: Store) -> StoredData:
        if self.kernel == "precomputed":
            KernelChoice.of(self).require_named("a store")
        return super()._stored_data(run, store)

    def _of_model(self, model: Model) -> dict[str, Any]:
        found = super()._of_model(model)
        if self.kernel == "precomputed":
            found.pop("coef_", None)  # weights of kernel values, not of features
        return found
