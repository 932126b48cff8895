"""Recipes: how one solver of a family learns, what it gives, and the models that are built from what it found.

A solver finds dual variables, coefficients of landmarks, or weights of features. `Trained` is the model that they
become, with the records of the steps, before its figures become attributes.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from dask.utils import format_bytes
from numpy.linalg import LinAlgError

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.stored import Partitions
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.data.store.column_recipe import ColumnRecipe
from dask_odm.data.store.text_recipe import TextRecipe
from dask_odm.errors import InputError
from dask_odm.events import IterationFinished, report
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.user_kernels import Precomputed
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.solution import Record, Solution
from dask_odm.learning.training.run import KernelChoice, read_limit
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.rows import slabs
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.models.model import Model
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
F = TypeVar("F")
Parts = Sequence[tuple[TrainingData, F]]
Join = Callable[[Iterable["Trained"]], "Trained"]
Machines = Sequence[OneOfMany]  # the targets of each
Chosen = Callable[[Array], tuple[Any, Array]]
CROWDING_SHARE = 0.99  # of the variance of all features, above which distances say next to nothing of the others
SUSPECT_SHARE = 0.9  # the same, if next to nothing was learned
NOT_FINITE = "the solution is not finite: rescale the rows (scale='minmax') or the weights, or choose a smaller lam."


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model with what is known about it."""

    model: Model
    attributes: dict[str, Any] = field(default_factory=dict)  # fitted attributes: ``history_``, ``n_iter_``, …
    warning: str | None = None  # given if the solver stopped short of the tolerance
    path: tuple[Trained, ...] = ()  # one result for every value of a path, if a path was asked for
    was_finite: bool = False  # whether the model's values are known to be finite for all training rows
    advice: FeatureAdvice | None = None  # for a warning, if features say little as they are scaled

    @property
    def history(self) -> list[dict[str, Any]]:
        """Records of the steps, empty if there are none."""
        return self.attributes.get("history_", [])


@dataclass(frozen=True)
class CubeSchema:
    """The description of a fit's cube that a model keeps.

    ``dimensions`` are those of the features, and ``missing`` counts the rows with a label that missed a feature.
    ``words`` are the meanings of labels that are codes, by their text.
    """

    dimensions: tuple[str, ...]
    missing: int
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Schema:
    """Description of the rows and targets that a model was fitted on.

    ``feature_dimension`` is the name of the feature dimension of an xarray X of two dimensions, and ``cube`` describes
    one of any dimensions. ``classes`` are sorted labels, and None for real targets. ``rows`` were learned; None if that
    is not known.
    """

    n_features: int
    feature_names: Any = None
    feature_dimension: str | None = None
    classes: Array | None = None
    cube: CubeSchema | None = None
    text: TextRecipe | None = None  # by which texts became the rows
    columns: ColumnRecipe | None = None  # by which the columns of a table became the rows
    rows: int | None = None
    medians: Array | None = None  # of the columns of a frame of numbers, which gaps to come count as

    @property
    def inputs(self) -> Any:
        """Names of what a user passes, the columns of a table or the features; empty if there are none."""
        names = self.feature_names if self.columns is None else self.columns.names
        return () if names is None else names

    @property
    def n_inputs(self) -> int:
        """Number of columns of a table, or of features."""
        return self.n_features if self.columns is None else len(self.columns.names)


def require_finite_solution(*values: Any) -> None:
    """Raise InputError unless all numbers of a solution are finite."""
    if not all(bool(np.isfinite(value).all()) for value in values):
        raise InputError(NOT_FINITE)


_FIGURES = {field.name for field in fields(IterationFinished)}


def report_step(record: Record) -> None:
    """Report a step to listeners: those of its figures that `IterationFinished` has."""
    report(IterationFinished(**{name: value for name, value in record.items() if name in _FIGURES}))


