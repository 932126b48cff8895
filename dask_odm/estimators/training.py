"""From checked input to dual variables: settles scaling and kernel, and runs the tree in memory or from a store."""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import dask
import numpy as np
from numpy.typing import NDArray

from dask_odm.data.partitioned import Labelling, MemoryPartitions, StoredPartitions, chunk_statistics
from dask_odm.data.scaling import Scaling, StoredScaling
from dask_odm.data.statistics import Statistics, StatisticsAccumulator
from dask_odm.data.store import Store
from dask_odm.errors import InputError, StoreError
from dask_odm.kernels import from_parameters
from dask_odm.kernels.base import Kernel
from dask_odm.persistence import load_checkpoint, save_checkpoint
from dask_odm.problems.odm import ODMSettings
from dask_odm.solvers.base import Solution, SolverSettings
from dask_odm.strategies.cluster import Cluster
from dask_odm.strategies.predict import Predictor
from dask_odm.strategies.shuffle import ShuffleSettings, landmarks_path, partition_arrays, partition_store
from dask_odm.strategies.tree import TreeJob, TreeResult, TreeSettings, grow_tree, partitions_for, solve_whole

Array = NDArray[Any]
logger = logging.getLogger("dask_odm")
WHOLE_ROWS = 1 << 16  # up to so many rows in memory are one partition, solved without a graph
WHOLE_BYTES = 256 << 20  # a store up to this size is read into memory
LEAF_ROWS = 8192


@dataclass(frozen=True)
class FitSettings:
    """What `ODMClassifier`'s parameters say about one fit, checked.

    ``gamma`` may still be ``"scale"`` or ``"auto"``, which the data settle.
    """

    kernel: str
    gamma: float | str
    degree: int
    coef0: float
    bias: float
    scale: str | None
    odm: ODMSettings
    solver: SolverSettings
    tree: TreeSettings
    n_partitions: int | None
    n_landmarks: int
    memory_limit: int | str | None
    scratch: str | None
    checkpoint: str | None
    resume: bool

    def scaling(self, statistics: Statistics) -> Scaling:
        return Scaling.from_statistics(statistics, self.scale, centre=self.kernel == "rbf")

    def make_kernel(self, statistics: Statistics) -> Kernel:
        """The kernel on scaled rows."""
        if not _finite(self.scaling(statistics).factor) or not np.isfinite(
            self.scaling(statistics).variance(statistics)
        ):
            raise InputError("features are too large or too uneven to be scaled; divide them by a power of ten first.")
        parameters: dict[str, Any] = {"name": self.kernel, "bias": self.bias}
        if self.kernel != "linear":
            parameters["gamma"] = self._gamma(statistics)
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

    def shuffle(self, n_partitions: int) -> ShuffleSettings:
        return ShuffleSettings(n_partitions, self.n_landmarks, self.solver.seed)


@dataclass(frozen=True, eq=False)
class Trained:
    """A trained model before it becomes attributes of an estimator.

    ``support`` are row numbers in ascending order, ``result.dual`` is in the order of the partitions.
    """

    predictor: Predictor
    support: Array
    result: TreeResult


