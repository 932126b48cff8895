"""Settings of how a fit runs, whatever it learns: seed, dtype, scaling, memory, scratch folder, checkpoint."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import dask
from dask.utils import parse_bytes
from sklearn.utils import check_random_state

from dask_odm.engine.cluster import Cluster
from dask_odm.learning.training.checkpoints import check_checkpoint, checkpoint_seed

READ_INTO_MEMORY = "256MiB"  # stores and lazy arrays up to this size are read into memory and solved there


def read_limit() -> int:
    """Return the bytes up to which a store is read into memory, from Dask's setting ``dask_odm.read-into-memory``."""
    return int(parse_bytes(dask.config.get("dask_odm.read-into-memory", READ_INTO_MEMORY)))


def drawn(random_state: Any) -> int:
    """Draw a seed from scikit-learn's parameter ``random_state``."""
    return int(check_random_state(random_state).randint(2**31 - 1))


seed_of = lru_cache(maxsize=64)(drawn)  # for integers: seeding a generator anew takes as long as a step of a small fit


@dataclass(frozen=True)
class FitRun:
    """How a fit runs, from an estimator's checked parameters."""

    seed: int  # of every random choice
    dtype: str | None = None  # "float32" or "float64" to compute in; None for the rows' own
    scale: str | None = None  # how features are scaled
    memory_limit: int | str | None = None  # bytes that a worker may use
    checkpoint: str | None = None
    resume: bool = False
    warm_up: Callable[[], object] = lambda: None  # imports and compiles what tasks need, see `Cluster.current`

    @classmethod
    def of(cls, estimator: Any, warm_up: Callable[[], object] = lambda: None) -> FitRun:
        """Build the settings from an estimator with valid parameters; parameters that it lacks keep their defaults.

        Raises InputError if the checkpoint cannot be written, or for ``resume`` without a checkpoint.
        """
        given = {name: getattr(estimator, name, None) for name in ("dtype", "scale", "memory_limit")}
        path = getattr(estimator, "checkpoint", None)
        checkpoint = None if path is None else os.fspath(path)
        resume = bool(getattr(estimator, "resume", False))
        random_state = getattr(estimator, "random_state", None)
        check_checkpoint(checkpoint, resume=resume)
        seed = None
        if resume and not isinstance(random_state, Integral):
            found = checkpoint_seed(checkpoint)
            seed = getattr(estimator, "_drawn", None) if found is None else found
        if seed is None:
            seed = seed_of(int(random_state)) if isinstance(random_state, Integral) else drawn(random_state)
        return cls(seed, **given, checkpoint=checkpoint, resume=resume, warm_up=warm_up)

    def cluster(self) -> Cluster:
        """Return the active client's workers, or this process."""
        return Cluster.current(self.memory_limit, self.warm_up)
