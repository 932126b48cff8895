"""Recipes of the paper's solvers: saddle-point steps over dense rows in memory, and Gilbert's algorithm over any rows.

If rows are dealt to clients, `dask_odm.methods.hulls.clients.recipe` has both.
"""

from __future__ import annotations

from dask_odm.learning.training.checkpoints import open_steps
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.hulls.clients.recipe import by_clients, train_by_clients, train_gilbert_by_clients
from dask_odm.methods.hulls.gilbert import GilbertState, solve_gilbert
from dask_odm.methods.hulls.hulls_of_data import finish, hulls_of, tell
from dask_odm.methods.hulls.saddle_point import SaddleState, solve_saddle_point, solver_bytes
from dask_odm.methods.hulls.settings import SaddleFit


def train_saddle_point(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.saddle_point`, or by clients. Rows are made dense."""
    if by_clients(data, fit):
        return train_by_clients(data, fit)
    data.cluster.require(solver_bytes(data.rows, data.features), 1, f"solver='saddle' over {data.rows} rows")
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        resume, save = open_steps("saddle", data.fingerprint, fit, SaddleState)
        solution = solve_saddle_point(
            problem,
            tol=fit.tol,
            max_iter=fit.max_iter,
            block_size=fit.block_size,
            seed=fit.run.seed,
            resume=resume,
            on_step=tell,
            on_state=save,
        )
        return finish(problem, solution, data, fit)


def train_gilbert(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.gilbert`: by passes over the rows, or by clients if ``n_clients`` is given."""
    if fit.n_clients is not None:
        return train_gilbert_by_clients(data, fit)
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        resume, save = open_steps("gilbert", data.fingerprint, fit, GilbertState)
        solution = solve_gilbert(
            problem, tol=fit.tol, max_iter=fit.max_iter, resume=resume, on_step=tell, on_state=save
        )
        return finish(problem, solution, data, fit)