def train_arrays(
    X: Array, y: Array, weight: Array, class_weights: tuple[float, float], settings: FitSettings
) -> Trained:
    """Train on rows in memory.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Raw rows, float32 or float64.
    y, weight : ndarrays of shape (n,)
        Labels ±1 and weights; rows of weight zero are dropped.
    class_weights : tuple of float
        What a negative and a positive row's weight is multiplied by; scaling does not know of it.
    """
    kept = np.flatnonzero(weight * np.where(y > 0, class_weights[1], class_weights[0]) > 0)
    if len(kept) < len(X):
        X, y, weight = X[kept], y[kept], weight[kept]
    data = _fingerprint(X, y, weight, class_weights) if settings.checkpoint else ""
    if not np.isfinite(weight.sum()):
        raise InputError("the row weights are too large: their sum is not finite.")
    gathered = StatisticsAccumulator(X.shape[1])
    gathered.update(X, weight)
    statistics = gathered.result()
    weight = weight * np.where(y > 0, class_weights[1], class_weights[0])
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    parts = partitions_for(len(X), settings.n_partitions, settings.tree.fan_in, WHOLE_ROWS)
    if parts == 1:
        # in random order, since descent goes block by block and rows often come sorted by class
        order = np.random.default_rng(settings.solver.seed).permutation(len(X))
        whole = MemoryPartitions(scaling(X[order]), y[order], weight[order], order, (len(X),))
        job = TreeJob(whole, scaling, kernel, settings.odm, settings.solver)
        result = solve_whole(job, Cluster.local(settings.memory_limit))
    else:
        partitions = partition_arrays(scaling(X), y, weight, kernel, settings.shuffle(parts))
        job = TreeJob(partitions, scaling, kernel, settings.odm, settings.solver)
        result = _grow(job, settings, Cluster.local(settings.memory_limit), f"{parts} {data}")
    return _finish(job, scaling, result, lambda chosen: X[chosen], kept)


def train_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    """Train on a store: a small one in memory, any other through the shuffle and the tree, on Dask."""
    parts = partitions_for(store.rows, settings.n_partitions, settings.tree.fan_in, LEAF_ROWS)
    small = store.rows <= WHOLE_ROWS and store.rows * store.features * store.dtype.itemsize <= WHOLE_BYTES
    if small and settings.n_partitions in (None, 1):
        return _train_small_store(store, labelling, settings)
    cluster = Cluster.current(settings.memory_limit)
    statistics = _statistics(store, labelling, cluster)
    scaling, kernel = settings.scaling(statistics), settings.make_kernel(statistics)
    with scratch_folder(settings.scratch) as folder:
        partitions = partition_store(store, labelling, scaling, kernel, settings.shuffle(parts), folder, cluster)
        job = TreeJob(partitions, scaling, kernel, settings.odm, settings.solver)
        lean = replace(job, scaling=StoredScaling(landmarks_path(folder)))
        result = _grow(lean, settings, cluster, f"{parts} {store.digest} {labelling}")
        return _finish(job, scaling, result, lambda chosen: _gather(partitions, chosen), None)


def _train_small_store(store: Store, labelling: Labelling, settings: FitSettings) -> Trained:
    X = np.empty((store.rows, store.features), store.dtype)
    y, weight = np.empty(store.rows), np.empty(store.rows)
    for block in store.blocks():
        rows = slice(block.first, block.first + len(block.X))
        keep, y[rows], _ = labelling(block)
        X[rows] = block.X
        weight[rows] = keep if block.weight is None else np.where(keep, block.weight, 0.0)
    class_weights = labelling.negative_weight, labelling.positive_weight
    return train_arrays(X, y, weight, class_weights, replace(settings, n_partitions=1))


def _statistics(store: Store, labelling: Labelling, cluster: Cluster) -> Statistics:
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


def _fingerprint(X: Array, y: Array, weight: Array, class_weights: tuple[float, float]) -> str:
    digest = hashlib.sha256(repr((X.shape, X.dtype, class_weights)).encode())
    for array in (X, y, weight):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _grow(job: TreeJob, settings: FitSettings, cluster: Cluster, data: str) -> TreeResult:
    """Grow the tree, with checkpoints if they are asked for."""
    counts = job.partitions.counts
    logger.info("%d rows in %d partitions, %s; %s", sum(counts), len(counts), job.kernel, cluster)
    if settings.checkpoint is None:
        return grow_tree(job, settings.tree, cluster)
    fit = hashlib.sha256(json.dumps([data, _plain(settings)], sort_keys=True).encode()).hexdigest()
    resume, history = (_resume(settings.checkpoint, fit) if settings.resume else None), []
    if resume is not None:
        history = resume[2]

    def on_level(number: int, fetch: Callable[[], list[Solution]], entries: list[dict[str, Any]]) -> None:
        attributes = {"fit": fit, "level": number, "history": entries, "seed": settings.solver.seed}
        save_checkpoint(str(settings.checkpoint), fetch(), attributes)

    start = None if resume is None else resume[:2]
    return grow_tree(job, settings.tree, cluster, resume=start, history=history, on_level=on_level)


