"""Recipe of landmarks for many classes: all machines learn in lockstep, over the same landmarks.

Machines begin with dual coordinate descent, if rows are in memory and their Nyström features are not too many to be
kept. It reaches a usual tolerance unless λ is large. Machines then go on by Newton's method, each by itself. What is
left, and rows of a store, are for Newton's method in lockstep: a pass serves all machines. Rows in memory are sorted by
class, and their kernel values at the landmarks are kept if there is room. Very many machines learn in several groups,
one after the other, so that their coordinates take little memory. Groups depend on the number of landmarks alone.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.linalg import lapack
from scipy.sparse import issparse

from dask_odm.data.rows.memory import taken
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import UniformRace
from dask_odm.learning.machines import joined_warning, runs_of
from dask_odm.learning.newton import PrimalSolution
from dask_odm.learning.problem.linear import MOST_GROUPS
from dask_odm.learning.problem.losses import BandLoss
from dask_odm.learning.problem.nystrom_features import coordinates, landmark_weights, rounding
from dask_odm.learning.solution import Record, StepClock, record_after
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.recipe import (
    Join,
    Machines,
    Parts,
    Trained,
    report_step,
    require_finite_solution,
    rescaling_advised,
)
from dask_odm.learning.training.training_data import KernelData, TrainingData
from dask_odm.linalg.rows import ArrayRows
from dask_odm.methods.as_predicted import held_as_predicted
from dask_odm.methods.auto_limits import AUTO
from dask_odm.methods.exact.systems import LIMITS
from dask_odm.methods.landmark.class_means import ClassMeans
from dask_odm.methods.landmark.descent import FeatureDescent
from dask_odm.methods.landmark.lockstep import Lockstep, LockstepState
from dask_odm.methods.landmark.machines import MachineProblem, MachineQuery, TargetQuery
from dask_odm.methods.landmark.memory import LandmarkMemory
from dask_odm.methods.landmark.query import SpanQuery
from dask_odm.methods.landmark.recipe import (
    FEWER,
    certificate,
    drawn_landmarks,
    finish,
    first_landmarks,
    landmark_count,
    landmarks_of_last,
    left_out,
    memory_advice,
    nystrom_problem,
    require_suited,
    short_warning,
)
from dask_odm.methods.landmark.sketch import SKETCH
from dask_odm.methods.left_out import LEFT_OUT_BYTES, attributes_of, joined_left_out, left_out_values
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.kernel_model import KernelModel
from dask_odm.typing import Array


def train_machines_at_landmarks(data: TrainingData, fit: ODMFit, machines: Machines, pairs: int) -> Trained | None:
    """Train all machines of many classes over the same landmarks, drawn once among the rows of all.

    Returns None if each is to be certified.
    """
    if fit.own.certify:
        return None
    require_suited(fit)
    clock = StepClock()
    given = data
    data = data.merged()
    count = landmark_count(data, fit)
    rows = data.rows * 2 // pairs if pairs else data.rows  # of a machine, on average
    most, preconditioned, spare = _planned(data, fit, rows, count, len(machines), len(data.class_weights))
    with rescaling_advised():
        seen = data.seen_by(fit.kernel)
        fit.require_machines(len(machines))
        known = landmarks_of_last(seen, count, fit, lambda: _drawn_by_class(seen, count, fit))
        landmarks = _landmarks(seen, count, fit) if known is None else known[0]
        raw, numbers = seen.chosen_pivots(landmarks.index)
        span = SpanQuery(seen.kernel, landmarks.rows, BandLoss(fit.odm, 1.0), seen.scaling)
        positive = np.array([machine.positive for machine in machines])
        weights = np.array([machine.class_weights for machine in machines]).T
        query = MachineQuery.of(span, fit.odm, positive, weights, seen.data.class_totals)
        if known is None:
            found, history = _descended(seen, landmarks, query, fit, pairs, clock)
        else:
            found, history = [_unsolved(start) for start in known[1] @ landmarks.factor], []
        if not all(solution.converged for solution in found):
            problem = _problem(seen, query, spare)
            _go_on(problem, landmarks, found, history, (most, preconditioned, pairs), data, fit, clock)
        coefficients = np.ascontiguousarray(landmark_weights(landmarks, np.array([each.x for each in found]).T).T)
        require_finite_solution(coefficients, [solution.gap for solution in found])
        left_out_rows: dict[str, Any] = {}
        if fit.loo:
            each = zip(machines, coefficients, strict=True)
            values = [_left_out(given.of_machine(machine), landmarks, a, fit) for machine, a in each]
            left_out_rows = joined_left_out(values)
    intercept = landmarks.kernel.bias * coefficients.sum(axis=1)
    kernel = replace(landmarks.kernel, bias=0.0)
    model = KernelModel(kernel, seen.scaling, raw, coefficients, intercept, pairs)
    attributes = {"dual_gap_": float("nan"), "history_": history, "n_iter_": max(1, *(each.steps for each in found))}
    warning = joined_warning([short_warning(solution, fit) for solution in found])
    return Trained(model, attributes | {"support_": numbers} | left_out_rows, warning)


def train_targets_at_landmarks(data: TrainingData, fit: ODMFit, parts: Parts[ODMFit], join: Join) -> Trained:
    """Train machines of several targets in lockstep, over the same landmarks, drawn for all."""
    require_suited(fit)
    clock = StepClock()
    count = landmark_count(data, fit)
    m = len(parts)
    most, preconditioned, spare = _planned(data, fit, data.rows, count, m, 1)
    with rescaling_advised():
        seen = data.seen_by(fit.kernel)
        method = "uniform" if fit.own.choice == "support" else fit.own.choice
        known = landmarks_of_last(seen, count, fit, lambda: drawn_landmarks(seen, count, "uniform", fit).index)
        landmarks = drawn_landmarks(seen, count, method, fit) if known is None else known[0]
        starts = np.zeros((m, len(landmarks))) if known is None else known[1] @ landmarks.factor
        found, history = [_unsolved(start) for start in starts], list[Record]()
        losses = [own.loss(part) for part, own in parts]
        low, high = np.array([loss.stiffness for loss in losses]).T
        span = SpanQuery(seen.kernel, landmarks.rows, BandLoss(fit.odm, 1.0), seen.scaling)
        ratios = np.zeros(m) if fit.has_real_targets else high / low
        query = TargetQuery(span, ratios[None], low[None], np.arange(m))
        problem = _problem(seen, query, spare)
        _go_on(problem, landmarks, found, history, (most, preconditioned, 0), data, fit, clock)
        del problem
        raw, numbers = seen.chosen_pivots(landmarks.index)
        machines = []
        for (part, own), solution in zip(parts, found, strict=True):
            a = landmark_weights(landmarks, solution.x)
            sight = replace(seen, data=part)
            claim = certificate(sight, landmarks, a, own) if own.own.certify else None
            trained = finish(sight, landmarks, raw, numbers, replace(solution, x=a), claim, own)
            if own.loo:
                rows = nystrom_problem(sight, landmarks, own.loss(part), 0, 0)
                trained.attributes.update(attributes_of(own, part, part, *left_out(rows, landmarks, a, part, own)))
            if claim is not None:
                trained = held_as_predicted(trained, claim, seen.kernel, part, own, ("objective",))
            machines.append(trained)
    trained = join(machines)
    trained.attributes["history_"] = history
    return trained


def _go_on(
    problem: MachineProblem,
    landmarks: Landmarks,
    found: list[PrimalSolution[None]],
    history: list[Record],
    how: tuple[int, bool, int],
    data: TrainingData,
    fit: ODMFit,
    clock: StepClock,
) -> None:
    """Solve in lockstep what ``found`` of all machines leaves; put solutions and records in the place of these.

    ``how`` is the most machines at once, whether means precondition them, and the number of pairs' classes.
    """
    most, preconditioned, pairs = how
    left = np.flatnonzero([not solution.converged for solution in found])
    inverse = np.ascontiguousarray(lapack.dtrtri(landmarks.factor, lower=1)[0])
    means = None
    if preconditioned:
        samples = problem.samples(SKETCH * len(landmarks), fit.run.seed)
        means = ClassMeans.of(samples, len(problem.query.stiffness), landmarks, inverse, CPU_COUNT)
    settings = fit.solver.tol, fit.solver.max_iter, CPU_COUNT
    groups = [left[start : start + most] for start in range(0, len(left), most)]
    ahead = len(history)  # descent has the first checkpoint
    for group, run in zip(groups, runs_of(fit.run, ahead + len(groups))[ahead:], strict=True):
        part = replace(problem, query=problem.query.of_machines(group))
        resume, save = open_steps(f"machines {pairs}", data.fingerprint, replace(fit, run=run), LockstepState)
        classes, m = part.query.stiffness.shape
        shapes = [(m, len(landmarks))] * 2 + [(m, classes)]
        found_shapes = resume and [each.shape for each in (resume.at, resume.direction, resume.made)]
        require_state(fit, resume is None or found_shapes == shapes)
        solver = Lockstep(part, landmarks, inverse, means, *settings, report_step, save, clock)
        solutions, records = solver.run(np.array([found[j].x for j in group]), resume)
        for j, solution in zip(group, solutions, strict=True):
            found[j] = replace(solution, steps=found[j].steps + solution.steps)
        # their seconds are of the whole fit already, unlike their other counts
        history += [record_after(history, each) | {"seconds": each["seconds"]} for each in records]


def _unsolved(start: Array) -> PrimalSolution[None]:
    """Return coordinates (r,) from which steps begin, as a solution that is none yet."""
    return PrimalSolution(start, np.inf, np.inf, False, [], 0)


def _descended(
    seen: KernelData, landmarks: Landmarks, query: MachineQuery, fit: ODMFit, pairs: int, clock: StepClock
) -> tuple[list[PrimalSolution[None]], list[Record]]:
    """Return coordinates of all machines (r,) in the span, from descent in their dual, and its record.

    They are zero, without a record, if there is no descent.
    """
    m = query.stiffness.shape[1]
    if not _descends(seen.data, len(landmarks)):
        return [_unsolved(np.zeros(len(landmarks)))] * m, []
    resume, save = open_steps(f"descent {pairs}", seen.data.fingerprint, fit, LockstepState)
    require_state(fit, resume is None or resume.at.shape == (m, len(landmarks)))
    if resume is not None:
        figures = (getattr(resume, name).tolist() for name in ("primal", "gap", "open", "steps"))
        each = zip(resume.at, *figures, strict=True)
        held = [PrimalSolution[None](x, p, gap, not left, [], int(steps)) for x, p, gap, left, steps in each]
        return held, list(resume.history)
    scaled, codes, weight = _by_class(seen)
    rows = ArrayRows(scaled) if isinstance(scaled, np.ndarray) else scaled
    found: list[PrimalSolution[None]] = []
    for precision, errors in rounding(landmarks, rows, seen.data.dtype):
        descent = None  # before others are computed
        features = coordinates(landmarks, rows, seen.data.dtype, CPU_COUNT, precision)
        descent = FeatureDescent(query, features, errors, codes.astype(np.int64), weight, fit.solver, CPU_COUNT)
        del features
        found = found or descent.run(pairs)
        if all(each.converged for each in found):  # else Newton's method takes features of more digits
            break
    assert descent is not None
    found = descent.finished(found)
    del descent
    state = LockstepState.begin(np.array([each.x for each in found]), len(query.stiffness), double_precision=False)
    primal, gap, steps = np.array([(each.primal, each.gap, each.steps) for each in found], np.float64).T
    left = np.array([not each.converged for each in found], np.float64)
    record = clock.record(0, float(gap.max()), float(primal.sum()), float(steps.max()), machines=int(left.sum()))
    save(replace(state, primal=primal, gap=gap, steps=steps, open=left, history=[record]))
    report_step(record)
    return found, [record]


def _descends(data: TrainingData, count: int) -> bool:
    """Return whether machines begin with descent, for which Nyström features of all rows are kept; not of few rows."""
    # steps of Newton's method end the solves of few rows near rounding, whatever the order of the rows
    return data.in_memory and LIMITS.rounding_rows < data.rows <= AUTO.descent_values // count


def _left_out(given: TrainingData, landmarks: Landmarks, a: Array, fit: ODMFit) -> dict[str, Any]:
    """Return what leaving out finds of the rows of one machine with coefficients ``a`` (r,)."""
    data = given if fit.groups is not None else given.merged()
    span = nystrom_problem(data.seen_by(fit.kernel), landmarks, fit.loss(data), 0, 0)
    return left_out_values(fit, given, data, *left_out(span, landmarks, a, data, fit))


def _landmarks(seen: KernelData, count: int, fit: ODMFit) -> Landmarks:
    """Draw landmarks for all machines. Those drawn with equal probability include some rows of every class."""
    if fit.own.choice not in ("support", UniformRace.word):
        return first_landmarks(seen, count, fit)
    numbers = _drawn_by_class(seen, count, fit)
    return Landmarks.of(seen.kernel, seen.pivots(count, "uniform").take(numbers), numbers)


def _drawn_by_class(seen: KernelData, count: int, fit: ODMFit) -> Array:
    return seen.data.drawn_by_class(count, count // (4 * len(seen.data.class_weights)), fit.run.seed)


def _problem(seen: KernelData, query: MachineQuery, budget: int) -> MachineProblem:
    """Build the problem of all machines; ``budget`` bounds the bytes of kernel values that are kept in memory."""
    data = seen.data
    if seen.scaled is None:
        return MachineProblem.over_passes(query, data.passes(query.span.r))
    rows = (seen.scaled, *data.columns()) if data.n_targets > 1 else _by_class(seen)
    return MachineProblem.over_rows(query, *rows, budget, CPU_COUNT)


def _by_class(seen: KernelData) -> tuple[Any, Array, Array]:
    """Return rows in memory, their codes and their weights, or none, sorted by class."""
    codes, weight = seen.data.columns()
    order = np.argsort(codes, kind="stable")
    return taken(seen.scaled, order), codes[order], weight[order] if weight.size else weight


def _planned(data: TrainingData, fit: ODMFit, rows: int, r: int, m: int, classes: int) -> tuple[int, bool, int]:
    """Return how many of ``m`` machines learn at once, whether means precondition them, and bytes for kernel values.

    A machine has as many ``rows``, and means are of as many ``classes``. The bytes are those of this process that all
    else leaves. Raises MemoryLimitError if the machines, or the tasks of their passes, do not fit.
    """
    memory = LandmarkMemory.of(data, r)
    most = min(m, max(1, AUTO.machine_bytes // (8 * r)))
    means_bytes = partial(memory.class_means, classes)
    preconditioned = rows >= AUTO.means_rows * r and means_bytes(1) <= AUTO.means_bytes
    if preconditioned:
        most = max(each for each in range(1, most + 1) if means_bytes(each) <= AUTO.means_bytes)
    several = data.n_targets > 1
    width = most if several else min(most, len(data.class_weights))
    own = memory.machine_pass(most, width, data.n_targets)
    needed = (
        preconditioned * means_bytes(most)
        + data.held_bytes()
        + memory.lockstep(most)
        + 3 * 8 * m * r
        + data.rows * (16 + width)
    )
    needed += fit.loo * (m * 3 * 8 * data.row_numbers[0] + max(LEFT_OUT_BYTES * data.row_numbers[0], 6 * 8 * r * r))
    here = data.run.here()
    X = data.X
    if X is not None:
        needed += (CPU_COUNT + MOST_GROUPS) * own.sums + CPU_COUNT * own.work
        if _descends(data, r) and not several:
            needed = max(needed, data.held_bytes() + memory.descent(width))
        copied = 2 * X.data.nbytes if issparse(X) else X.nbytes
        needed += 0 if several else copied  # sorted by class
    else:
        data.require_pass(own, f"A pass over the store for {most} machines over {r} landmarks", FEWER)
    here.require(needed, 1, f"{m} machines over {r} landmarks", memory_advice(data, r))
    return most, preconditioned, here.memory - needed
