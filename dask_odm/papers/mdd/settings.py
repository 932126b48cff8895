"""Settings of one fit of `MDDRidge` or `MDDKernelRidge`: their parameters, checked and converted to plain types."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.training.run import FitRun, KernelChoice

DISCREPANCY = "discrepancy"
CONSENSUS = "consensus"
LOO_LAMS = tuple(10.0**e for e in range(-8, 4))  # the values of λ that lam="loo" chooses from


@dataclass(frozen=True)
class MDDFit:
    """Settings of one fit."""

    run: FitRun
    lams: tuple[float, ...]  # λ, or the values that the leave-one-out error chooses from
    discrepancy: float  # how strongly a shard is pushed away from the others, or drawn to them
    mode: str
    n_partitions: int
    tol: float
    max_iter: int
    fit_intercept: bool = False
    loo: bool = False  # whether the leave-one-out error is computed
    kernel: KernelChoice | None = None  # None for a linear model
    n_landmarks: int | None = None

    @classmethod
    def of(cls, model: Any, run: FitRun, **more: Any) -> MDDFit:
        """Build the settings of one fit from an estimator whose parameters were checked one by one.

        Raises InputError if a λ is not positive and finite, or if there is a discrepancy but only one shard.
        """
        if model.discrepancy and model.n_partitions < 2:
            raise InputError(
                f"discrepancy={model.discrepancy:g} is between shards, but n_partitions={model.n_partitions}; give "
                "n_partitions of at least 2, or leave discrepancy at 0 for ridge regression by one."
            )
        return cls(
            run=run,
            lams=lams_of(model.lam),
            discrepancy=float(model.discrepancy),
            mode=model.mode,
            n_partitions=int(model.n_partitions),
            tol=float(model.tol),
            max_iter=int(model.max_iter),
            loo=bool(model.loo),
            **more,
        )

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the fit, ready for JSON, without the seed."""
        if self.kernel is not None and callable(self.kernel.kernel):
            self.kernel.require_named("a fit with a checkpoint")
        plain = asdict(self)
        del plain["run"]
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}

    @property
    def exchanges(self) -> bool:
        """Whether shards exchange anything."""
        return self.n_partitions > 1 and self.discrepancy != 0


def lams_of(lam: Any) -> tuple[float, ...]:
    """Return the values that a ``lam`` parameter stands for; raise InputError unless all are positive and finite."""
    if isinstance(lam, str):
        return LOO_LAMS
    try:
        values = np.atleast_1d(np.asarray(lam, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise InputError(f"lam must be a number, 'loo' or a sequence of numbers. Got {lam!r} instead.") from error
    if values.ndim != 1 or not values.size or not (np.isfinite(values) & (values > 0)).all():
        raise InputError(f"lam must be positive and finite, or a sequence of such values. Got {lam!r} instead.")
    return tuple(values.tolist())