def _plain(settings: FitSettings) -> dict[str, Any]:
    """What a checkpoint depends on: not where files lie, and not how much memory there is."""
    plain = asdict(settings)
    for name in ("memory_limit", "scratch", "checkpoint", "resume"):
        del plain[name]
    return plain


def _resume(path: str, fit: str) -> tuple[int, list[Solution], list[dict[str, Any]]] | None:
    found = load_checkpoint(path)
    if found is None:
        return None
    solutions, attributes = found
    if attributes.get("fit") != fit:
        raise StoreError(
            f"checkpoint '{path}' is of another fit (other data or parameters); remove it or choose another path."
        )
    return int(attributes["level"]), solutions, list(attributes["history"])


def checkpoint_seed(path: str | None) -> int | None:
    """The seed of the fit that left a checkpoint at ``path``; None if there is none."""
    found = None if path is None else load_checkpoint(path)
    return None if found is None else int(found[1]["seed"])


def _finish(
    job: TreeJob, scaling: Scaling, result: TreeResult, vectors: Callable[[Array], Array], numbers: Array | None
) -> Trained:
    """The predictor of a tree's result; ``vectors`` gives raw rows for row numbers, ``numbers`` renames rows."""
    count = len(job.partitions.counts)
    y, _ = job.partitions.labels(0, count)
    rows = job.partitions.row_numbers(0, count)
    a = y * result.dual[0]
    order = np.argsort(rows, kind="stable")
    chosen = order[a[order] != 0]
    coefficients, support = a[chosen][None], rows[chosen]
    bias, weights = job.kernel.bias, None
    intercept = np.array([bias * a.sum()])
    if job.kernel.name == "linear":
        weights = (_linear_weights(job, a) * scaling.factor)[None]
        intercept = intercept - weights @ scaling.shift
        X = np.empty((0, job.partitions.features), job.partitions.dtype)
    else:
        X = vectors(support)
    if not (np.isfinite(coefficients).all() and np.isfinite(intercept).all() and _finite(weights)):
        raise InputError("the solution is not finite: rescale the rows (scale='minmax') or the weights.")
    kernel = replace(job.kernel, bias=0.0)
    predictor = Predictor(kernel, scaling, X, coefficients, weights, intercept)
    return Trained(predictor, support if numbers is None else numbers[support], result)


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


def _gather(partitions: StoredPartitions, chosen: Array) -> Array:
    """Raw rows of ascending row numbers ``chosen`` from partitions on disk, one partition at a time."""
    out = np.empty((len(chosen), partitions.features), partitions.dtype)
    for k in range(len(partitions.counts)):
        numbers = partitions.row_numbers(k, k + 1)
        at = np.searchsorted(chosen, numbers)
        inside = np.flatnonzero((at < len(chosen)) & (chosen[np.minimum(at, len(chosen) - 1)] == numbers))
        out[at[inside]] = partitions.raw(k, k + 1, inside)
    return out


@contextmanager
def scratch_folder(scratch: str | None) -> Iterator[str]:
    """A folder of its own for one fit, below ``scratch``, Dask's temporary directory or the system's; removed after."""
    parent = scratch or dask.config.get("temporary-directory", None)
    try:
        folder = tempfile.mkdtemp(prefix="dask-odm-", dir=parent)
    except OSError as error:
        raise InputError(f"scratch folder '{parent}' cannot be used: {error.strerror}.") from error
    try:
        yield folder
    except OSError as error:
        if error.filename is not None and not str(error.filename).startswith(folder):
            raise  # of what the user passed, not of the scratch folder
        raise StoreError(f"scratch folder '{folder}': {error.strerror or error}.") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
