"""Solvers of linear machines over sparse rows by dual coordinate descent.

Descent is for text, whose rows have few features in common. For row i and a machine with margin m and dual variable s,
``g = m − ‖x‖² s``; the dual is largest in s at::

    s ← c (1−θ−g) / (1 + ‖x‖² c)          if g < 1−θ        c the row's stiffness λ c_i / (M (1−θ)²)
        υ c (1+θ−g) / (1 + ‖x‖² υ c)      if g > 1+θ
        0                                 otherwise

and the machine's weights move by ``y x`` times the change. A sweep visits every row once in random order.

`descend_machines` learns many classes at once, one against the rest each. A row's entries are read once for all
machines, whose weights of one feature are adjacent in memory, since fetching weights dominates the cost of a sweep. A
machine leaves once its gap is small enough, or no longer falls quickly; then it goes on alone. No machine's arithmetic
depends on the others. `descend_rows` learns one machine by a loop of its own, which takes .7 of the time.

Coordinate descent soon finds which dual variables are not zero, but is slow for a large λ and for rows that have much
in common. Then conjugate gradients over these variables alone take turns with it (like gradient projection with
conjugate gradients: Moré and Toraldo, SIAM J. Optim. 1, 1991).

Source: Hsieh, Chang, Lin, Keerthi and Sundararajan, *A dual coordinate descent method for large-scale linear SVM*, ICML
2008, for one machine with the hinge loss.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from dask_odm.learning.newton import PrimalSolution, slope_root
from dask_odm.learning.problem.band import band_square, best_dual, row_gap
from dask_odm.learning.problem.sparse_linear import SparsePrimal
from dask_odm.learning.solution import OnStep, Record, SolverSettings, StepClock, StepLog
from dask_odm.linalg.jit import compiled_in_order
from dask_odm.linalg.systems import conjugate_gradients
from dask_odm.linalg.threads import run_threads
from dask_odm.typing import Array

SWEEPS = 4  # sweeps between two computations of the gap, each of which costs about half a sweep
FACE_PRODUCTS = 30  # most products of a step over the dual variables that are not zero, beside 16 sweeps


def descend_machines(
    problem: SparsePrimal,
    machines: int,
    solver: SolverSettings,
    threads: int = 1,
    on_step: OnStep = lambda record: None,
) -> list[PrimalSolution[None]]:
    """Learn classes 0 to ``machines − 1``, each against the rest, until every relative gap is at most ``solver.tol``.

    Rows are unscaled, and ``problem.y`` are codes of classes. ``solver.max_iter`` bounds the sweeps. ``threads`` share
    the machines and never change the result.
    """
    bounds = np.linspace(0, machines, min(threads, machines) + 1).astype(int)
    groups = [np.arange(a, b) for a, b in pairwise(bounds)]
    stiffness = problem.loss.row_stiffness(problem.y, problem.weight)
    parts = run_threads(lambda group: _descend_group(problem, stiffness, group, solver), groups, threads)
    found = [solution for part in parts for solution in part]
    for solution in found:
        for record in solution.history:
            on_step(record)
    return found


def _descend_group(
    problem: SparsePrimal, stiffness: Array, group: Array, solver: SolverSettings
) -> list[PrimalSolution[None]]:
    clock = StepClock()
    n, d = problem.X.shape
    rng = np.random.default_rng(solver.seed)
    left = group
    W = np.zeros((d + 1, len(group)))
    S = np.zeros((n, len(group)))
    histories: dict[int, list[Record]] = {int(machine): [] for machine in group}
    ended: dict[int, PrimalSolution[None]] = {}
    norms = problem.norms()
    band = problem.loss.band
    done = 0
    rows = *problem.arrays(0, n), problem.features.constant, problem.y
    while len(left):
        sweeps = min(SWEEPS, solver.max_iter - done)
        for _ in range(sweeps):
            sweep_machines(*rows, left, stiffness, band, norms, rng.permutation(n), W, S)
        done += sweeps
        primal = np.zeros(len(left))
        gap = np.zeros(len(left))
        judge_machines(*rows, left, stiffness, band, W, S, primal, gap)
        gap /= np.maximum(primal, np.finfo(float).tiny)
        for i, machine in enumerate(left.tolist()):
            history = histories[machine]
            slow = len(history) > 0 and gap[i] > 0.5 * history[-1]["gap"]
            history.append(clock.record(len(history), float(gap[i]), float(primal[i]), float(done)))
            converged = bool(gap[i] <= solver.tol)
            if converged or slow or done >= solver.max_iter:
                w = W[: problem.features.k, i].copy()
                own: PrimalSolution[None] = PrimalSolution(w, float(primal[i]), float(gap[i]), converged, history, done)
                ended[machine] = (
                    own if converged or done >= solver.max_iter else _alone(problem, solver, machine, own, S[:, i])
                )
        stay = np.array([machine not in ended for machine in left.tolist()])
        if not stay.all():
            left = left[stay]
            W = np.ascontiguousarray(W[:, stay])
            S = np.ascontiguousarray(S[:, stay])
    return [ended[machine] for machine in group.tolist()]


def _alone(
    problem: SparsePrimal, solver: SolverSettings, machine: int, ahead: PrimalSolution[None], dual: Array
) -> PrimalSolution[None]:
    """Go on with one of many machines, whose joint sweeps are slow, from its ``dual`` variables s (n,)."""
    mine = problem.y == machine
    own = replace(problem, y=mine.astype(problem.y.dtype), threads=1)  # other threads have their own machines
    solver = replace(solver, max_iter=10 * solver.max_iter)
    start = ahead.x.copy(), np.where(mine, dual, -dual)
    return descend_rows(own, solver, start=start)[0].after(ahead)


def descend_rows(
    problem: SparsePrimal,
    settings: SolverSettings,
    on_step: OnStep = lambda record: None,
    *,
    start: tuple[Array, Array] | None = None,
) -> tuple[PrimalSolution[None], Array]:
    """Minimise P in up to ``settings.max_iter`` sweeps over unscaled rows; also return dual variables (n,).

    ``start`` are weights (k,) and the dual variables that they belong to; zeros without it. Most rows of text never
    have a dual variable, and rarely get one: only one sweep in `SWEEPS` visits rows without. If `SWEEPS` sweeps leave
    more than half of the gap, descent goes on after a step in a face.
    """
    log = StepLog(on_step)
    rng = np.random.default_rng(settings.seed)
    n = len(problem.y)
    norms = problem.norms()
    stiffness = problem.loss.row_stiffness(problem.y, problem.weight)
    w, dual = (np.zeros(problem.features.k), np.zeros(n)) if start is None else start
    sweeps = 0
    passes = 0.0
    gap = np.inf
    slow = start is not None
    while True:
        if slow:
            w, used = _step_in_face(problem, stiffness, norms, w, dual)
            passes += used
        before = gap
        for _ in range(4 if slow else 1):  # more after such a step
            for _ in range(min(SWEEPS + (sweeps == 0), settings.max_iter - sweeps)):  # the last is one over all rows
                rows = np.flatnonzero(dual) if sweeps % SWEEPS else np.arange(n)
                problem.sweep(stiffness, norms, rng.permutation(rows), w, dual)
                sweeps += 1
            scores = problem.scores(w)
            primal = 0.5 * float(w @ w) + problem.losses(scores)[0]
            gap = problem.gap(scores, dual) / primal
            log.add(gap, primal, passes + sweeps + len(log.history) + 1)
            if gap <= settings.tol or sweeps >= settings.max_iter:
                break
        slow = gap > 0.5 * before
        if gap <= settings.tol or sweeps >= settings.max_iter:
            break
    log.settle()
    return PrimalSolution(w, primal, gap, gap <= settings.tol, log.history, sweeps), dual


def _step_in_face(problem: SparsePrimal, stiffness: Array, norms: Array, w: Array, dual: Array) -> tuple[Array, float]:
    """Step to nearly the largest D over the dual variables (n,) that are not zero, which are changed.

    Returns the new weights and the number of passes. The step ends where D is largest along it, since the variables
    that change their sign on the way meet another loss.
    """
    low, high, upsilon = problem.loss.band
    index = np.flatnonzero(dual)
    face = replace(problem, X=problem.X[index], y=problem.y[index], weight=problem.weight[index[: problem.weight.size]])
    y = np.where(face.y == 1, 1.0, -1.0)
    soft = 1.0 / stiffness[index]
    own = dual[index]

    def conjugate(s: Array) -> tuple[Array, Array]:
        """Return the first and second derivative of the rows' conjugate losses at dual variables ``s``."""
        second = np.where(s >= 0, soft, soft / max(upsilon, np.finfo(float).eps))
        return s * second - np.where(s >= 0, low, high), second

    first, second = conjugate(y * own)
    x, _, products = conjugate_gradients(
        lambda p: second * p + face.scores(face.image(p)),
        -y * first - face.scores(w),
        lambda r: r / (norms[index] + second),
        most=FACE_PRODUCTS,
        forcing=1e-4,
    )
    d = face.image(x)
    inner, norm = float(w @ d), float(d @ d)

    def look(step: float) -> tuple[float, float]:
        first, second = conjugate(y * (own + step * x))
        return inner + step * norm + float(first @ (y * x)), norm + float(second @ x**2)

    step = slope_root(look, 1e-2)
    dual[index] += step * x
    return w + step * d, (2 * products + 2) * len(index) / len(dual)


