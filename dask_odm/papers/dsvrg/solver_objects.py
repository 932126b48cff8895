"""The solver objects of SVRG, CSVRG and DSVRG."""

from __future__ import annotations

from dataclasses import KW_ONLY
from numbers import Real
from typing import Any, ClassVar

from sklearn.utils._param_validation import Interval, StrOptions

from dask_odm.learning.parameters import COUNT, COUNT_OR_NONE, SolverObject, with_parameters


@with_parameters
class SVRG(SolverObject):
    """Stochastic variance-reduced gradient steps, for the linear kernel and rows in memory.

    Parameters
    ----------
    step_size : {"auto", "bb"} or float, default="auto"
        Step size η. "auto" is 1/(4L), with L = 1 + λ max(c̃ ‖x‖²)/(1−θ)² over the rows, whose weights c̃ are scaled to
        mean 1. "bb" is the step of Barzilai and Borwein in every epoch, up to 1/L.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "step_size": [StrOptions({"auto", "bb"}), Interval(Real, 0.0, None, closed="neither")]
    }

    step_size: float | str = "auto"


@with_parameters
class DSVRG(SVRG):
    """SVRG that passes the weights from worker to worker, partition by partition, for the linear kernel.

    Parameters
    ----------
    n_partitions : int or None, default=None
        Number of partitions. None: eight, or fewer below 128 rows.
    stage_steps : int or None, default=None
        Number of steps of one *hop*, the turn of a worker. None: all rows of a partition.
    n_strata : int, default=64
        Maximum number of landmarks, and so of strata, by which partitions are balanced. Rows of a sparse store are
        dealt at random.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {
        "n_partitions": COUNT_OR_NONE,
        "stage_steps": COUNT_OR_NONE,
        "n_strata": COUNT,
    }

    _: KW_ONLY
    n_partitions: int | None = None
    stage_steps: int | None = None
    n_strata: int = 64


@with_parameters
class CSVRG(SVRG):
    """SVRG that takes its snapshots from a coreset, for the linear kernel. It only ends near the optimum.

    Parameters
    ----------
    coreset_size : int, default=1024
        Number of rows of the coreset, which are drawn from every stratum.
    n_strata : int, default=64
        Maximum number of landmarks, and so of strata, from which the coreset is drawn.
    """

    _parameter_constraints: ClassVar[dict[str, list[Any]]] = {"coreset_size": COUNT, "n_strata": COUNT}

    _: KW_ONLY
    coreset_size: int = 1024
    n_strata: int = 64
