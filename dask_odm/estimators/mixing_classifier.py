"""Linear classifiers that tolerate shards full of wrong labels, as a scikit-learn classifier: KL-IPM and Beta-IPM.

`dask_odm.estimators.base.StoreEstimator` trains and predicts; the solver is `dask_odm.methods.mixing.solver`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.estimators.inputs.checks import check_senders
from dask_odm.estimators.inputs.resolving import Given, Resolved
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.learning.parameters import with_parameters
from dask_odm.learning.training.recipe import Choice, Recipe, Schema, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.mixing.online_passes import LOCALS
from dask_odm.methods.mixing.recipe import MixingFit, train_mixing


@with_parameters
class MixingClassifier(StoreClassifier):
    """Linear classifier, mixed from shards of which many may have wrong labels.

    Of more than two classes each is learned against the rest, by a machine of its own.
    In every epoch each shard makes one pass over its rows from the common weights w, and the results are mixed:
    ``w ← Σ α_i w_i``. "kl" mixes alike; "beta" gives little weight to shards whose result is far from the others'.
    A shard is whoever sent some rows: a user, a sensor, a hospital, a file. Which shards are bad need not be known; the
    fit says, in `suspects_`. With ``local="odm"`` it is a robust optimal margin distribution machine.

    Parameters
    ----------
    local : {"pa", "perceptron", "pa1", "pa2", "odm"}, default="pa"
        What a shard's pass does for each row. "perceptron" adds a row that is wrong; "pa" (Passive-Aggressive) moves w
        just as far as the row has a margin of 1, "pa1" and "pa2" less far, by ``C``. "odm" takes stochastic steps on
        ODM's objective.
    mixing : {"beta", "kl"}, default="beta"
        "beta" weighs shards by ``exp(−beta/2 · squared Mahalanobis distance)`` of their normalised weights from the
        mean; "kl" weighs all alike.
    beta : float or None, default=None
        How much distance counts; 0 is "kl". What it does depends on the number of features; ``kappa`` does not.
    kappa : float or None, default=None
        ``beta`` times half the number of features. None: 6, unless ``beta`` is given. Of 100 shards, 5 to 10 did best
        if many were bad.
    n_shards : int or None, default=None
        Shards that rows are dealt to at random, where no column says which is whose. None: one for 50 rows, from 2 to
        100.
    shard_feature : str, int or None, default=None
        Name or number of a feature that says which shard a row is in; it is not learned from. For rows in memory, and
        for stores, where the column was ingested as a number. `fit` also takes the shards as an array.
    max_iter : int, default=50
        Most epochs. The fit ends before, where no row moves w any more.
    C : float, default=1.0
        The cap of a row's step of "pa1" and "pa2".
    lam : float, default=1e3
        Weight λ of ODM's loss, for "odm".
    upsilon : float, default=0.2
        In [0, 1]: what a margin above ODM's band weighs, one below it weighing 1; for "odm".
    theta : float, default=0.2
        In [0, 1): half the width of ODM's band around a margin of 1; for "odm".
    fit_intercept : bool, default=True
        Whether rows get a constant feature 1 besides, whose weight is the intercept.

    Attributes
    ----------
    classes_, n_features_in_, feature_names_in_
        As scikit-learn has them; the names where the training rows had any.
    missing_rows_ : int
        Of a fit on a cube, how many labelled rows missed a feature, and took no part.
    coef_ : ndarray of shape (n_machines, n_features_in_)
        Weights of raw features: one machine for two classes, else one for each.
    intercept_ : ndarray of shape (n_machines,)
    shards_ : list of length n_shards
        What the shards are called: as `fit` was given them, sorted, or their numbers.
    shard_weights_ : ndarray of shape (n_iter_, n_shards)
        Weight of every shard in every epoch, of sum 1; `dask_odm.plot_shard_weights` draws it.
    shard_errors_ : ndarray of shape (n_shards,)
        Share of each shard's rows that the model gets wrong; of several machines, their mean.
    suspects_ : list
        Shards that contradict the model beyond chance: their share of wrong rows is nearer to ½ than to that of the
        shards the model is made of, and more than four standard deviations above it.
    n_iter_ : int
        Epochs. Of several machines, the most.
    history_ : list of dict
        One entry per epoch: iteration, gap (no bound here, but how far the epoch moved w, as a share of its norm),
        objective (the shards' losses, averaged by their weights), passes, seconds, moved (rows of a shard that moved w,
        averaged so), norm of w and effective_shards, 1/Σα². Of several machines the entries of each follow those of
        the one before.

    Warns
    -----
    UserWarning
        Shards of one class only; or all weight on one shard, for which beta is too large.

    Notes
    -----
    Row weights are shares of a step. Weight 0 drops a row; weight 2 is not a repeated row.

    References
    ----------
    Komiyama, Oiwa, Nakagawa: *Robust Distributed Training of Linear Classifiers Based on Divergence Minimization
    Principle*, 2017.

    Examples
    --------
    >>> import numpy as np
    >>> from dask_odm import MixingClassifier
    >>> from dask_odm.datasets import contaminate_labels, deal_shards, make_separable
    >>> X, y = make_separable(4000)
    >>> sender = deal_shards(4000, 20)
    >>> wrong, bad = contaminate_labels(y, sender, flipped=6)
    >>> model = MixingClassifier(random_state=0).fit(X, wrong, shard=sender)
    >>> sorted(model.suspects_) == sorted(bad.tolist()), bool(model.score(X, y) > 0.98)
    (True, True)
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "local": [StrOptions(set(LOCALS))],
        "mixing": [StrOptions({"beta", "kl"})],
        "beta": [Interval(Real, 0.0, None, closed="left"), None],
        "kappa": [Interval(Real, 0.0, None, closed="left"), None],
        "n_shards": [Interval(Integral, 2, None, closed="left"), None],
        "shard_feature": [str, Interval(Integral, 0, None, closed="left"), None],
        "max_iter": [Interval(Integral, 1, None, closed="left")],
        "C": [Interval(Real, 0.0, None, closed="neither")],
        "lam": [Interval(Real, 0.0, None, closed="neither")],
        "upsilon": [Interval(Real, 0.0, 1.0, closed="both")],
        "theta": [Interval(Real, 0.0, 1.0, closed="left")],
        "fit_intercept": ["boolean"],
    }
    _saved: ClassVar[tuple[str, ...]] = (
        "history_", "n_iter_", "shards_", "shard_weights_", "shard_errors_", "suspects_",
    )  # fmt: skip

    local: str = "pa"
    _: KW_ONLY
    mixing: str = "beta"
    beta: float | None = None
    kappa: float | None = None
    n_shards: int | None = None
    shard_feature: str | int | None = None
    max_iter: int = 50
    C: float = 1.0
    lam: float = 1e3
    upsilon: float = 0.2
    theta: float = 0.2
    fit_intercept: bool = True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, shard: Any = None) -> Self:
        """Learn from rows and labels, and from the shard of each row.

        Parameters
        ----------
        X, y, sample_weight : as every estimator takes them
            Rows in memory, lazy arrays or a store.
        shard : array-like, Series, dask array or Series, or DataArray of shape (n,)
            The shard of each row: numbers or words. None: ``shard_feature`` tells it, or rows are dealt at random.

        Returns
        -------
        self

        Raises
        ------
        InputError, MemoryLimitError, StoreError
            As every estimator's `fit`; also fewer than two shards, one without rows, or shards that all hold one class
            only.
        """
        self._publish(*self._train(X, y, sample_weight, shard=shard))
        return self

    def _learn(self, resolved: Resolved, more: dict[str, Any]) -> tuple[Trained, Schema]:
        names = getattr(resolved.X, "columns", None) if isinstance(resolved, Given) else resolved.feature_names
        return super()._learn(resolved, more | {"names": None if names is None else list(names)})

    def _joined(self, machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        suspected = {name for each in machines for name in each["suspects_"]}
        shards: list[Any] = machines[0]["shards_"]
        return super()._joined(machines) | {
            "shards_": shards,
            "shard_weights_": np.concatenate([each["shard_weights_"] for each in machines]),
            "shard_errors_": np.mean([each["shard_errors_"] for each in machines], axis=0),
            "suspects_": [name for name in shards if name in suspected],
        }

    def _settings(self, run: FitRun, **more: Any) -> MixingFit:
        return MixingFit.of(self, run, check_senders(more.get("shard")), more.get("names"))

    def _choose(self, fit: MixingFit, rows: int, features: int) -> Choice[MixingFit]:
        return Choice(self.local, "asked for", Recipe(train_mixing, sparse=True))
