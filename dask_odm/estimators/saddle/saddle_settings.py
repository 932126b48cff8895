"""What `SaddleSVC`'s parameters say about what is learned, checked and in the types that all else takes."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dask_odm.estimators.fitting.kernel_choice import KernelChoice
from dask_odm.estimators.fitting.run import FitRun

LINEAR = KernelChoice("linear")


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
    kernel: KernelChoice = LINEAR
    n_landmarks: int | None = None
    landmarks: str = "rp"
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
            block_size=None if model.block_size is None else int(model.block_size),
            n_clients=None if model.n_clients is None else int(model.n_clients),
            kernel=KernelChoice(
                model.kernel,
                model.gamma if isinstance(model.gamma, str) else float(model.gamma),
                int(model.degree),
                float(model.coef0),
                scale=model.scale,
            ),
            n_landmarks=None if model.n_landmarks is None else int(model.n_landmarks),
            landmarks=model.landmarks,
            alphas=alphas,
        )

    def of_machine(self, i: int, count: int, run: FitRun) -> SaddleFit:
        """Those of machine ``i`` of ``count``."""
        return replace(self, run=run)

    def identity(self) -> dict[str, Any]:
        """All settings that make a fit what it is, as JSON; the seed apart."""
        plain = asdict(self)
        del plain["run"], plain["alphas"]  # a path has no checkpoint
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}
