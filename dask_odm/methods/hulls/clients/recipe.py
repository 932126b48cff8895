"""Recipes of the paper's solvers with a server and clients: Saddle-DSVC, and distributed Gilbert."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.scratch import scratch_folder
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.hulls.clients.problem import ClientHulls
from dask_odm.methods.hulls.clients.rows import ClientState
from dask_odm.methods.hulls.clients.solver import ServerState, solve_by_clients
from dask_odm.methods.hulls.clients.workers import (
    DEFAULT_CLIENTS,
    ArrayRange,
    ClientSource,
    Preparation,
    RowClients,
    StoreRange,
    client_bytes,
    prepared_for,
    row_ranges,
)
from dask_odm.methods.hulls.gilbert import GilbertState, solve_gilbert
from dask_odm.methods.hulls.hulls_of_data import finish, hulls_of, tell
from dask_odm.methods.hulls.nearest_point import HullSolution, settle_overlap
from dask_odm.methods.hulls.settings import SaddleFit
from dask_odm.typing import Array

ADVICE = "Use more workers or more memory, or solver='mnp', which holds no rows."


def by_clients(data: TrainingData, fit: SaddleFit) -> bool:
    """Whether rows are dealt to clients: if ``n_clients`` is given, or if they are not in memory."""
    return fit.n_clients is not None or not isinstance(data, MemoryData)


@dataclass(frozen=True, eq=False)
class FittedState(ServerState):
    """The checkpoint: a `ServerState`, and log e and p (n,) of all clients, one after the other.

    The rows of client i are ``bounds[i]:bounds[i + 1]``.
    """

    logs: Array
    p: Array
    bounds: Array


def train_by_clients(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.clients.solver`.

    Raises InputError if there are fewer rows than clients, and MemoryLimitError if the workers together cannot hold
    the rows.
    """
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        preparation = prepared_for(problem, fit.block_size, fit.run.seed)
        resume, save = open_steps(f"dsvc {client_count(data, fit)}", data.fingerprint, fit, FittedState)
        require_state(fit, resume is None or _is_sound(resume, preparation.size, client_count(data, fit)))
        states = None if resume is None else _client_states(resume)
        with _clients(data, fit, preparation, states) as clients:
            hulls = ClientHulls(clients, preparation.totals(problem.totals), fit.alpha, data.features)
            solution = solve_by_clients(
                hulls,
                tol=fit.tol,
                max_iter=fit.max_iter,
                block_size=fit.block_size,
                seed=fit.run.seed,
                within=preparation.within,
                resume=None if resume is None else _server_state(resume),
                on_step=tell,
                on_state=_saver(fit, clients, save),
                settle=partial(settle_overlap, problem),
            )
        return finish(problem, _in_features(solution, preparation), data, fit)


def train_gilbert_by_clients(data: TrainingData, fit: SaddleFit) -> Trained:
    """Train by `dask_odm.methods.hulls.gilbert`; every client sends its best points. Raises as `train_by_clients`."""
    with single_threaded_blas, rescaling_advised():
        problem = hulls_of(data, fit)
        preparation = prepared_for(problem, None, fit.run.seed)
        resume, save = open_steps(f"dgilbert {client_count(data, fit)}", data.fingerprint, fit, GilbertState)
        with _clients(data, fit, preparation, None) as clients:
            hulls = ClientHulls(clients, problem.totals, fit.alpha, data.features)
            solution = solve_gilbert(
                hulls,
                tol=fit.tol,
                max_iter=fit.max_iter,
                resume=resume,
                on_step=tell,
                on_state=save,
                costs=lambda: hulls.costs,
                settle=partial(settle_overlap, problem),
            )
        return finish(problem, solution, data, fit)


def client_count(data: TrainingData, fit: SaddleFit) -> int:
    """Return ``n_clients``, or the paper's number (fewer for fewer rows), whatever the workers."""
    if fit.n_clients is None:
        return min(DEFAULT_CLIENTS, data.rows)
    if fit.n_clients > data.rows:
        raise InputError(f"n_clients must be at most the number of rows, {data.rows}. Got {fit.n_clients} instead.")
    return fit.n_clients


@contextmanager
def _clients(
    data: TrainingData, fit: SaddleFit, preparation: Preparation, states: Sequence[ClientState] | None
) -> Iterator[RowClients]:
    count = client_count(data, fit)
    sources = _sources(data, count)
    cluster = data.cluster
    held = _bytes_of_one(data, sources, preparation) * -(-count // cluster.workers)
    cluster.require(held, 1, f"Holding {data.rows} rows as {count} clients on {cluster.workers} workers", ADVICE)
    if cluster.client is None:
        yield RowClients(cluster, preparation, sources, states)
        return
    with scratch_folder() as folder:
        yield RowClients(cluster, preparation, sources, states, folder)


def _bytes_of_one(data: TrainingData, sources: Sequence[ClientSource], preparation: Preparation) -> int:
    """Return the peak bytes of the largest client."""
    sizes = -(-data.rows // len(sources)), data.features, preparation.size
    arrays = [source.X for source in sources if isinstance(source, ArrayRange)]
    if not arrays or not preparation.keeps_sparse(arrays[0]):
        return client_bytes(*sizes)
    return client_bytes(*sizes, max(X.nnz for X in arrays))


def _sources(data: TrainingData, count: int) -> list[ClientSource]:
    ranges = row_ranges(data.rows, count)
    if isinstance(data, StoredData):
        return [StoreRange(data.store, data.targets.columns, *each) for each in ranges]
    assert isinstance(data, MemoryData)
    held = data.held
    return [ArrayRange(held.X[a:b], held.codes[a:b], held.block_weights[a:b]) for a, b in ranges]


def _in_features(solution: HullSolution, preparation: Preparation) -> HullSolution:
    """Convert a solution in the clients' coordinates to one in the features'."""
    return replace(solution, points=preparation.back(solution.points))


# Checkpoints --------------------------------------------------------------------------------------------------------


def _saver(fit: SaddleFit, clients: RowClients, save: Callable[[FittedState], None]) -> Callable[[ServerState], object]:
    """Return the function that saves the server's state with the clients'. It fetches them only for a checkpoint."""
    if fit.run.checkpoint is None:
        return lambda state: None

    def saved(state: ServerState) -> None:
        states = clients.states()
        bounds = np.cumsum([0.0, *(len(each.p) for each in states)])
        logs, p = (np.concatenate([getattr(each, name) for each in states]) for name in ("logs", "p"))
        save(FittedState(**vars(state), logs=logs, p=p, bounds=bounds))

    return saved


def _server_state(state: FittedState) -> ServerState:
    values: dict[str, Any] = {field.name: getattr(state, field.name) for field in fields(ServerState)}
    return ServerState(**values)


def _client_states(state: FittedState) -> list[ClientState]:
    at = state.bounds.astype(np.int64)[1:-1]
    return [ClientState(*parts) for parts in zip(np.split(state.logs, at), np.split(state.p, at), strict=True)]


def _is_sound(state: FittedState, size: int, count: int) -> bool:
    bounds = state.bounds
    n = len(state.logs)
    whole = state.p.shape == (n,) and bounds.shape == (count + 1,) and bounds[0] == 0 and bounds[-1] == n
    shaped = state.w.shape == (size,) and state.points.shape == (2, size) and state.now.shape == state.before.shape
    return bool(whole and shaped and (np.diff(bounds) >= 0).all() and state.shift.shape == (2,))
