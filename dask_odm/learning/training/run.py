"""Settings of how a fit runs, whatever it learns (seed, dtype, scaling, memory, checkpoint), and of its kernel.

The kernel itself is made once the statistics of the rows are known.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache
from numbers import Integral
from typing import Any

import dask
import numpy as np
from dask.system import CPU_COUNT
from dask.utils import parse_bytes

from dask_odm.data.rows.scaling import RANKS, Scaling, Stretch, require_affine
from dask_odm.data.store.statistics import Statistics
from dask_odm.engine.cluster import Cluster
from dask_odm.errors import InputError
from dask_odm.kernels import KERNELS
from dask_odm.kernels.base import Kernel
from dask_odm.kernels.named import Linear
from dask_odm.kernels.user_kernels import CallableKernel
from dask_odm.learning.training.checkpoints import check_checkpoint, open_checkpoint
from dask_odm.typing import Array


def read_limit() -> int:
    """Return the bytes up to which a store or lazy arrays are read into memory and solved there.

    Dask's setting ``dask_odm.read-into-memory`` gives them.
    """
    return int(parse_bytes(dask.config.get("dask_odm.read-into-memory", "256MiB")))


def drawn(random_state: Any) -> int:
    """Draw a seed from scikit-learn's parameter ``random_state``."""
    from sklearn.utils import check_random_state  # not at the top: tasks load this module

    return int(check_random_state(random_state).randint(2**31 - 1))


seed_of = lru_cache(maxsize=64)(drawn)  # for integers: seeding a generator anew takes as long as a step of a small fit


@dataclass(frozen=True)
class FitRun:
    """The course of a fit, from an estimator's checked parameters."""

    seed: int  # of every random choice
    dtype: str | None = None  # "float32" or "float64" to compute in; None for the rows' own
    scale: str | None = None  # how features are scaled
    memory_limit: int | str | None = None  # bytes that a worker may use
    checkpoint: str | None = None
    resume: bool = False
    warm_up: Callable[[], object] = lambda: None  # imports and compiles what tasks need, see `Cluster.current`
    marks: tuple[int, ...] = ()  # features that a recipe of columns made of words, see `Scaling`
    threads: int | None = None  # of this process, which memory is for, if no workers may be asked, as within a task

    @classmethod
    def of(cls, estimator: Any, warm_up: Callable[[], object] = lambda: None) -> FitRun:
        """Build the settings from an estimator with valid parameters.

        Raises InputError if the checkpoint cannot be written, or for ``resume`` without a checkpoint.
        """
        checkpoint = None if estimator.checkpoint is None else os.fspath(estimator.checkpoint)
        resume = bool(estimator.resume)
        random_state = estimator.random_state
        check_checkpoint(checkpoint, resume=resume)
        seed = None
        if checkpoint is not None and resume and not isinstance(random_state, Integral):
            left = open_checkpoint(checkpoint)
            seed = estimator._last_seed if left is None else int(left.attributes["seed"])
        if seed is None:
            seed = seed_of(int(random_state)) if isinstance(random_state, Integral) else drawn(random_state)
        return cls(seed, estimator.dtype, estimator.scale, estimator.memory_limit, checkpoint, resume, warm_up)

    def cluster(self) -> Cluster:
        """Return the active client's workers, or this process."""
        return self.here() if self.threads else Cluster.current(self.memory_limit, self.warm_up)

    def here(self) -> Cluster:
        """Return the threads of this process."""
        return Cluster.local(self.memory_limit, self.threads or CPU_COUNT)


@dataclass(frozen=True)
class KernelChoice:
    """A kernel by name or the user's own function, with the scaling of its rows.

    ``gamma`` "scale" and "auto" depend on the data. ``bias`` is added to every kernel value.
    """

    kernel: str | Callable[[Array, Array], Array]
    gamma: float | str = "scale"
    degree: int = 3
    coef0: float = 1.0
    bias: float = 0.0
    scale: str | None = None
    marks: tuple[int, ...] = ()  # as of `FitRun`
    metric: Stretch | None = None  # that was learned

    @classmethod
    def of(cls, model: Any, bias: float = 0.0, marks: tuple[int, ...] = ()) -> KernelChoice:
        """Return the kernel of an estimator whose parameters were checked."""
        gamma = model.gamma if isinstance(model.gamma, str) else float(model.gamma)
        degree, coef0 = int(model.degree), float(model.coef0)
        return cls(model.kernel, gamma, degree, coef0, bias=bias, scale=model.scale, marks=marks)

    @property
    def is_named(self) -> bool:
        """Whether workers can compute the kernel from rows: it is neither precomputed nor the user's function."""
        return isinstance(self.kernel, str) and self.kernel != "precomputed"

    @property
    def alike(self) -> Kernel:
        """A kernel whose rows take as much memory, before the kernel itself can be made."""
        return KERNELS[self.kernel]() if self.is_named else Linear()  # type: ignore[index]

    def require_named(self, what: str) -> None:
        """Raise InputError if the kernel works in this process's memory only."""
        if not self.is_named:
            name = "a callable kernel" if callable(self.kernel) else "kernel='precomputed'"
            raise InputError(f"{name} needs rows in memory, not {what}; choose a kernel by its name.")

    @property
    def of_distances(self) -> bool:
        """Whether the kernel depends on the difference of two rows alone, so that any rows may be taken for 0."""
        return self.is_named and self.alike.of_distances

    def scaling(self, statistics: Statistics, *, sparse: bool = False) -> Scaling:
        """Return the scaling of rows. ``sparse`` rows of the linear kernel are not shifted by "standard".

        This is scikit-learn's ``with_mean=False``: zeros stay zeros. Other kernels keep the shift, also of `CSRRows`.
        """
        if self.kernel == "linear":
            require_affine(self.scale)
        assert self.scale != RANKS or statistics.ranks is not None, "TrainingData.statistics takes the scale"
        found = Scaling.from_statistics(statistics, self.scale, centre=self.of_distances, marks=self.marks)
        unmoved = sparse and self.scale == "standard" and self.kernel == "linear"
        found = found.unshifted() if unmoved else found
        return found if self.metric is None else found.stretched(self.metric)

    def make(self, statistics: Statistics) -> Kernel:
        """Return the kernel on scaled rows; raise InputError if features or gamma are out of range."""
        scaling = self.scaling(statistics)
        variance = scaling.variance(statistics)
        varies = bool(((statistics.maximum > statistics.minimum) & (scaling.factor != 0)).any())
        underflows = varies and not variance > 0 and not callable(self.kernel)
        if not scaling.is_finite or not np.isfinite(variance) or underflows:
            raise InputError(
                "features are too large, too small or too uneven to be scaled; multiply them by a power of ten first."
            )
        if callable(self.kernel):
            return CallableKernel(self.bias, self.kernel)
        kind = KERNELS[self.kernel]
        # others keep their defaults
        parameters = {each.name: getattr(self, each.name) for each in fields(kind) if hasattr(self, each.name)}
        if "gamma" in parameters:
            parameters["gamma"] = gamma = self._gamma(scaling, statistics)
            if not float(np.finfo(np.float32).tiny) <= gamma <= float(np.finfo(np.float32).max):
                raise InputError(f"gamma={gamma:.3g} is out of range: scale the features, with scale='minmax'.")
        return kind(**parameters)

    def _gamma(self, scaling: Scaling, statistics: Statistics) -> float:
        d = len(statistics.mean)
        if self.gamma == "auto":
            return 1.0 / d
        if self.gamma == "scale":
            variance = scaling.variance(statistics)
            return 1.0 / (d * variance) if variance > 0 else 1.0
        return float(self.gamma)
