"""Recipe of the landmark solver: kernels by Newton on the Nyström problem, O(n r) per pass, wherever the rows are."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT

from dask_odm.errors import InputError, MemoryLimitError
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose
from dask_odm.kernels.shape import Shape
from dask_odm.learning.distributed_products import require_memory
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.losses import BandLoss, RowLosses, certified_gap, span_gap
from dask_odm.learning.problem.products import Products, Purpose
from dask_odm.learning.solution import StepClock
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import (
    Trained,
    report_step,
    require_finite_solution,
    rescaling_advised,
    stopped_at,
)
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.methods.as_predicted import Claim, held_as_predicted
from dask_odm.methods.landmark.memory import LandmarkMemory
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import SpanQuery, SpanSums
from dask_odm.methods.landmark.solver import (
    FIRST_STRIDE,
    LandmarkState,
    carried_over,
    rough_solution,
    solve_landmark,
    start_rows,
    with_support,
)
from dask_odm.methods.left_out import LEFT_OUT_BYTES, attributes_of, inverse_factor
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.kernel_model import KernelModel, predicting_bytes
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
FEWER = ("fewer landmarks (solver=Landmark(n_landmarks=…))",)  # advice, see `Cluster.require`
CERTIFICATE = Purpose.of_products("A certificate", 48 * 8, "Leave certify out, or use more memory.")


def train_landmark(data: TrainingData, fit: ODMFit) -> Trained:
    """Train over landmarks; equal rows in memory are merged first."""
    require_suited(fit)
    clock = StepClock()
    given = data
    data = data if fit.groups is not None else data.merged()
    count, spare = _planned(data, fit)
    seen = data.seen_by(fit.kernel)
    with rescaling_advised():
        logger.info("%d rows, %d landmarks, Newton by passes; %s", data.rows, count, data.cluster)
        fit.require_machines(1)
        known = landmarks_of_last(seen, count, fit, lambda: drawn_landmarks(seen, count, "uniform", fit).index)
        chosen = first_landmarks(seen, count, fit) if known is None else known[0]
        start = None if known is None else known[1][0]
        landmarks, solution, span = _solve(seen, chosen, start, count, spare, fit, clock)
        left = {}
        if fit.loo:
            left = attributes_of(fit, given, data, *left_out(span, landmarks, solution.x, data, fit))
        del span
        raw, numbers = seen.chosen_pivots(landmarks.index)
        claim = certificate(seen, landmarks, solution.x, fit)
    trained = finish(seen, landmarks, raw, numbers, solution, claim, fit)
    trained.attributes.update(left)
    # unlike the gap of the records, their objective holds for the kernel itself
    return trained if claim is None else held_as_predicted(trained, claim, seen.kernel, data, fit, ("objective",))


def nystrom_problem(seen: KernelData, landmarks: Landmarks, loss: BandLoss, budget: int, draws: int) -> SpanProblem:
    """Build the Nyström problem of ``landmarks`` over all rows.

    This process may keep ``budget`` bytes of kernel values of rows in memory. A pass over a store draws at most
    ``draws`` rows.
    """
    data = seen.data
    query = SpanQuery(seen.kernel, landmarks.rows, loss, seen.scaling)
    if seen.scaled is not None:
        return SpanProblem.over_rows(query, seen.scaled, *data.columns(), budget, CPU_COUNT)
    problem = SpanProblem.over_passes(query, data.passes(len(landmarks)))
    memory = LandmarkMemory(len(landmarks), data.rows, data.features, landmarks.rows.itemsize)
    data.require_pass(memory.streamed(draws), f"A pass over the store for {len(landmarks)} landmarks", FEWER)
    return problem


def require_suited(fit: ODMFit) -> None:
    """Raise InputError if landmarks are not for the kernel."""
    if fit.kernel.kernel == "precomputed":
        raise InputError("solver='landmark' needs rows, not kernel='precomputed'; choose solver='exact'.")
    if fit.kernel.kernel == "linear":
        raise InputError("solver='landmark' is for kernels other than 'linear', which solver='newton' learns exactly.")


def landmark_count(data: TrainingData, fit: ODMFit) -> int:
    """Return the number of landmarks, at most one for each row."""
    count: int = min(data.rows, fit.own.n_landmarks)
    if fit.own.n_landmarks > data.rows:
        logger.info("n_landmarks=%d is more than the %d different rows: each may be one", fit.own.n_landmarks, count)
    return count


def memory_advice(data: TrainingData, count: int) -> str:
    """Return what to do if ``count`` landmarks do not fit; those of sparse rows may be a million wide."""
    if data.is_sparse and data.features > count:  # fewer features take less than the landmarks' Gram matrix
        return (
            f"Landmarks of sparse rows, as of texts, are dense rows of {data.features:,} features: use kernel='linear' "
            "(--kernel linear), or ingest texts with fewer features, n_features=1024 (--hash 1024)."
        )
    return f"Use {FEWER[0]} or more memory."


def _planned(data: TrainingData, fit: ODMFit) -> tuple[int, int]:
    """Return the number of landmarks, and the bytes of this process that Newton leaves for kernel values.

    Raises MemoryLimitError if they do not fit, or if a certificate afterwards would not.
    """
    here = data.run.here()
    count = landmark_count(data, fit)
    left_out = LEFT_OUT_BYTES * data.row_numbers[0] if fit.loo else 0
    shape = Shape(fit.kernel.alike, data.rows, data.features, data.dtype.itemsize, CPU_COUNT)
    made = shape.of(count).rows + predicting_bytes(shape, count)
    needed = data.held_bytes() + max(left_out, LandmarkMemory.of(data, count).solve(), made)
    here.require(needed, 1, f"Newton over {count} landmarks", memory_advice(data, count))
    if fit.own.certify:  # raised now, not after the fit
        require_memory(fit.kernel.alike, (shape.n, shape.d), data.dtype, here, CERTIFICATE, data.held_bytes())
    return count, here.memory - needed


def first_landmarks(seen: KernelData, count: int, fit: ODMFit) -> Landmarks:
    """Draw ``count`` landmarks; only a share of them if the others are drawn by support."""
    if fit.own.choice != "support":
        return drawn_landmarks(seen, count, fit.own.choice, fit)
    few = count < seen.data.rows  # else every row is a landmark
    return drawn_landmarks(seen, -(-count // FIRST_STRIDE) if few else count, "uniform", fit)


def drawn_landmarks(seen: KernelData, count: int, method: str, fit: ODMFit) -> Landmarks:
    # residuals are computed on 20 rows per landmark, so few that a pass costs no more than Newton's
    return choose(seen.kernel, seen.pivots(count, method), count, method=method, seed=fit.run.seed, rows=20 * count)


def landmarks_of_last(
    seen: KernelData, count: int, fit: ODMFit, draw: Callable[[], Array]
) -> tuple[Landmarks, Array] | None:
    """Return landmarks of the last fit with others among later rows, and coefficients (machines, r) of its function.

    ``draw`` returns numbers of ``count`` rows of all. Those of later rows are taken, as many of the last fit's as are
    then wanted, and if it had fewer, others. Return None if there is no fit to start from, or if it had more.
    """
    last = fit.last
    if last is None or len(last.numbers) > count or not last.was_of(seen.data):
        return None
    kept = seen.data.row_numbers[1]
    places = last.numbers if kept is None else np.minimum(np.searchsorted(kept, last.numbers), len(kept) - 1)
    there = np.flatnonzero(last.numbers == (places if kept is None else kept[places]))
    pool = seen.pivots(count, "uniform")
    known = Landmarks(seen.kernel, pool.take(places[there]), places[there])
    drawn = draw()
    rng = np.random.default_rng(np.random.SeedSequence(fit.run.seed, spawn_key=(2,)))
    later = drawn[drawn > places.max(initial=-1)]
    index = np.concatenate([later, rng.permutation(known.index)[: count - len(later)]])
    others = rng.permutation(drawn[~np.isin(drawn, index)])[: count - len(index)]
    index = np.sort(np.concatenate([index, others]))
    landmarks = Landmarks.of(seen.kernel, pool.take(index), index)
    return landmarks, np.array([carried_over(known, a, landmarks) for a in last.coefficients[:, there]])


def _solve(
    seen: KernelData, chosen: Landmarks, known: Array | None, count: int, memory: int, fit: ODMFit, clock: StepClock
) -> tuple[Landmarks, PrimalSolution[SpanSums], SpanProblem]:
    """Return all landmarks, Newton's solution over them, and their Nyström problem.

    ``chosen`` are all landmarks, or the first of them if more are drawn by support. A problem with a few of them over a
    sample of the rows is solved first: its solution is the start, and tells which rows have a dual variable. That is
    not needed if coefficients to start from are ``known``.
    ``memory`` bounds the bytes of kernel values that are kept.
    """
    data = seen.data
    loss = fit.loss(data)
    n = data.rows
    seed = fit.run.seed
    size = start_rows(n, count)
    resume, save = open_steps("landmark", data.fingerprint, fit, LandmarkState)
    landmarks = chosen
    start = np.zeros(len(chosen)) if known is None else known
    by_support = known is None and fit.own.choice == "support" and count < n
    if by_support or (known is None and resume is None and 2 * size < n):
        few = chosen
        if not by_support:
            few = Landmarks(chosen.kernel, chosen.rows[::FIRST_STRIDE], chosen.index[::FIRST_STRIDE])
        # of a sample, values are used twice: recomputing is faster
        rough = nystrom_problem(seen, few, loss, memory if 2 * size >= n else 0, size)
        a = rough_solution(rough, few, n, size, seed, memory, CPU_COUNT)
        landmarks = with_support(rough, few, a, count, seed) if by_support else chosen
        start = carried_over(few, a, landmarks)
        del rough
    r = len(landmarks)
    sound = resume is None or (
        resume.a.shape == (r,) and resume.sketched.shape in ((0,), (r,)) and min(resume.drawn, resume.steps) >= 0
    )
    require_state(fit, sound)
    span = nystrom_problem(seen, landmarks, loss, memory, size)
    solution = solve_landmark(
        span,
        landmarks,
        start,
        tol=fit.solver.tol,
        max_iter=fit.solver.max_iter,
        seed=seed,
        threads=CPU_COUNT,
        clock=clock,
        resume=resume,
        on_step=report_step,
        on_state=save,
    )
    return landmarks, solution, span


def left_out(
    span: SpanProblem, landmarks: Landmarks, a: Array, data: TrainingData, fit: ODMFit
) -> tuple[Array, Array | None]:
    """Return scores of all rows at the solution ``a`` (r,), and leverages of active ones: float64 (2, n).

    If groups are left out, also return the value (n,) of every row without its group, else None.
    """
    needed = LandmarkMemory.of(data, len(landmarks)).leaving_out()
    data.require_pass(needed, f"Leaving out rows of a model of {len(landmarks)} landmarks", FEWER)
    # the Hessian is summed in float64; kernel values of rows are multiplied in the landmarks' own type
    hessian = landmarks.gram + span.hessian(a)
    inverse = inverse_factor(hessian)
    found = span.leverages(a, inverse.astype(span.query.dtype))
    groups = fit.groups_of(data)
    return found, None if groups is None else span.without_groups(a, hessian, inverse, *groups)


def certificate(seen: KernelData, landmarks: Landmarks, a: Array, fit: ODMFit) -> Claim | None:
    """Return the certificate for the kernel itself if asked for, or if it is cheap for rows in memory; else None."""
    data = seen.data
    cheap = seen.scaled is not None and is_cheap(data.rows, len(landmarks)) and not fit.trial
    if not fit.own.certify and not cheap:
        return None
    try:
        with seen.products(CERTIFICATE) as products:
            rows, y, weight = data.taking_part
            places = np.searchsorted(rows, landmarks.index)
            return _certified(fit.row_losses(y, weight), products, landmarks, places, a, exact=fit.own.certify)
    except MemoryLimitError:
        if fit.own.certify:
            raise
        return None  # it was not asked for


def is_cheap(n: int, r: int) -> bool:
    """Return whether the bound by the landmarks' residual costs next to nothing for ``n`` rows and ``r`` landmarks."""
    # so many multiplications take a fraction of a second; if half of the rows are landmarks, the bound is worth more
    return n * float(r) ** 2 <= (2e10 if 2 * r >= n else 4e9)


