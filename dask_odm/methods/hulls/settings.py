"""Settings of one fit of `SaddleSVC`: its parameters, checked and converted to plain types."""

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
        """Build the settings of one fit from a `SaddleSVC` whose parameters were checked."""
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
        """Return the settings of machine ``i`` of ``count``, which differ in ``run`` alone."""
        return replace(self, run=run)

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the fit, ready for JSON, without the seed."""
        plain = asdict(self)
        del plain["run"], plain["alphas"]  # a path has no checkpoint
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}
