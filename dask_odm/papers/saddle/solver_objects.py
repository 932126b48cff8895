"""The solver objects of `SaddleSVC`, and the settings of one fit."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Any

from dask_odm.kernels.pivots import RACES
from dask_odm.learning.machines import Scheme
from dask_odm.learning.parameters import (
    COUNT,
    Registered,
    SolverClasses,
    SolverObject,
    parameter,
    solver_object,
    solver_word,
    with_parameters,
)
from dask_odm.learning.training.run import FitRun, KernelChoice


@with_parameters
class MNP(SolverObject):
    """Wolfe's minimum-norm point algorithm, with a pass over the rows per iteration.

    Parameters
    ----------
    n_landmarks : int, default=1000
        Number of landmarks, for kernels other than "linear".
    choice : {…}, default="rp"
        How landmarks are drawn. {…}

    References
    ----------
    Wolfe: *Finding the nearest point in a polytope*, Mathematical Programming 11, 1976.
    """

    n_landmarks: int = parameter(1000, COUNT)
    _: KW_ONLY
    choice: str = parameter("rp", Registered(RACES))


@with_parameters
class Saddle(SolverObject):
    """Saddle-SVC and Saddle-DSVC: steps in random blocks of coordinates, and multiplicative weights of the rows.

    Sparse rows stay sparse if steps move all coordinates and the rows are not scaled, and are made dense otherwise.

    Parameters
    ----------
    block_size : int or None, default=None
        Number of coordinates that a step changes. None: all of them. The steps of the paper change 1.
    n_clients : int or None, default=None
        Number of clients to which the rows are dealt. Rows stay with their clients on the workers. Only vectors of
        features and numbers are sent, and ``history_`` counts them. None: 20 over a store that is not read into memory,
        otherwise no clients.

    References
    ----------
    Jin, Huang, Li: *SVM via Saddle Point Optimization: New Bounds and Distributed Algorithms*, 2017.
    """

    block_size: int | None = parameter(None, COUNT, None)
    _: KW_ONLY
    n_clients: int | None = parameter(None, COUNT, None)


@with_parameters
class Gilbert(SolverObject):
    """Gilbert's algorithm, with a pass over the rows per iteration, and more iterations the nearer the hulls are.

    Parameters
    ----------
    n_clients : int or None, default=None
        Number of clients to which the rows are dealt, as in `Saddle`. None: no clients.
    """

    n_clients: int | None = parameter(None, COUNT, None)


HULL_SOLVERS: SolverClasses = (MNP, Saddle, Gilbert)


@dataclass(frozen=True)
class SaddleFit:
    """Settings of one fit of `SaddleSVC`: its parameters, checked and converted to plain types.

    ``own`` is the solver object, and ``word`` the name of the solver that was asked for.
    """

    run: FitRun
    alpha: float | None
    offset: str
    tol: float
    max_iter: int
    kernel: KernelChoice
    own: Any
    word: str = "auto"
    scheme: Scheme = "ovo"
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
            kernel=KernelChoice.of(model, marks=run.marks),
            own=solver_object(model.solver, HULL_SOLVERS) or MNP(),
            word=solver_word(model.solver),
            scheme=model.multi_class,
            alphas=alphas,
        )

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the fit, ready for JSON, without the seed."""
        plain = asdict(self)
        del plain["run"], plain["word"], plain["scheme"], plain["alphas"]  # a path has no checkpoint
        return plain | {"own": self.own.get_params(), "dtype": self.run.dtype, "scale": self.run.scale}
