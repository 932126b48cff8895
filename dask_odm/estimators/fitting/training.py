"""From checked input to a model: settings of a fit, scaling and kernel, small stores, models of dual variables."""

from __future__ import annotations

import atexit
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from uuid import uuid4

import dask
import numpy as np

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.data.rows.stored import Labelling, StoredPartitions, chunk_statistics
from dask_odm.data.store.files import FULL, reason, remove_folder
from dask_odm.data.store.statistics import Statistics
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError, StoreError
from dask_odm.estimators.fitting.training_rows import TrainingRows
from dask_odm.estimators.inputs.checks import unfinished
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.dot import Linear
from dask_odm.kernels.given import CallableKernel, Precomputed
from dask_odm.partition.strata import StratifiedPartitioner
from dask_odm.problems.odm import ODMSettings
from dask_odm.solvers.base import SolverSettings
from dask_odm.solvers.svrg import SVRGSettings
from dask_odm.strategies.predict import Predictor
from dask_odm.strategies.tree import TreeJob, TreeResult, TreeSettings
from dask_odm.typing import Array

T = TypeVar("T")
logger = logging.getLogger("dask_odm")
WHOLE_BYTES = 256 << 20  # a store up to this size is read into memory
STRATA = 64  # most strata that partitions are balanced by
_SCRATCH: set[str] = set()  # folders of this process that are not removed yet


@dataclass(frozen=True)
class FitSettings:
    """What `ODMClassifier`'s parameters say about one fit, checked.

    ``gamma`` may still be ``"scale"`` or ``"auto"``, which the data settle. ``lams`` are those of a path, ``start``
    raw weights and intercept to start from: both of linear solvers only.
    """

    kernel: str | Callable[[Array, Array], Array]
    gamma: float | str
    degree: int
    coef0: float
    bias: float
    scale: str | None
    odm: ODMSettings
    solver: SolverSettings
    tree: TreeSettings
    n_partitions: int | None
    n_landmarks: int | None
    dtype: str | None
    memory_limit: int | str | None
    scratch: str | None
    checkpoint: str | None
    resume: bool
    lams: tuple[float, ...] = ()
    start: tuple[Array, float] | None = None
    svrg: SVRGSettings = field(default_factory=SVRGSettings)
    landmarks: str = "support"
    certify: bool = False

    @classmethod
    def of(cls, model: Any, seed: int, lams: tuple[float, ...], start: tuple[Array, float] | None) -> FitSettings:
        """Those of an `ODMClassifier` whose parameters are valid, in the types that all else takes."""
        return cls(
            kernel=model.kernel,
            gamma=_word_or_float(model.gamma),
            degree=int(model.degree),
            coef0=float(model.coef0),
            bias=1.0 if model.fit_intercept else 0.0,
            scale=model.scale,
            odm=ODMSettings(float(model.lam), float(model.upsilon), float(model.theta)),
            solver=SolverSettings(float(model.tol), int(model.max_iter), seed),
            tree=TreeSettings(int(model.fan_in), int(model.stop_at), bool(model.early_stop)),
            n_partitions=_if_any(int, model.n_partitions),
            n_landmarks=_if_any(int, model.n_landmarks),
            dtype=model.dtype,
            memory_limit=model.memory_limit,
            scratch=_if_any(os.fspath, model.scratch),
            checkpoint=_if_any(os.fspath, model.checkpoint),
            resume=bool(model.resume),
            lams=lams,
            start=start,
            landmarks=model.landmarks,
            certify=bool(model.certify),
            svrg=SVRGSettings(
                _word_or_float(model.step_size), _if_any(int, model.stage_steps), int(model.coreset_size)
            ),
        )

    def require_named_kernel(self, what: str) -> None:
        """Raise InputError where the kernel works in this process's memory only."""
        if callable(self.kernel) or self.kernel == "precomputed":
            name = "a callable kernel" if callable(self.kernel) else "kernel='precomputed'"
            raise InputError(f"{name} needs rows in memory, not {what}; choose a kernel by its name.")

    def scaling(self, statistics: Statistics) -> Scaling:
        return Scaling.from_statistics(statistics, self.scale, centre=self.kernel in ("rbf", "laplacian"))

    def make_kernel(self, statistics: Statistics) -> Kernel:
        """The kernel on scaled rows."""
        if not _finite(self.scaling(statistics).factor) or not np.isfinite(
            self.scaling(statistics).variance(statistics)
        ):
            raise InputError(
                "features are too large, too small or too uneven to be scaled; multiply them by a power of ten first."
            )
        if callable(self.kernel):
            return CallableKernel(self.bias, self.kernel)
        parameters: dict[str, Any] = {"name": self.kernel, "bias": self.bias}
        if self.kernel != "linear":
            parameters["gamma"] = gamma = self._gamma(statistics)
            if not float(np.finfo(np.float32).tiny) <= gamma <= float(np.finfo(np.float32).max):
                raise InputError(f"gamma={gamma:.3g} is out of range: scale the features, with scale='minmax'.")
        if self.kernel == "poly":
            parameters |= {"degree": self.degree, "coef0": self.coef0}
        return from_parameters(parameters)

    def _gamma(self, statistics: Statistics) -> float:
        d = len(statistics.mean)
        if self.gamma == "auto":
            return 1.0 / d
        if self.gamma == "scale":
            variance = self.scaling(statistics).variance(statistics)
            return 1.0 / (d * variance) if variance > 0 else 1.0
        return float(self.gamma)

    def partitioner(self, kernel: Kernel, n_partitions: int) -> StratifiedPartitioner:
        return StratifiedPartitioner(kernel, self.n_landmarks or STRATA, n_partitions, self.solver.seed)