def _certified(
    losses: RowLosses, products: Products, landmarks: Landmarks, places: Array, a: Array, *, exact: bool
) -> Claim | None:
    """Return P of landmark coefficients ``a`` (r,) and a lower bound of P*, or None if the bound says nothing.

    The landmarks are the training rows at ``places`` (r,). ``exact`` takes a pass over the kernel of all active rows;
    otherwise the landmarks' Nyström residual gives the bound. Both are rigorous and use kernel values in float64.
    Values in float32 would certify another kernel: they change P by 1e-5 of it, and the gap by up to 8e-2.
    """
    everyone = np.arange(products.n)
    square_norm = float(a @ (landmarks.gram @ a))
    margins = losses.y * products.cross(everyone, places, a, double_precision=True)
    s = losses.dual_candidate(margins)
    if exact:
        point = certified_gap(losses, margins, square_norm, products)
    else:
        coefficients = losses.y * s
        active = np.flatnonzero(coefficients)
        dual_image = products.cross(places, active, coefficients[active], double_precision=True)
        residual = landmarks.residual(products.rows(everyone), CPU_COUNT)
        point = span_gap(losses, margins, square_norm, dual_image, landmarks, residual)
        if not point.gap <= 0.1:  # a larger bound says nothing
            return None
    return Claim(point.primal, point.dual, 0.5 * square_norm, s)


def finish(
    seen: KernelData,
    landmarks: Landmarks,
    raw: Any,
    numbers: Array,
    solution: PrimalSolution[Any],
    claim: Claim | None,
    fit: ODMFit,
) -> Trained:
    """Build the model of a solution. Its landmarks are the support: ``raw`` rows with their ``numbers``."""
    a = solution.x
    kernel = landmarks.kernel
    require_finite_solution(a, solution.gap)
    intercept = np.array([kernel.bias * float(a.sum())])
    model = KernelModel(replace(kernel, bias=0.0), seen.scaling, raw, a[None], intercept)
    attributes = {
        "support_": numbers,
        "dual_gap_": float("nan") if claim is None else claim.gap,
        "history_": solution.history,
        "n_iter_": max(1, solution.steps),
    }
    return Trained(model, attributes, short_warning(solution, fit))


def short_warning(solution: PrimalSolution[Any], fit: ODMFit) -> str | None:
    """Return a warning if a solution is not converged."""
    if solution.converged:
        return None
    over = stopped_at(solution.gap, fit.solver.tol).replace(", above", " over the span of the landmarks, above")
    return f"{over} Increase max_iter ({fit.solver.max_iter} steps), or decrease lam."
