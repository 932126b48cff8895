"""Linear classifiers that tolerate shards full of wrong labels, as a scikit-learn classifier: KL-IPM and Beta-IPM.

`dask_odm.estimators.base.StoreEstimator` trains and predicts; the solver is `dask_odm.papers.mixing.solver`.
"""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Integral, Real
from typing import Any, ClassVar, Self

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.estimators.inputs.checks import check_senders
from dask_odm.estimators.mixins import StoreClassifier
from dask_odm.learning.parameters import COUNT, NOT_NEGATIVE, POSITIVE, parameter, with_parameters
from dask_odm.learning.training.run import FitRun
from dask_odm.papers.mixing.online_passes import LOCALS
from dask_odm.papers.mixing.recipe import MixingFamily, MixingFit


@with_parameters
class MixingClassifier(StoreClassifier):
    """Linear classifier for rows from many shards, of which many may have wrong labels.

    A *shard* is the rows of one sender: a user, a sensor, a hospital, a file. In every epoch, each shard makes one pass
    over its rows, starting from the common weights w, and the results w_i are mixed: ``w ← Σ α_i w_i``. "kl" gives all
    shards the same weight α_i; "beta" gives little weight to shards whose result is far from the others. You need not
    know which shards are bad: `suspects_` names them after the fit. With ``local="odm"``, this is a robust optimal
    margin distribution machine. More than two classes are learned one-vs-rest, by one *machine* per class.

    Parameters
    ----------
    local : {"pa", "perceptron", "pa1", "pa2", "odm"}, default="pa"
        Update of w for each row of a shard. "perceptron" adds a row that is misclassified. "pa" (Passive-Aggressive)
        moves w until the row has a margin of 1, and "pa1" and "pa2" move w less, by ``C``. "odm" takes stochastic steps
        on ODM's objective.
    mixing : {"beta", "kl"}, default="beta"
        How shards are weighted. "beta" weights them by ``exp(−beta/2 · squared Mahalanobis distance)`` of their
        normalised weights from the mean. "kl" gives all shards the same weight.
    beta : float or None, default=None
        How much the distance counts; 0 is the same as "kl". Its effect depends on the number of features, unlike
        ``kappa``.
    kappa : float or None, default=None
        ``beta`` times half the number of features. None: 6, unless ``beta`` is given. With 100 shards, values from 5 to
        10 were best if many shards were bad.
    n_shards : int or None, default=None
        Number of shards to which rows are dealt at random, if their shards are not given. None: one per 50 rows, from 2
        to 100.
    shard_feature : str, int or None, default=None
        Name or number of a feature that says to which shard a row belongs. This feature is not learned from. It may be
        in rows in memory, or in a store as a column of numbers. `fit` also takes the shards as an array.
    max_iter : int, default=50
        Maximum number of epochs. The fit ends earlier if no row moves w any more.
    C : float, default=1.0
        Aggressiveness of "pa1" and "pa2". A smaller value makes smaller steps.
    lam : float, default=1e3
        Weight λ of ODM's loss, for "odm".
    upsilon : float, default=0.2
        υ in [0, 1], weight of the loss above the margin band, relative to the loss below it, for "odm".
    theta : float, default=0.2
        θ in [0, 1), half the width of the band around 1 in which margins cost nothing, for "odm".
    fit_intercept : bool, default=True
        Whether rows get an additional constant feature 1, whose weight is the intercept.

    Attributes
    ----------
    coef_ : ndarray of shape (n_machines, d)
        Weights of the features before scaling: one machine for two classes, otherwise one per class.
    intercept_ : ndarray of shape (n_machines,)
    shards_ : list of length n_shards
        Names of the shards, sorted, as `fit` got them, or their numbers.
    shard_weights_ : ndarray of shape (n_iter_, n_shards)
        Weight of every shard in every epoch. The sum over the shards is 1. `dask_odm.plot_shard_weights` draws the
        weights.
    shard_errors_ : ndarray of shape (n_shards,)
        Error rate of the model on the rows of each shard. For several machines, their mean.
    suspects_ : list
        Shards that contradict the model more than by chance: their error rate is nearer to ½ than to the error rate of
        the shards that the model consists of, and more than four standard deviations above that rate.
    n_iter_ : int
        Number of epochs. For several machines, the largest number.
    history_ : list of dict
        One entry per epoch: iteration, gap (not a bound, but how far the epoch moved w, as a share of its norm),
        objective (mean of the losses of the shards by their weights), passes, seconds, moved (mean number of rows of a
        shard that moved w, by the same weights), norm of w, and effective_shards, 1/Σα². For several machines, the
        entries of one machine follow those of another.

    Warns
    -----
    UserWarning
        A shard has rows of one class only; or one shard has all the weight, since beta is too large.

    Notes
    -----
    Row weights scale the steps. Weight 0 drops a row, but weight 2 is not the same as a repeated row.

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

    _family = MixingFamily()
    _saved: ClassVar[tuple[str, ...]] = ("shards_", "shard_weights_", "shard_errors_", "suspects_")

    local: str = parameter("pa", StrOptions(set(LOCALS)))
    _: KW_ONLY
    mixing: str = parameter("beta", StrOptions({"beta", "kl"}))
    beta: float | None = parameter(None, NOT_NEGATIVE, None)
    kappa: float | None = parameter(None, NOT_NEGATIVE, None)
    n_shards: int | None = parameter(None, Interval(Integral, 2, None, closed="left"), None)
    shard_feature: str | int | None = parameter(None, str, Interval(Integral, 0, None, closed="left"), None)
    max_iter: int = parameter(50, COUNT)
    C: float = parameter(1.0, POSITIVE)
    lam: float = parameter(1e3, POSITIVE)
    upsilon: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="both"))
    theta: float = parameter(0.2, Interval(Real, 0.0, 1.0, closed="left"))
    fit_intercept: bool = True

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, shard: Any = None) -> Self:
        """Learn from rows and labels, and from the shard of each row.

        Parameters
        ----------
        shard : array-like, Series, dask array or Series, or DataArray of shape (n,)
            The shard of each row, a number or a word. None: ``shard_feature`` names it, or rows are dealt at random.

        Raises
        ------
        InputError
            Parameters or data that cannot be learned from; fewer than two shards, a shard without rows, or only shards
            of one class each.
        """
        return self._fitted(X, y, sample_weight, shard=shard)

    def _settings(self, run: FitRun, **more: Any) -> MixingFit:
        names = more.get("names")
        return MixingFit.of(self, run, check_senders(more.get("shard")), None if names is None else list(names))