@contextmanager
def rescaling_advised() -> Iterator[None]:
    """Turn failures of linear algebra into an InputError that advises rescaling; overflow gives no NumPy warnings."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            yield
    except ValueError as error:
        # SciPy refuses numbers that are not finite with a plain ValueError
        if isinstance(error, LinAlgError) or "infs or NaNs" in str(error):
            raise InputError(NOT_FINITE) from error
        raise


def is_small(store: TrainingData) -> bool:
    """Return whether the rows of a store take few enough bytes to be read into memory by default."""
    return store.nbytes <= read_limit()


class Recipe(ABC, Generic[F]):
    """How one solver learns from training data, with the settings of one fit."""

    linear: ClassVar[bool] = False  # whether it is for the linear kernel only, and can start from weights of features
    sparse: ClassVar[bool] = False  # whether it learns from sparse rows that are too many to be read into memory
    several: ClassVar[bool] = False  # whether `train_targets` learns several targets of the same rows

    @abstractmethod
    def train(self, data: TrainingData, fit: F) -> Trained:
        """Train a model. Every class has a row of positive weight."""

    def train_machines(self, data: TrainingData, fit: F, machines: Machines, pairs: int) -> Trained | None:
        """Train all machines of many classes at once; return None if each is to be trained like two classes.

        ``pairs`` is the number of classes for one-against-one machines, and 0 for one against the rest.
        """
        return None

    def train_targets(self, data: TrainingData, fit: F, parts: Parts[F], join: Join) -> Trained:
        """Train a machine for each of several targets of a row, of which ``parts`` are data and settings.

        ``join`` makes one model of machines.
        """
        return join(self.train(part, fit) for part, fit in parts)

    def reads(self, store: TrainingData, fit: F) -> bool:
        """Return whether the rows of a store are read into memory."""
        return is_small(store)

    def spreads(self, fit: F) -> bool:
        """Return whether workers, if there are any, get rows in memory by a store."""
        return False


@dataclass(frozen=True)
class Choice(Generic[F]):
    """The recipe of a fit, the name of its solver, and the reason for the choice."""

    solver: str
    why: str
    recipe: Recipe[F]
    instead: str = ""  # what to take for sparse rows that are too many, beginning a list of advice

    def train(self, data: TrainingData, fit: F) -> Trained:
        """Train, and note solver and reason in the first record of the history, if there is one."""
        with single_threaded_blas:  # once for all products, since entering it looks for libraries
            return self._noted(self.recipe.train(data, fit))

    def reads(self, store: TrainingData, fit: F) -> bool:
        """Return whether the rows of a store are read into memory.

        Raises InputError if they are sparse, too many for that, and the recipe does not learn from such.
        """
        if self.recipe.reads(store, fit):
            return True
        if not store.is_sparse or self.recipe.sparse:
            return False
        if not is_small(store):
            raise InputError(
                f"solver {self.solver!r} learns from sparse rows in memory only, and those of the store take "
                f"{format_bytes(store.nbytes)}, beyond {format_bytes(read_limit())}; {self.instead}raise Dask's "
                "setting dask_odm.read-into-memory, or ingest a dense store with sparse=False (--no-sparse)."
            )
        return True

    def train_machines(self, data: TrainingData, fit: F, machines: Machines, pairs: int) -> Trained | None:
        """Train all machines of many classes at once, if the recipe does that, and note what `train` does."""
        with single_threaded_blas:
            found = self.recipe.train_machines(data, fit, machines, pairs)
        return None if found is None else self._noted(found)

    def train_targets(self, data: TrainingData, fit: F, parts: Parts[F], join: Join) -> Trained:
        """Train a machine for each of several targets, and note what `train` does; InputError if the recipe cannot."""
        if not self.recipe.several:
            raise InputError(
                f"solver={self.solver!r} learns one target of a row, and y has {len(parts)}: choose solver='exact', "
                "'landmark', or 'newton' for kernel='linear', or fit a model for each."
            )
        with single_threaded_blas:
            return self._noted(self.recipe.train_targets(data, fit, parts, join))

    def _noted(self, trained: Trained) -> Trained:
        for model in (trained, *trained.path):
            for record in model.history[:1]:
                record |= {"solver": self.solver, "why": self.why}
        return trained


def finish_kernel(
    kernel: Kernel, scaling: Scaling, coefficients: Array, rows: Array, chosen: Chosen, attributes: dict[str, Any]
) -> Trained:
    """Build the model ``f = Σ coefficients_i κ(x_i, ·)`` from the rows with a coefficient.

    ``kernel`` and ``scaling`` are those of the training. ``rows`` (n,) identify rows for ``chosen``, which takes
    ascending ones and returns raw rows and their numbers in the given data. ``attributes`` are further fitted
    attributes.
    """
    a, support = with_coefficients(coefficients, rows)
    intercept = np.array([kernel.bias * float(coefficients.sum())])
    require_finite_solution(a, intercept)
    if isinstance(kernel, Precomputed):
        _, numbers = chosen(support)
        weights = np.zeros((1, len(kernel.matrix)))  # one weight for the column of every training row
        weights[0, numbers] = a[0]
        return Trained(LinearModel(weights, intercept), {"dual_coef_": a, "support_": numbers} | attributes)
    raw, numbers = chosen(support)
    model = KernelModel(replace(kernel, bias=0.0), scaling, raw, a, intercept)
    return Trained(model, {"support_": numbers} | attributes)


def with_coefficients(coefficients: Array, rows: Array) -> tuple[Array, Array]:
    """Return the nonzero coefficients, (1, n_support), and their rows in ascending order."""
    order = np.argsort(rows, kind="stable")
    chosen = order[coefficients[order] != 0]
    return coefficients[chosen][None], rows[chosen]


def finish_linear_kernel(
    partitions: Partitions, kernel: Kernel, scaling: Scaling, task_scaling: Any, coefficients: Array, chosen: Chosen,
    attributes: dict[str, Any],
) -> Trained:  # fmt: skip
    """Build the model of `finish_kernel` for the linear kernel, as weights of raw features."""
    a, support = with_coefficients(coefficients, partitions.row_numbers(0, len(partitions.counts)))
    weights = (_weights_of(partitions, task_scaling, coefficients) * scaling.factor)[None]
    intercept = np.array([kernel.bias * float(coefficients.sum())]) - weights @ scaling.shift
    require_finite_solution(a, intercept, weights)
    _, numbers = chosen(support)
    return Trained(LinearModel(weights, intercept), {"dual_coef_": a, "support_": numbers} | attributes)


def _weights_of(partitions: Partitions, scaling: Any, coefficients: Array) -> Array:
    """Return ``Σ a_i x_i`` over scaled rows."""
    total = np.zeros(partitions.features)
    start = 0
    for X in _in_float64(partitions, scaling):
        total += coefficients[start : start + len(X)] @ X
        start += len(X)
    return total


def linear_scores(partitions: Partitions, kernel: Kernel, scaling: Any, coefficients: Array) -> Array:
    """Return ``K a`` of the linear kernel on all rows (n,), through the weights of its features."""
    weights = _weights_of(partitions, scaling, coefficients)
    scores: Array = np.concatenate([X @ weights for X in _in_float64(partitions, scaling)])
    return scores + kernel.bias * float(coefficients.sum())


def _in_float64(partitions: Partitions, scaling: Any) -> Iterator[Array]:
    """Yield all scaled rows in float64, partition by partition, some thousand at a time."""
    for k in range(len(partitions.counts)):
        rows, _ = partitions.rows(k, k + 1, scaling, 0)
        yield from (slab.astype(np.float64) for slab in slabs(rows))


def finish_weights(features: FeatureMap, solution: PrimalSolution[Any], tol: float, max_iter: int) -> Trained:
    """Build the model from the weights that a linear solver found."""
    weights, intercept = features.raw_weights(solution.x)
    require_finite_solution(weights, intercept, solution.gap)
    attributes = {"dual_gap_": solution.gap, "history_": solution.history, "n_iter_": max(1, solution.steps)}
    warning = None
    if not solution.converged:
        warning = (
            f"{stopped_at(solution.gap, tol)} Increase max_iter ({max_iter} steps), scale the features, or decrease "
            "lam."
        )
    return Trained(LinearModel(weights[None], np.array([intercept])), attributes, warning)


def stopped_at(gap: float, tol: float) -> str:
    """Return the first sentence of the warning of a solver that stopped short."""
    if math.isinf(gap):
        return (
            "‖w‖² is negative, so that no gap is known: the kernel matrix is not positive semidefinite. Compute it in "
            "float64, add a little to its diagonal, or decrease lam."
        )
    return f"The solver stopped at a relative gap of {gap:.1e}, above tol={tol:g}."


def unfinished(solutions: list[Solution], tol: float, max_iter: int) -> str | None:
    """Return a warning if the solve of any partition ended above ``tol``, else None."""
    left = [solution for solution in solutions if not solution.converged]
    if not left:
        return None
    start = stopped_at(max(solution.point.gap for solution in left), tol)
    if any(solution.sweeps for solution in left):
        return f"{start} Increase max_iter ({max_iter} steps), scale the features, or decrease lam."
    return f"{start} Newton's method gets no closer in float64: scale the features, or decrease lam."


def crowding_features(data: TrainingData, kernel: KernelChoice, *, nothing: bool = False) -> list[int]:
    """Return the features, three at most, that have nearly all of the variance of scaled features, and hide others.

    Several also have to range several times as far as any other: of columns of 0 and 1, a rare one has little variance.
    None are looked for if a kernel may weigh features otherwise, unless next to ``nothing`` was learned. A smaller
    share is suspect then. A learned metric gives a few features most of the variance on purpose.
    """
    if not kernel.is_named or kernel.metric is not None:
        return []
    if not (nothing or (kernel.of_distances and kernel.scale != "standard")):
        return []
    statistics = data.statistics(kernel.scale)
    factor = kernel.scaling(statistics).factor
    variance = statistics.variance * factor**2
    width = (statistics.maximum - statistics.minimum) * factor
    largest = np.argsort(-variance, kind="stable")[: min(3, np.count_nonzero(variance) - 1)]
    few = np.flatnonzero(variance[largest].cumsum() > (SUSPECT_SHARE if nothing else CROWDING_SHARE) * variance.sum())
    found: list[int] = sorted(largest[: few[0] + 1].tolist()) if len(few) else []
    is_apart = len(found) < 2 or width[found].min() > 3 * np.delete(width, found).max()
    return found if is_apart else []


@dataclass(frozen=True)
class FeatureAdvice:
    """Advice on features that say little: a few hide the others, or next to ``nothing`` was learned.

    ``lam`` is the λ of the fit, ``usual`` that of lam="auto", and ``crowding`` has the numbers of the features that
    hide the others.
    """

    lam: float
    usual: float
    crowding: Sequence[int]
    nothing: bool

    def warn(self, names: Sequence[Any] | Array | None) -> None:
        """Log a warning with the way out; ``names`` are those of the features, or None."""
        way_out = "The features seem to say nothing of the labels, as they are scaled and as the kernel sees them."
        if self.crowding:
            called = [repr(each if names is None else str(names[each])) for each in self.crowding]
            which = f"Column {called[0]} has"
            only = "it only numbers the rows, leave it"
            if len(called) > 1:
                which = f"Columns {', '.join(called[:-1])} and {called[-1]} together have"
                only = "they only number the rows, leave them"
            way_out = (
                f"{which} nearly all of the variance of the features, so that the others hardly count: scale them "
                f"(scale='standard'), or, if {only} out, as by drop= (--drop) of ingest."
            )
        elif self.lam < self.usual:
            way_out = (
                f"Choose a larger lam, such as 'auto', which is {self.usual:g}, twice the number of rows, unless the "
                "features say nothing of the labels."
            )
        if not self.nothing:
            logger.warning("%s", way_out)
            return
        logger.warning(
            "next to nothing was learned with lam=%g: the objective is within 1 %% of that of a model that is zero. %s",
            self.lam, way_out
        )  # fmt: skip


def advice_on_features(data: TrainingData, kernel: KernelChoice) -> FeatureAdvice | None:
    """Return what to say of features that hide the others, see `crowding_features`, or None."""
    crowding = crowding_features(data, kernel)
    return FeatureAdvice(0.0, 0.0, crowding, nothing=False) if crowding else None
