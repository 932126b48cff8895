"""The optimal margin distribution machine as a scikit-learn classifier: parameters, starts, paths of λ.

`dask_odm.estimators.base.StoreEstimator` has `fit`; the recipes are in `dask_odm.methods.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from numbers import Real
from typing import Any, ClassVar, Self

from sklearn.utils._param_validation import Interval

from dask_odm.estimators.odm_estimator import ODMEstimator, settings_of
from dask_odm.estimators.registry import ODM_SOLVERS, solver_class
from dask_odm.estimators.shared_parameters import MachineParameters
from dask_odm.estimators.target_kinds import Classes
from dask_odm.kernels import KERNELS
from dask_odm.learning.parameters import Registered, parameter, solver_word, with_parameters
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import ODMFamily, learns_several
from dask_odm.typing import Array


@with_parameters
class ODMClassifier(MachineParameters, ODMEstimator):
    """Kernel optimal margin distribution machine, for two classes or more.

    Minimises ``½‖w‖² + λ/(2M(1−θ)²) Σ_i [(1−θ−m_i)₊² + υ (m_i−1−θ)₊²]`` over the margins ``m_i = y_i f(x_i)``, where M
    is the number of rows, or the sum of their weights. More than two classes are learned by several *machines*, each a
    model of two classes. See ``docs/solvers.md`` for solvers, ``docs/clusters.md`` for checkpoints and
    ``docs/left_out.md`` for ``loo``.

    A 0/1 matrix as y, of shape (n, n_labels), gives a row any number of labels. Each has a machine, and machines share
    what they compute of the rows. ``classes_`` are the labels' numbers, `predict` returns a matrix,
    `predict_proba` the probability of each label, and `score` the share of the rows of which all labels are right.

    Parameters
    ----------
    kernel : {…} or callable, default="rbf"
        Kernel function, with a bias of 1 if ``fit_intercept``. {…} With "precomputed", `fit` takes kernel values
        (n, n), and `predict` takes (rows, n). A callable takes rows (n, d) and (m, d) and returns values (n, m).
    upsilon : float, default=0.2
        υ in [0, 1], weight of the loss above the margin band, relative to the loss below it.
    theta : float, default=0.2
        θ in [0, 1), half the width of the band around 1 in which margins cost nothing.
    solver : str or solver object, default="auto"
        Algorithm that solves the problem. A name uses the defaults of the solver. An object of `dask_odm.solvers` sets
        its parameters, such as ``Landmark(n_landmarks=300, certify=True)``. "exact" is Newton's method over all rows,
        to a certified gap. "landmark" is Newton's method over the span of some rows, much faster and near the optimum.
        "newton" is for the linear kernel. "cells" fits an exact machine for each region of the feature space. "sodm" is
        a tree of partitions, to a certified gap; its rivals are "cascade", "dip" and "dc". "dsvrg", "svrg" and "csvrg"
        take stochastic steps for the linear kernel. "auto" chooses by the data and ``memory_limit``, and never by
        workers. For data too large for "exact", it chooses "cells" if these are more accurate than "landmark" in a few
        regions.

    Attributes
    ----------
    dual_coef_ : ndarray of shape (n_machines, n_support)
        Coefficients ``y_i s_i``. Two classes give one machine, whose positive class is ``classes_[1]``. More classes
        give one machine per class, in which this class is positive, or one per pair (0, 1), (0, 2), …, in which the
        second class is positive. Exact machines of all pairs that are trained at once, or with ``loo``, have the shape
        ``(n_classes - 1, n_support)`` of scikit-learn's `SVC`: a row has one coefficient for each other class, and rows
        are sorted by class.
    coef_, intercept_ : ndarray of shape (n_machines, d), and (n_machines,)
        Weights of the features before scaling, for the linear kernel only.
    multilabel_ : bool
        True if y was a matrix of labels. There is no such attribute otherwise.
    loo_decision_function_, loo_score_, probability_link_
        With ``loo``: the decision value of every row by the model without this row, the accuracy of these values, and
        the decision values and log-odds from which probabilities are computed.
    loo_group_scores_ : ndarray of shape (n_groups,)
        With ``groups``, the accuracy on the rows of each left-out group, in the order in which groups first occur.

    References
    ----------
    Wang, Cao, Zhang, Shi, Jin: *Scalable Optimal Margin Distribution Machine*, IJCAI-23.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from dask_odm import ODMClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> ODMClassifier().fit(X, y).score(X, y) > 0.97
    True
    """

    _family = ODMFamily()
    _targets = Classes(several=True)
    _solvers = tuple(solver_class(name) for name in ODM_SOLVERS)
    _instead: ClassVar[dict[str, str]] = {
        "landmarks": "its name is choice, and the solver has it now: solver=dask_odm.solvers.Landmark(choice=…).",
        "C": "lam is the weight of the loss, and 2 * n_rows * C a place to start (docs/coming_from.md has the others).",
    }
    # Words of parameters for rows in memory only: no store, and so no command, can take them.
    _needs_memory: ClassVar[dict[str, frozenset[str]]] = {"kernel": frozenset({"precomputed"})}

    kernel: str | Callable[[Array, Array], Array] = parameter("rbf", Registered(KERNELS, "precomputed"), callable)
    _: KW_ONLY
    upsilon: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="both"))
    theta: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="left"))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = learns_several(solver_word(self.solver))
        return tags

    def lam_path(self, X: Any, y: Any = None, *, lams: Any, sample_weight: Any = None) -> list[Self]:
        """Fit a model for every λ of ``lams``, each starting from the solution for the λ before it.

        Parameters
        ----------
        X, y, sample_weight
            As `fit` takes them.
        lams : sequence of float
            Values > 0. If neighbouring values are close, each takes a pass or two.

        Returns
        -------
        list of ODMClassifier
            Fitted models with ``lam`` set. This estimator does not change.

        Raises
        ------
        InputError
            A solver other than "newton" or "auto", or a kernel other than "linear"; an invalid λ; or as `fit`.
        """
        return self._path(X, y, sample_weight, "lam", lams, "newton")

    def _settings(self, run: FitRun, **more: Any) -> ODMFit:
        return settings_of(self, ODMFit, run, more)
