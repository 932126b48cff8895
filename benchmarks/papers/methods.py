"""The methods of a benchmark: dask_odm's solvers, SODM's rivals, SODM as its code was published, and other libraries.

One grid serves all: γ, and the weight c of a row's loss, which is C of a support vector machine and λ/M of ODM. What is
chosen for ODM is chosen once for all of its methods, since they minimise the same function. The band of ODM is chosen
after that, from a few. The grid is tried on a part of the training rows, `TUNED_ROWS` at most, of which a fifth
validates; test rows have no part in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from itertools import product
from typing import Any

import numpy as np
from sklearn.base import clone

from dask_odm import solvers
from dask_odm.engine.partitioners import EvenDealer, Partitioner, StratifiedPartitioner
from dask_odm.estimators.odm_classifier import ODMClassifier
from dask_odm.kernels.base import Kernel
from dask_odm.learning.solution import Solution
from dask_odm.learning.training.recipe import Choice
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.methods.recipes import ODMFamily
from dask_odm.papers.sodm.recipe import TreeRecipe, TreeRule, at_random, by_clusters, by_means, by_strata
from dask_odm.typing import Array

Settings = dict[str, float]
GAMMAS = (0.03, 0.12, 0.5, 2.0, 8.0, 32.0, 128.0)
WEIGHTS = {"rbf": (0.4, 4.0, 40.0), "linear": (0.04, 0.4, 4.0, 40.0, 400.0)}
BANDS = ((0.2, 0.2), (0.05, 0.3), (0.2, 0.6), (0.02, 0.8), (0.5, 0.1))  # υ and θ; the first while the rest is chosen
TUNED_ROWS = 5000
LEAVES = 16  # partitions that every tree starts from
PUBLISHED: Settings = {"lam": 64.0, "gamma": 0.5, "upsilon": 0.5, "theta": 0.5}


class RuledFamily(ODMFamily):
    """The family whose recipe is a tree of a given rule."""

    def __init__(self, rule: TreeRule) -> None:
        self.rule = rule

    def choose(self, fit: ODMFit, rows: int, features: int) -> Choice[ODMFit]:
        return Choice(self.rule.name, "asked for", TreeRecipe(self.rule))


@dataclass(frozen=True)
class Method:
    """How one method is made for some rows.

    Attributes
    ----------
    make : callable
        ``make(kernel, settings, rows, seed)``: an estimator.
    kernels : tuple of str
    family : str
        "odm" or "svm": what its settings are chosen for.
    threads : str
        "all" cores, or "1".
    levels : bool
        Whether it is a tree whose levels are looked at.
    fixed : mapping or None
        Settings that are not chosen.
    needs : str or None
        Module of the library it comes from.
    """

    make: Callable[[str, Settings, int, int], Any]
    kernels: tuple[str, ...] = ("rbf", "linear")
    family: str = "odm"
    threads: str = "all"
    levels: bool = False
    fixed: Settings | None = None
    needs: str | None = None

    @property
    def installed(self) -> bool:
        return self.needs is None or find_spec(self.needs) is not None


def odm_parameters(kernel: str, settings: Settings, rows: int, seed: int) -> dict[str, Any]:
    """Parameters of an `ODMClassifier`; the weight of a row's loss becomes λ = c M."""
    lam = settings["lam"] if "lam" in settings else settings["weight"] * rows
    found = {"kernel": kernel, "lam": lam, "scale": None, "random_state": seed}
    found |= {name: settings[name] for name in ("upsilon", "theta") if name in settings}
    return found | ({"gamma": settings["gamma"]} if kernel == "rbf" else {})


def _odm(kernel: str, settings: Settings, rows: int, seed: int, **more: Any) -> Any:
    return ODMClassifier(**odm_parameters(kernel, settings, rows, seed), **more)