def _if_any(kind: Callable[[Any], T], value: Any) -> T | None:
    return None if value is None else kind(value)


def _word_or_float(value: Any) -> float | str:
    return value if isinstance(value, str) else float(value)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model before it becomes attributes of an estimator.

    Attributes
    ----------
    predictor : Predictor
    support : ndarray of shape (n_support,)
        Numbers of the rows with a coefficient, ascending.
    gap : float
        Relative duality gap of the whole problem, or nan.
    history : list of dict
    n_iter : int
    warning : str or None
        What to warn of, where the solver stopped short of the tolerance.
    path : tuple of Trained
        One for every λ that was asked for, where a path was.
    """

    predictor: Predictor
    support: Array
    gap: float
    history: list[dict[str, Any]]
    n_iter: int
    warning: str | None = None
    path: tuple[Trained, ...] = ()


def named_kernel(X: Array, rows: TrainingRows, settings: FitSettings) -> tuple[Kernel, Scaling, Array | SparseRows]:
    """The kernel, what scales the rows, and the rows as the kernel sees them; ``X`` is for `precomputed_kernel`."""
    statistics = rows.statistics()
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    scaled = rows.scaled(scaling)
    if isinstance(kernel, CallableKernel):
        kernel.check(scaled)
    return kernel, scaling, scaled


def precomputed_kernel(
    X: Array, rows: TrainingRows, settings: FitSettings
) -> tuple[Kernel, Scaling, Array | SparseRows]:
    """The kernel that looks values up, and rows that are their own numbers."""
    if settings.scale is not None:
        raise InputError("scale must be None for kernel='precomputed', whose values are what is learned from.")
    kernel = Precomputed(settings.bias, X)
    kernel.check()
    return kernel, Scaling(np.zeros(1), np.ones(1)), rows.kept[:, None].astype(X.dtype)


def is_small(store: Store) -> bool:
    """Whether a store is read into memory."""
    return store.rows * store.features * store.dtype.itemsize <= WHOLE_BYTES


def read_store(store: Store, labelling: Labelling, settings: FitSettings) -> tuple[Array, Array, Array, Any]:
    """All rows of a small store, labels ±1, weights (0 for unknown labels), and the weights of the classes."""
    X = np.empty((store.rows, store.features), settings.dtype or store.dtype)
    y, weight = np.empty(store.rows), np.empty(store.rows)
    for block in store.blocks():
        rows = slice(block.first, block.first + len(block.X))
        keep, y[rows], _ = labelling(block)
        X[rows] = block.X
        weight[rows] = keep if block.weight is None else np.where(keep, block.weight, 0.0)
    return X, y, weight, (labelling.negative_weight, labelling.positive_weight)


def store_statistics(store: Store, labelling: Labelling, cluster: Cluster) -> Statistics:
    """Statistics of the rows that are learned from, weighted: the store's own where those are all rows alike."""
    if not store.has_weight and sum(store.class_counts or ()) == store.rows and labelling.keeps_all:
        return store.statistics
    chunks = [(store, labelling, c) for c in range(store.n_chunks)]
    total, *rest = cluster.map_chunks(chunk_statistics, chunks, "statistics")
    for part in rest:
        total.merge(part)
    if not total.count:
        raise InputError("no row has both a label and a positive weight.")
    return total.result()


def finish_tree(
    job: TreeJob,
    scaling: Scaling,
    result: TreeResult,
    vectors: Callable[[Array], Any],
    numbers: Array | None,
    settings: FitSettings,
) -> Trained:
    """The model of a tree's result; ``vectors`` gives raw rows for row numbers, ``numbers`` renames rows."""
    coefficients, support, total = _coefficients(job, result)
    bias, weights = job.kernel.bias, None
    intercept = np.array([bias * total])
    if job.kernel.name == "linear":
        count = len(job.partitions.counts)
        a = job.partitions.labels(0, count)[0] * result.dual[0]
        weights = (_linear_weights(job, a) * scaling.factor)[None]
        intercept = intercept - weights @ scaling.shift
        X: Any = np.empty((0, job.partitions.features), job.partitions.dtype)
    else:
        X = vectors(support)
    _require_finite(coefficients, intercept, weights)
    predictor = Predictor(replace(job.kernel, bias=0.0), scaling, X, coefficients, weights, intercept)
    return _trained(predictor, support if numbers is None else numbers[support], result, settings)


