"""The settings of one fit of `ODMClassifier`, from its checked parameters. Tasks load them without scikit-learn."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
from scipy.sparse import issparse

from dask_odm.data.readers.sources import Reading
from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.learning.machines import Scheme
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, RowLosses
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.typing import Array

SAME_ROWS = 32  # rows by which data are known again
AUTO_LAM = 2.0  # λ/M by default: the loss of a row weighs as by C = 1, scikit-learn's default (benchmarks/defaults.py)


@dataclass(frozen=True, eq=False)
class LastFit:
    """The result of the last fit of a kernel, from which this one starts: the coefficients of rows in every machine.

    ``numbers`` are those that the raw ``rows`` had there, (n_support,), ``coefficients`` (machines, n_support).
    """

    numbers: Array
    rows: Any
    coefficients: Array
    scaling: Any = None
    tree: Any = None  # of its cells, if it had any, over scaled rows

    @cached_property
    def _order(self) -> Array:
        return np.argsort(self.numbers, kind="stable")

    @property
    def digest(self) -> str:
        """Hash of what was found, by which a checkpoint is known to be of a fit that started there."""
        found = hashlib.sha256(np.ascontiguousarray(self.numbers).tobytes())
        found.update(np.ascontiguousarray(self.coefficients).tobytes())
        return found.hexdigest()

    def was_of(self, data: TrainingData) -> bool:
        """Return whether data seem to begin with the rows of that fit: some of those with a coefficient are the same.

        A start from other rows would be a poor one, and no more than that.
        """
        order = self._order
        some = order[np.unique(np.linspace(0, len(order) - 1, SAME_ROWS).astype(np.int64))] if len(order) else order
        numbers = self.numbers[some]
        if not len(some) or numbers[-1] >= data.row_numbers[0] or self.rows.shape[1] != data.features:
            return False
        differ = data.given_rows(numbers).astype(self.rows.dtype) != self.rows[some]
        return not (differ.nnz if issparse(differ) else differ.any())

    def coefficients_at(self, numbers: Array) -> Array:
        """Return the coefficients (machines, n) of the rows with these ``numbers``, 0 for those that had none."""
        if not len(self.numbers):
            return np.zeros((len(self.coefficients), len(numbers)))
        at = np.searchsorted(self.numbers, numbers, sorter=self._order)
        at = self._order[np.minimum(at, len(self.numbers) - 1)]
        return np.where(self.numbers[at] == numbers, self.coefficients[:, at], 0.0)


@dataclass(frozen=True)
class ODMFit:
    """Settings of one fit.

    ``word`` names the solver that was asked for, and ``own`` is the solver object, with the parameters of the solver
    alone. ``scheme`` says how more than two classes are learned, as the user says unless ``any_scheme``. ``lams`` are
    the values of a λ path, ``starts`` raw weights and intercept of every machine to start from. Both are for linear
    solvers only; ``last`` is what those of kernels start from. ``axes`` are the values from which every cell chooses
    for itself, and None if ``kernel`` and ``odm`` are for all. ``groups`` are the numbers of the groups of all rows
    that were given, (n,), which ``loo`` leaves out instead of rows. With ``whole_rows``, it leaves out rows of any
    weight as a whole. With ``auto_lam``, λ of ``odm`` is that of a row of weight 1, until `for_data` knows the weight
    of all. ``metric``, a word or a `Metric`, says how that of ``kernel`` is learned. Gaps of a ``trial`` are not
    certified.
    """

    run: FitRun
    kernel: KernelChoice
    odm: ODMSettings
    solver: SolverSettings
    own: Any
    loo: bool = False
    whole_rows: bool = False
    lams: tuple[float, ...] = ()
    starts: tuple[tuple[Array, float], ...] = ()
    last: LastFit | None = None
    axes: Any = None
    groups: Array | None = None
    auto_lam: bool = False
    metric: Any = None
    trial: bool = False
    word: str = "auto"
    scheme: Scheme = "ovr"
    any_scheme: bool = False
    problem: ClassVar[type[ODMSettings]] = ODMSettings
    has_real_targets: ClassVar[bool] = False  # instead of classes

    @classmethod
    def of(cls, model: Any, own: Any, run: FitRun, lams: tuple[float, ...], **more: Any) -> Self:
        """Build the settings of one fit from an `ODMClassifier` whose parameters were checked, and its solver object.

        Raises InputError if λ is out of the range of float64.
        """
        least, most = 1e-100, 1e100  # beyond, squares of losses and of dual variables overflow or underflow float64
        auto_lam = model.lam == "auto"
        first = AUTO_LAM if auto_lam else float(model.lam)
        for lam in (first, *lams):
            if not least <= lam <= most:
                raise InputError(
                    f"lam={lam:g} is out of the range that float64 has digits for; choose a lam between "
                    f"{least:g} and {most:g}."
                )
        scheme = getattr(model, "multi_class", None)
        of_classes = scheme or ("ovr" if model.kernel == "linear" or model.loo else "ovo")
        more = {"scheme": of_classes, "any_scheme": scheme is None} | more
        return cls(
            run=run,
            kernel=KernelChoice.of(model, 1.0 if model.fit_intercept else 0.0, run.marks),
            odm=cls.problem(first, float(model.upsilon), float(model.theta)),
            solver=SolverSettings(float(model.tol), int(model.max_iter), run.seed),
            own=own,
            loo=bool(model.loo),
            lams=lams,
            auto_lam=auto_lam,
            metric=getattr(model, "metric", None),
            **more,
        )

    def for_data(self, data: TrainingData) -> Self:
        """Return the settings with the λ and the scaling that "auto" chooses for all rows of a fit.

        Rows that `ingest` writes as a sparse store are not scaled: rare words would count for more than all others. Nor
        are those of a linear kernel without an intercept, since where 0 is matters there.
        """
        odm = replace(self.odm, lam=self.odm.lam * data.total_weight) if self.auto_lam else self.odm
        scale = self.kernel.scale
        if scale == "auto":
            wide = data.features > Reading.sparse_features and data.density <= Reading.sparse_share
            from_zero = self.kernel.kernel == "linear" and not self.kernel.bias
            scale = "standard" if self.kernel.is_named and not wide and not from_zero else None
        return replace(self, odm=odm, kernel=replace(self.kernel, scale=scale), auto_lam=False)

    def with_own(self, **parameters: Any) -> ODMFit:
        """Return the settings with other parameters of the solver."""
        return replace(self, own=type(self.own)(**self.own.get_params() | parameters))

    def of_machine(self, i: int, count: int, run: FitRun) -> Self:
        """Return the settings of machine ``i`` of ``count``."""
        self.require_machines(count)
        last = self.last and replace(self.last, coefficients=self.last.coefficients[i : i + 1])
        return replace(self, run=run, starts=self.starts[i : i + 1], last=last)

    def has_pairs(self, data: TrainingData) -> bool:
        """Return whether more than two classes are learned one against another."""
        return len(data.class_weights) > 2 and self.scheme == "ovo"

    def require_machines(self, count: int) -> None:
        """Raise InputError if a fit of ``count`` machines is to start from another number of them."""
        found = len(self.starts if self.last is None else self.last.coefficients)
        if found not in (0, count):
            raise InputError(
                f"warm_start: the fitted model has {found} machines, but this y makes {count}; set warm_start to False."
            )

    def start_of_rows(self, data: TrainingData) -> Array | None:
        """Return coefficients of the rows of ``data`` that take part, from which the one machine starts, or None."""
        if self.last is None or not self.last.was_of(data):
            return None
        self.require_machines(1)
        taking, _, _ = data.taking_part
        _, numbers = data.row_numbers
        return self.last.coefficients_at(taking if numbers is None else numbers[taking])[0]

    def groups_of(self, data: TrainingData) -> tuple[Array, int] | None:
        """Return the groups of the rows of ``data``, numbered from 0, and how many there are; None without groups."""
        if self.groups is None:
            return None
        rows, numbers = data.row_numbers
        require_groups(self.groups, rows)
        names, groups = np.unique(self.groups if numbers is None else self.groups[numbers], return_inverse=True)
        return groups, len(names)

    def identity(self) -> dict[str, Any]:
        """Return all settings that identify a fit except the seed, as JSON."""
        if callable(self.kernel.kernel):
            self.kernel.require_named("a fit with a checkpoint")
        plain = asdict(replace(self, groups=None, last=None))
        beside = "run loo whole_rows lams starts last groups auto_lam metric word scheme any_scheme"
        for name in beside.split():
            del plain[name]
        del plain["solver"]["seed"]
        metric = plain["kernel"].pop("metric")
        if metric is not None:
            plain["metric"] = hashlib.sha256(metric["values"].tobytes()).hexdigest()
        if self.axes is None:
            del plain["axes"]
        if self.last is not None:
            plain["last"] = self.last.digest
        return plain | {"own": self.own.get_params(), "dtype": self.run.dtype}

    def partitioner(self, kernel: Kernel, n_partitions: int) -> StratifiedPartitioner:
        """Return the partitioner that deals rows to partitions, stratified by landmarks of the kernel."""
        return StratifiedPartitioner(kernel, self.own.n_strata, n_partitions, self.run.seed)

    def loss(self, data: TrainingData) -> BandLoss:
        """Return the loss of the rows of ``data``."""
        return BandLoss(self.odm, data.total_weight, *data.class_weights)

    def row_losses(self, y: Array, weight: Array) -> RowLosses:
        """Return the losses of rows with targets and weights (n,) as `TrainingData.taking_part` has them."""
        return RowLosses(self.odm, y, weight)


def has_partitions(fit: ODMFit) -> bool:
    """Return whether several partitions are asked for, with a kernel that workers can compute."""
    return (fit.own.n_partitions or 1) > 1 and fit.kernel.is_named


def require_groups(groups: Array | None, rows: int) -> None:
    """Raise InputError unless there is a group for each of the rows that the user gave, or there are no groups."""
    if groups is not None and groups.shape != (rows,):
        raise InputError(f"groups must have shape ({rows},) as X has rows. Got {groups.shape} instead.")