def _tree(
    kernel: str,
    settings: Settings,
    rows: int,
    seed: int,
    *,
    solver: Any,
    rule: TreeRule | None = None,
    leaves: int = LEAVES,
    **more: Any,
) -> Any:
    most = max(1, rows // 32)  # a partition of fewer than 32 rows says nothing about a method
    own = clone(solver).set_params(n_partitions=min(leaves, most))
    if rule is None:
        return _odm(kernel, settings, rows, seed, solver=own, **more)
    ruled = type("RuledClassifier", (ODMClassifier,), {"_family": RuledFamily(rule)})
    return ruled(**odm_parameters(kernel, settings, rows, seed), solver=own, **more)


class RoundRobin(EvenDealer):
    """Groups dealt in the order of their rows."""

    def _dealt(self, group: int, ranks: Array) -> Array:
        dealt: Array = self._first[group] + ranks
        return dealt


class OrderedStrata(StratifiedPartitioner):
    """Strata dealt in the order of their rows, as SODM's published code does."""

    def dealer(self, sizes: tuple[int, ...]) -> RoundRobin:
        return RoundRobin(sizes, self.n_partitions, self.seed)


def round_robin(fit: ODMFit, kernel: Kernel, n_partitions: int, seed: int) -> Partitioner:
    """Return the partitioner of SODM's published code."""
    return OrderedStrata(kernel, fit.own.n_strata, n_partitions, seed)


def plain_start(child: Solution, weight: float) -> Any:
    """A child's dual variables unchanged. Both papers start a merger so; they are too large by the fan-in."""
    return child.dual


def cold_start(child: Solution, weight: float) -> Any:
    """Zeros, so that a merger uses nothing of its children's solutions."""
    return np.zeros_like(child.dual)


AS_PUBLISHED = TreeRule("sodm as published", round_robin, begin=plain_start, newton_root=False)
PARTITIONERS = {"strata": by_strata, "random": at_random, "k-means": by_means, "clusters": by_clusters}
STARTS = {"cold": cold_start, "plain": plain_start, "scaled": Solution.rescaled}


def _svc(kernel: str, settings: Settings, rows: int, seed: int) -> Any:
    from sklearn.svm import SVC

    return SVC(C=settings["weight"], gamma=settings["gamma"], cache_size=500)


def _linear_svc(kernel: str, settings: Settings, rows: int, seed: int) -> Any:
    from sklearn.svm import LinearSVC

    return LinearSVC(C=settings["weight"], dual="auto", random_state=seed, max_iter=10_000)


def _nystroem(kernel: str, settings: Settings, rows: int, seed: int) -> Any:
    from sklearn.kernel_approximation import Nystroem
    from sklearn.pipeline import make_pipeline

    components = min(1000, rows)
    features = Nystroem(gamma=settings["gamma"], n_components=components, random_state=seed)
    return make_pipeline(features, _linear_svc(kernel, settings, rows, seed))


def _dask_ml(kernel: str, settings: Settings, rows: int, seed: int) -> Any:
    from dask_ml.linear_model import LogisticRegression

    return LogisticRegression(C=settings["weight"], solver="lbfgs")


METHODS: dict[str, Method] = {
    "sodm": Method(partial(_tree, solver=solvers.SODM(fan_in=4)), levels=True),
    "landmark": Method(partial(_odm, solver="landmark"), ("rbf",)),
    "exact": Method(partial(_odm, solver="exact"), ("rbf",)),
    "newton": Method(partial(_odm, solver="newton"), ("linear",)),
    "dsvrg": Method(partial(_odm, solver="dsvrg"), ("linear",)),
    "svrg": Method(partial(_odm, solver="svrg"), ("linear",), threads="1"),
    "csvrg": Method(partial(_odm, solver="csvrg"), ("linear",), threads="1"),
    "cascade": Method(partial(_tree, solver=solvers.Cascade(fan_in=2)), levels=True),
    "dip": Method(partial(_tree, solver=solvers.DiP(fan_in=2)), levels=True),
    "dc": Method(partial(_tree, solver=solvers.DC(fan_in=4)), levels=True),
    "sodm as published": Method(
        partial(
            _tree,
            solver=solvers.SODM(fan_in=2, stop_at=4, n_strata=50),
            rule=AS_PUBLISHED,
            leaves=64,
            max_iter=30,
            fit_intercept=False,
        ),
        levels=True,
        fixed=PUBLISHED,
    ),
    "SVC": Method(_svc, ("rbf",), "svm", "1"),
    "Nystroem + LinearSVC": Method(_nystroem, ("rbf",), "svm", "all, then 1"),
    "LinearSVC": Method(_linear_svc, ("linear",), "svm", "1"),
    "dask-ml logistic": Method(_dask_ml, ("linear",), "svm", needs="dask_ml"),
}
INGREDIENTS = {
    f"{dealt}, {start}": Method(
        partial(
            _tree,
            solver=solvers.DiP(fan_in=4) if dealt == "k-means" else solvers.SODM(fan_in=4),
            rule=TreeRule(f"sodm: {dealt}, {start}", deal, begin=STARTS[start], newton_root=False),
        ),
        levels=True,
    )
    for (dealt, deal), start in product(PARTITIONERS.items(), STARTS)
}
ALL_METHODS = METHODS | INGREDIENTS


def candidates(family: str, kernel: str) -> Iterator[Settings]:
    """Points of the grid, bands aside."""
    gammas = GAMMAS if kernel == "rbf" else (math.nan,)
    for gamma, weight in product(gammas, WEIGHTS[kernel]):
        point = {"weight": weight} | ({} if math.isnan(gamma) else {"gamma": gamma})
        yield point | ({"upsilon": BANDS[0][0], "theta": BANDS[0][1]} if family == "odm" else {})


def bands(best: Settings) -> Iterator[Settings]:
    """The other bands of ODM at the best point of the grid."""
    for upsilon, theta in BANDS[1:]:
        yield best | {"upsilon": upsilon, "theta": theta}


def tuner(family: str, kernel: str) -> Callable[[str, Settings, int, int], Any]:
    """What the grid is tried with: Newton for ODM, whose optimum is that of all of its methods."""
    if family == "odm":
        return partial(_odm, tol=1e-2, solver="exact" if kernel == "rbf" else "newton")
    return _svc if kernel == "rbf" else _linear_svc
