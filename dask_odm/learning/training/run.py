"""How one fit runs, apart from what is learned: seed, number type, scaling, memory, scratch folder, checkpoint."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Any

import dask
from dask.utils import parse_bytes
from sklearn.utils import check_random_state

from dask_odm.learning.training.checkpoints import check_checkpoint, checkpoint_seed

READ_INTO_MEMORY = "256MiB"  # stores, and lazy arrays, up to this are read into memory and solved there


def read_limit() -> int:
    """Bytes of rows up to which a store is read into memory: ``dask_odm.read-into-memory`` of Dask's configuration."""
    return int(parse_bytes(dask.config.get("dask_odm.read-into-memory", READ_INTO_MEMORY)))


def drawn(random_state: Any) -> int:
    """A seed from what scikit-learn's parameter ``random_state`` may be."""
    return int(check_random_state(random_state).randint(2**31 - 1))


seed_of = lru_cache(maxsize=64)(drawn)  # of a number: to seed a generator anew takes as long as a step of a small fit


@dataclass(frozen=True)
class FitRun:
    """What an estimator's parameters say about how a fit runs, checked.

    Parameters
    ----------
    seed : int
        Of every random choice.
    dtype : str or None
        "float32" or "float64" to compute in; None: that of the rows.
    scale : str or None
        How features are scaled.
    memory_limit : int, str or None
        Bytes a worker may use.
    scratch : str or None
        Folder for temporary data that all workers see.
    checkpoint : str or None
    resume : bool
    """

    seed: int
    dtype: str | None = None
    scale: str | None = None
    memory_limit: int | str | None = None
    scratch: str | None = None
    checkpoint: str | None = None
    resume: bool = False

    @classmethod
    def of(cls, estimator: Any) -> FitRun:
        """That of an estimator whose parameters are valid; those it does not have are left at their defaults.

        Raises
        ------
        InputError
            A checkpoint that cannot be written, or ``resume`` without one.
        """
        given = {name: getattr(estimator, name, None) for name in ("dtype", "scale", "memory_limit")}
        scratch, checkpoint = (
            None if path is None else os.fspath(path)
            for path in (getattr(estimator, name, None) for name in ("scratch", "checkpoint"))
        )
        resume = bool(getattr(estimator, "resume", False))
        random_state = getattr(estimator, "random_state", None)
        check_checkpoint(checkpoint, resume=resume)
        seed = None
        if resume and not isinstance(random_state, Integral):
            found = checkpoint_seed(checkpoint)
            seed = getattr(estimator, "_drawn", None) if found is None else found
        if seed is None:
            seed = seed_of(int(random_state)) if isinstance(random_state, Integral) else drawn(random_state)
        return cls(seed, **given, scratch=scratch, checkpoint=checkpoint, resume=resume)
