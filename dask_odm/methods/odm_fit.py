"""The settings of one fit of `ODMClassifier`, from its checked parameters. Tasks load them without scikit-learn."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from dask_odm.engine.partitioners import StratifiedPartitioner
from dask_odm.errors import InputError
from dask_odm.kernels.base import Kernel
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.learning.solution import SolverSettings
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.typing import Array


@dataclass(frozen=True)
class ODMFit:
    """Settings of one fit.

    ``own`` is the solver object, with the parameters of the solver alone. ``lams`` are the values of a λ path,
    ``starts`` raw weights and intercept of every machine to start from. Both are for linear solvers only. ``axes`` are
    the values from which every cell chooses for itself, and None if ``kernel`` and ``odm`` are for all. ``groups`` are
    the numbers of the groups of all rows that were given, (n,), which ``loo`` leaves out instead of rows.
    """

    run: FitRun
    kernel: KernelChoice
    odm: ODMSettings
    solver: SolverSettings
    own: Any
    loo: bool = False
    lams: tuple[float, ...] = ()
    starts: tuple[tuple[Array, float], ...] = ()
    axes: Any = None
    groups: Array | None = None

    @classmethod
    def of(
        cls, model: Any, own: Any, run: FitRun, lams: tuple[float, ...], starts: tuple[tuple[Array, float], ...] = ()
    ) -> ODMFit:
        """Build the settings of one fit from an `ODMClassifier` whose parameters were checked, and its solver object.

        Raises InputError if λ is out of the range of float64.
        """
        least, most = 1e-100, 1e100  # beyond, squares of losses and of dual variables overflow or underflow float64
        for lam in (float(model.lam), *lams):
            if not least <= lam <= most:
                raise InputError(
                    f"lam={lam:g} is out of the range that float64 has digits for; choose a lam between "
                    f"{least:g} and {most:g}."
                )
        return cls(
            run=run,
            kernel=KernelChoice.of(model, 1.0 if model.fit_intercept else 0.0),
            odm=ODMSettings(float(model.lam), float(model.upsilon), float(model.theta)),
            solver=SolverSettings(float(model.tol), int(model.max_iter), run.seed),
            own=own,
            loo=bool(model.loo),
            lams=lams,
            starts=starts,
        )

    def with_own(self, **parameters: Any) -> ODMFit:
        """Return the settings with other parameters of the solver."""
        return replace(self, own=type(self.own)(**self.own.get_params() | parameters))

    @property
    def start(self) -> tuple[Array, float] | None:
        """Raw weights and intercept from which the one machine starts, or None."""
        if len(self.starts) > 1:
            raise InputError(f"warm_start: the fitted model has {len(self.starts)} machines, but two classes make one.")
        return self.starts[0] if self.starts else None

    def of_machine(self, i: int, count: int, run: FitRun) -> ODMFit:
        """Return the settings of machine ``i`` of ``count``."""
        if self.starts and len(self.starts) != count:
            raise InputError(
                f"warm_start: the fitted model has {len(self.starts)} machines, but these classes make {count}; set "
                "warm_start to False."
            )
        return replace(self, run=run, starts=self.starts[i : i + 1])

    def groups_of(self, data: TrainingData) -> tuple[Array, int] | None:
        """Return the groups of the rows of ``data``, numbered from 0, and how many there are; None without groups."""
        if self.groups is None:
            return None
        rows, numbers = data.row_numbers
        if self.groups.shape != (rows,):
            raise InputError(f"groups must have shape ({rows},) as X has rows. Got {self.groups.shape} instead.")
        names, groups = np.unique(self.groups if numbers is None else self.groups[numbers], return_inverse=True)
        return groups, len(names)

    def identity(self) -> dict[str, Any]:
        """Return all settings that identify a fit except the seed, as JSON."""
        if callable(self.kernel.kernel):
            self.kernel.require_named("a fit with a checkpoint")
        plain = asdict(replace(self, groups=None))
        for name in ("run", "loo", "lams", "starts", "groups"):
            del plain[name]
        del plain["solver"]["seed"]
        if self.axes is None:
            del plain["axes"]
        return plain | {"own": self.own.get_params(), "dtype": self.run.dtype}

    def partitioner(self, kernel: Kernel, n_partitions: int) -> StratifiedPartitioner:
        """Return the partitioner that deals rows to partitions, stratified by landmarks of the kernel."""
        return StratifiedPartitioner(kernel, self.own.n_strata, n_partitions, self.run.seed)

    def loss(self, data: TrainingData) -> BandLoss:
        """Return the loss of the rows of ``data``."""
        negative, positive = data.class_weights
        return BandLoss(self.odm, data.total_weight, negative_weight=negative, positive_weight=positive)