def finish_precomputed(job: TreeJob, result: TreeResult, numbers: Array, settings: FitSettings) -> Trained:
    """The model of looked-up kernel values: a weight for every training row's column."""
    coefficients, support, total = _coefficients(job, result)
    assert isinstance(job.kernel, Precomputed)
    weights = np.zeros((1, len(job.kernel.matrix)))
    weights[0, numbers[support]] = coefficients[0]
    intercept = np.array([job.kernel.bias * total])
    _require_finite(coefficients, intercept, weights)
    n = weights.shape[1]
    nothing = np.empty((0, n), job.kernel.matrix.dtype)
    predictor = Predictor(Linear(), Scaling(np.zeros(n), np.ones(n)), nothing, coefficients, weights, intercept)
    return _trained(predictor, numbers[support], result, settings)


def _coefficients(job: TreeJob, result: TreeResult) -> tuple[Array, Array, float]:
    """Coefficients that are not zero (1, n_support), their rows in ascending order, and the sum of them all."""
    count = len(job.partitions.counts)
    y, _ = job.partitions.labels(0, count)
    rows = job.partitions.row_numbers(0, count)
    a = y * result.dual[0]
    order = np.argsort(rows, kind="stable")
    chosen = order[a[order] != 0]
    return a[chosen][None], rows[chosen], float(a.sum())


def _trained(predictor: Predictor, support: Array, result: TreeResult, settings: FitSettings) -> Trained:
    n_iter = max(1, sum(entry["sweeps"] for entry in result.history))
    warning = unfinished(result.solutions, settings.solver.tol, settings.solver.max_iter)
    return Trained(predictor, support, float(result.gap), result.history, n_iter, warning)


def _require_finite(*values: Array | None) -> None:
    if not all(_finite(v) for v in values):
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.")


def _finite(values: Array | None) -> bool:
    return values is None or bool(np.isfinite(values).all())


def _linear_weights(job: TreeJob, a: Array) -> Array:
    """``Σ a_i x_i`` over scaled rows, partition by partition."""
    total, start = np.zeros(job.partitions.features), 0
    for k, count in enumerate(job.partitions.counts):
        rows, _ = job.partitions.rows(k, k + 1, job.scaling, 0)
        for i in range(0, count, 4096):
            stop = min(count, i + 4096)
            total += a[start + i : start + stop] @ rows.read(i, stop).astype(np.float64)
        start += count
    return total


def gather_rows(partitions: StoredPartitions, chosen: Array) -> Array:
    """Raw rows of ascending row numbers ``chosen`` from partitions on disk, one partition at a time."""
    out = np.empty((len(chosen), partitions.features), partitions.dtype)
    for k in range(len(partitions.counts)):
        numbers = partitions.row_numbers(k, k + 1)
        at = np.searchsorted(chosen, numbers)
        inside = np.flatnonzero((at < len(chosen)) & (chosen[np.minimum(at, len(chosen) - 1)] == numbers))
        out[at[inside]] = partitions.raw(k, k + 1, inside)
    return out


def _make_scratch(folder: str, parent: str) -> None:
    try:
        os.mkdir(folder, 0o700)
    except OSError as error:
        raise InputError(f"scratch folder '{parent}' cannot be used: {error.strerror}.") from error


def _way_out(error: OSError) -> str:
    return "; name another by scratch= (--scratch) or Dask's temporary-directory" if error.errno in FULL else ""


@contextmanager
def scratch_folder(scratch: str | None) -> Iterator[str]:
    """A folder of its own for one fit, below ``scratch``, Dask's temporary directory or the system's; removed after."""
    parent = scratch or dask.config.get("temporary-directory", None) or tempfile.gettempdir()
    # named before it is made, and removed at the latest when the process ends: Ctrl-C may come at any moment
    folder = os.path.join(os.path.abspath(parent), f"dask-odm-{uuid4().hex[:12]}")
    _SCRATCH.add(folder)
    try:
        _make_scratch(folder, parent)
        yield folder
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(folder):
            raise  # of what the user passed, not of the scratch folder
        raise StoreError(f"scratch folder '{folder}': {reason(error)}{_way_out(error)}.") from error
    finally:
        remove_folder(folder)
        _SCRATCH.discard(folder)


@atexit.register
def _remove_scratch() -> None:
    for folder in tuple(_SCRATCH):
        remove_folder(folder)
