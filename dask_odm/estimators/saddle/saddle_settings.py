"""What `SaddleSVC`'s parameters say about what is learned, checked and in the types that all else takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from dask_odm.estimators.fitting.run import FitRun


@dataclass(frozen=True)
class SaddleFit:
    """Settings of one fit."""

    run: FitRun
    alpha: float | None
    offset: str
    tol: float
    max_iter: int
    block_size: int | None
    n_clients: int | None = None

    @classmethod
    def of(cls, model: Any, run: FitRun) -> SaddleFit:
        """Those of a `SaddleSVC` whose parameters are valid."""
        return cls(
            run=run,
            alpha=None if model.alpha is None else float(model.alpha),
            offset=model.offset,
            tol=float(model.tol),
            max_iter=int(model.max_iter),
            block_size=None if model.block_size is None else int(model.block_size),
            n_clients=None if model.n_clients is None else int(model.n_clients),
        )

    def identity(self) -> dict[str, Any]:
        """All settings that make a fit what it is, as JSON; the seed apart."""
        plain = asdict(self)
        del plain["run"]
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}