# Loops over machines are compiled in order: else machines that fill no vector are rounded in another way, and bits
# would depend on how many threads share the machines.
@compiled_in_order
def _scores(
    data: Array, indices: Array, start: int, stop: int, constant: float, W: Array, scores: Array
) -> None:  # fmt: skip
    last = W[W.shape[0] - 1]
    for m in range(scores.size):
        scores[m] = constant * last[m]
    for t in range(start, stop):
        value = data[t]
        weights = W[indices[t]]
        for m in range(scores.size):
            scores[m] += value * weights[m]


@compiled_in_order
def sweep_machines(
    data: Array, indices: Array, indptr: Array, constant: float, codes: Array, machines: Array, stiffness: Array,
    band: Array, norms: Array, order: Array, W: Array, S: Array,
) -> None:  # fmt: skip
    """Visit every row once, in ``order``; update weights ``W`` (d + 1, machines) and variables ``S`` (n, machines)."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    scores = np.empty(machines.size)
    change = np.empty(machines.size)
    for i in order:
        start = indptr[i]
        stop = indptr[i + 1]
        norm = norms[i]
        c = stiffness[i]
        _scores(data, indices, start, stop, constant, W, scores)
        largest = 0.0
        for m in range(machines.size):
            y = 1.0 if codes[i] == machines[m] else -1.0
            new = best_dual(y * scores[m] - norm * S[i, m], norm, c, low, high, upsilon)
            change[m] = y * (new - S[i, m])
            largest = max(largest, abs(change[m]))
            S[i, m] = new
        if largest > 0.0:
            for t in range(start, stop):
                value = data[t]
                weights = W[indices[t]]
                for m in range(machines.size):
                    weights[m] += value * change[m]
            last = W[W.shape[0] - 1]
            for m in range(machines.size):
                last[m] += constant * change[m]


@compiled_in_order
def judge_machines(
    data: Array, indices: Array, indptr: Array, constant: float, codes: Array, machines: Array, stiffness: Array,
    band: Array, W: Array, S: Array, primal: Array, gap: Array,
) -> None:  # fmt: skip
    """Add P and P − D of every machine to ``primal`` and ``gap``; P − D is summed by rows like `RowLosses.row_gaps`."""
    low = band[0]
    high = band[1]
    upsilon = band[2]
    scores = np.empty(machines.size)
    for j in range(W.shape[0]):
        for m in range(machines.size):
            primal[m] += 0.5 * W[j, m] * W[j, m]
    for i in range(codes.size):
        c = stiffness[i]
        _scores(data, indices, indptr[i], indptr[i + 1], constant, W, scores)
        for m in range(machines.size):
            margin = scores[m] if codes[i] == machines[m] else -scores[m]
            primal[m] += 0.5 * c * band_square(margin, low, high, upsilon)
            gap[m] += row_gap(S[i, m], margin, c, low, high, upsilon)
