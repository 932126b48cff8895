"""What `SaddleSVC`'s parameters say about what is learned, checked and in the types that all else takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dask_odm.learning.solver_objects import own_parameters
from dask_odm.learning.training.kernel_choice import KernelChoice
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.hulls.solver_objects import HULL_SOLVERS

LINEAR = KernelChoice("linear")


@dataclass(frozen=True)
class SaddleFit:
    """Settings of one fit."""

    run: FitRun
    alpha: float | None
    offset: str
    tol: float
    max_iter: int
    block_size: int | None = None
    n_clients: int | None = None
    kernel: KernelChoice = LINEAR
    n_landmarks: int = 1000
    choice: str = "rp"
    alphas: tuple[float | None, ...] = ()

    @classmethod
    def of(cls, model: Any, run: FitRun, alphas: tuple[float | None, ...] = ()) -> SaddleFit:
        """Those of a `SaddleSVC` whose parameters are valid."""
        return cls(
            run=run,
            alpha=None if model.alpha is None else float(model.alpha),
            offset=model.offset,
            tol=float(model.tol),
            max_iter=int(model.max_iter),
            kernel=KernelChoice(
                model.kernel,
                model.gamma if isinstance(model.gamma, str) else float(model.gamma),
                int(model.degree),
                float(model.coef0),
                scale=model.scale,
            ),
            alphas=alphas,
            **own_parameters(model.solver, HULL_SOLVERS),
        )

    def of_machine(self, i: int, count: int, run: FitRun) -> SaddleFit:
        """Those of machine ``i`` of ``count``."""
        return replace(self, run=run)

    def identity(self) -> dict[str, Any]:
        """All settings that make a fit what it is, as JSON; the seed apart."""
        plain = asdict(self)
        del plain["run"], plain["alphas"]  # a path has no checkpoint
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}
