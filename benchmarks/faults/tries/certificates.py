"""Random problems: no model claims a smaller gap than it has as it predicts, nor another objective, without a warning.

The objective is built of the model's coefficients and of its decision values, with kernel values and products in
extended precision; an upper bound of the least objective is what Newton's method finds from there, in the same.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from sklearn.exceptions import ConvergenceWarning

import dask_odm as odm
from tries.base import Kind, parts, pick
from tries.outcomes import BREAK, NAMED, SAME, Outcome, describe

WIDE = np.longdouble
ROUNDING = 1e-7  # share of the objective that its own rounding, and that of scores in float32, leaves of it
CLASSES = 4  # whose pairs are learned
KERNELS = ("rbf", "laplacian", "poly", "precomputed", "callable", "linear", "landmark", "pairs", "tree")


@dataclass
class Problem:
    """Rows with a model's parameters, drawn of a number."""

    kernel: str
    X: Any
    y: Any
    weight: Any
    parameters: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def drawn(cls, number: int, rng: np.random.Generator) -> Problem:
        kernel, dtype = parts(number, KERNELS, ("float32", "float64"))
        n, d, classes = int(rng.integers(20, 130)), int(rng.integers(1, 12)), CLASSES if kernel == "pairs" else 2
        X = pick(rng, (rng.normal(size=(n, d)), rng.integers(0, 4, (n, d)), rng.exponential(size=(n, d))))
        X = (X * 10.0 ** rng.uniform(-2, 3, d) + 10.0 ** rng.uniform(-2, 3, d) * rng.integers(0, 2)).astype(dtype)
        X[:classes] += 1e-3 * X.std()
        share = (X - X.mean(0)) / (X.std(0) + 1e-9) @ rng.normal(size=d) + pick(rng, (0.0, 0.3, 3.0)) * rng.normal(
            size=n
        )
        y = np.argsort(np.argsort(share)) * classes // n
        weight = pick(rng, (np.ones(n), rng.integers(0, 4, n).astype(float), np.exp(2 * rng.normal(size=n))))
        weight[np.unique(y, return_index=True)[1]] += 1.0
        size = float(np.square(X.astype(float) - X.mean(0)).sum(1).mean()) + 1e-12
        width = np.sqrt(size * d) if kernel == "laplacian" else size
        if kernel == "poly":
            width = float(np.square(X.astype(float)).sum(1).mean()) / 10.0 ** rng.uniform(0, 5)
        parameters = {
            "gamma": max(1e-30, float(10.0 ** rng.uniform(-1, 1.5) / width)),
            "degree": int(rng.integers(2, 4)),
            "lam": float(10.0 ** rng.uniform(-2, 8)),
            "theta": pick(rng, (0.0, 0.2, 0.5, 0.9)),
            "upsilon": pick(rng, (0.0, 0.2, 1.0)),
            "fit_intercept": bool(rng.integers(2)),
            "random_state": 0,
        }
        return cls(kernel, X, y, weight, parameters)

    def function(self, A: Any, B: Any) -> Any:
        """The user's kernel: of distances, in the type of the rows given."""
        square = np.square(A[:, None, :] - B[None]).sum(axis=2)
        return np.exp(-A.dtype.type(self.parameters["gamma"]) * square)

    @property
    def given(self) -> Any:
        """What the model is given as X."""
        return self.function(self.X, self.X) if self.kernel == "precomputed" else self.X

    def matrix(self, model: odm.ODMClassifier) -> Any:
        """Kernel values of all rows in extended precision, the bias included.

        Distances are of rows that were shifted in their own type, by what the model has of its rows.
        """
        X, p = self.X, self.parameters
        if self.kernel not in ("precomputed", "linear"):
            X = (X - model._model.scaling.shift).astype(X.dtype)
        X = X.astype(WIDE)
        bias = WIDE(1.0 if p["fit_intercept"] else 0.0)
        if self.kernel == "precomputed":
            return self.given.astype(WIDE) + bias
        if self.kernel == "linear":
            return X @ X.T + bias
        if self.kernel == "poly":
            return (WIDE(p["gamma"]) * (X @ X.T) + 1) ** p["degree"] + bias
        apart = X[:, None, :] - X[None]
        if self.kernel == "laplacian":
            far = np.abs(apart).sum(axis=2)
        elif self.kernel in ("rbf", "callable", "landmark", "pairs", "tree"):
            far = np.square(apart).sum(axis=2)
        else:
            raise ValueError(f"no formula of kernel {self.kernel!r} is known here")
        return np.exp(-WIDE(p["gamma"]) * far) + bias

    def model(self) -> odm.ODMClassifier:
        """The model, not yet fitted."""
        named = {"callable": self.function, "landmark": "rbf", "pairs": "rbf", "tree": "rbf"}
        solvers = {"landmark": odm.solvers.Landmark(15, certify=True), "linear": "newton", "tree": "sodm"}
        solver = solvers.get(self.kernel, "exact")
        more = {"multi_class": "ovo"} if self.kernel == "pairs" else {}
        parameters = dict(self.parameters)
        if self.kernel in ("linear", "precomputed"):
            del parameters["gamma"]
        return odm.ODMClassifier(named.get(self.kernel, self.kernel), solver=solver, scale=None, **parameters, **more)


@dataclass
class Machine:
    """One of two classes: what is minimised of which rows."""

    K: Any
    y: Any
    weight: Any
    parameters: dict[str, Any]

    @property
    def stiffness(self) -> Any:
        return self.weight * (self.parameters["lam"] / (self.weight.sum() * (1 - self.parameters["theta"]) ** 2))

    def losses(self, scores: Any) -> Any:
        theta, m = self.parameters["theta"], self.y * scores
        above = self.parameters["upsilon"] * np.maximum(m - 1 - theta, 0) ** 2
        return (0.5 * self.stiffness * (np.maximum(1 - theta - m, 0) ** 2 + above)).sum()

    def primal(self, a: Any) -> float:
        """P of coefficients, or as much more as rounding may hide."""
        scores = self.K @ a
        hidden = np.finfo(WIDE).eps * (np.abs(a) @ np.sqrt(self.K.diagonal())) ** 2
        return float(0.5 * (a @ scores) + self.losses(scores) + hidden)

    def noise(self, a: Any, scores: Any, unit: float) -> float:
        """How far P is from itself where kernel values, and sums of them, are rounded otherwise: of rows in other
        company, which BLAS multiplies in other orders.
        """
        theta, m = self.parameters["theta"], self.y * scores
        above = self.parameters["upsilon"] * np.maximum(m - 1 - theta, 0)
        slopes = self.stiffness * (np.maximum(1 - theta - m, 0) + above)
        error = unit * np.sqrt((self.K**2) @ (a**2))
        return float(4 * np.sqrt((slopes**2 * error**2).sum()) + 2 * (self.stiffness * error**2).sum())

    def least(self, a: Any, steps: int = 40) -> float:
        """The least P that Newton's method finds from coefficients ``a``."""
        theta, c, best = self.parameters["theta"], self.stiffness, self.primal(a)
        for _ in range(steps):
            m = self.y * (self.K @ a)
            curvature = np.where(m < 1 - theta, c, np.where(m > 1 + theta, self.parameters["upsilon"] * c, 0))
            on = np.flatnonzero(curvature)
            target = (self.y * np.where(m < 1, 1 - theta, 1 + theta))[on]
            inside = np.where(curvature > 0, a, 0)
            left = target - (self.K @ inside)[on] - inside[on] / curvature[on]
            root = np.sqrt(curvature[on])
            system = (root[:, None] * self.K[np.ix_(on, on)] * root).astype(float) + np.eye(len(on))
            try:
                inside[on] += root * cho_solve(cho_factor(system), (root * left).astype(float))
            except LinAlgError:
                break
            found = [(self.primal(a + t * (inside - a)), t) for t in 0.5 ** np.arange(12)]
            value, step = min(found)
            if not value < best * (1 - 1e-13):
                break
            best, a = value, a + WIDE(step) * (inside - a)
        return best


def check(problem: Problem) -> str:
    """What is wrong with what a model claims; nothing if it is true."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model = problem.model().fit(problem.given, problem.y, sample_weight=problem.weight)
    warned = any(issubclass(each.category, ConvergenceWarning) for each in heard)
    gaps, wrong = [], []
    for i, (machine, a, primal, noise) in enumerate(_machines(problem, model)):
        gaps.append((primal - noise - machine.least(a)) / primal)
        claimed = [each for each in model.history_ if each.get("machine", 0) == i][-1]["objective"]
        allowed = model.tol if warned or problem.kernel == "pairs" else ROUNDING
        if problem.kernel != "tree" and abs(claimed - primal) > allowed * primal + noise:
            wrong.append(f"machine {i}: objective {claimed:.9g}, {primal:.9g} as it predicts")
    if model.dual_gap_ < max(gaps) - ROUNDING:
        wrong.append(f"gap {model.dual_gap_:.2e}, {max(gaps):.2e} as it predicts")
    if max(gaps) > model.tol + ROUNDING and not warned and problem.kernel != "landmark":
        wrong.append(f"no warning of a gap of {max(gaps):.2e}")
    return "; ".join(wrong)


def _machines(problem: Problem, model: odm.ODMClassifier) -> Iterator[tuple[Machine, Any, float, float]]:
    """Every machine, its coefficients of the rows that count, P as it predicts them, and how far that is rounded."""
    K, n = problem.matrix(model), len(problem.y)
    coefficients = np.zeros((len(model.intercept_), n), WIDE)
    if problem.kernel != "linear":
        of_pairs = problem.kernel == "pairs"  # of a row they are those of the pairs of its class
        coefficients[:, model.support_] = model._model.machine_coefficients if of_pairs else model.dual_coef_
    scores, pairs = np.atleast_2d(model.decision_function(problem.given)), [(0, 1)]
    if problem.kernel == "pairs":  # votes are counted of these: nothing public has them
        pairs = list(combinations(range(CLASSES), 2))
        scores = model._model.machine_scores(problem.given).astype(problem.X.dtype)
    for i, pair in enumerate(pairs):
        rows = np.flatnonzero(np.isin(problem.y, pair) & (problem.weight > 0))
        y = np.where(problem.y[rows] == pair[1], 1.0, -1.0)
        machine, a = Machine(K[np.ix_(rows, rows)], y, problem.weight[rows], problem.parameters), coefficients[i, rows]
        norm, own, unit = a @ machine.K @ a, scores[i, rows].astype(WIDE), np.finfo(scores.dtype).eps
        noise = machine.noise(a, own, unit)
        if problem.kernel == "linear":
            weights = np.append(model.coef_, model.intercept_).astype(WIDE)
            norm = np.square(weights).sum()
            terms = Machine(
                np.column_stack([problem.X[rows], np.ones(len(rows))]), y, machine.weight, machine.parameters
            )
            noise = terms.noise(weights, own, unit)
        yield machine, a, float(0.5 * norm + machine.losses(own)), noise


def _prepare(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    logging.getLogger("dask_odm").setLevel(logging.ERROR)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        problem = Problem.drawn(number, rng)
        told = f"{problem.kernel}, {len(problem.y)} rows of {problem.X.dtype}, {problem.parameters}"
        try:
            wrong = check(problem)
        except Exception as error:
            answer = describe(error)
            return Outcome(NAMED if "named" in answer else BREAK, told, next(iter(answer.values())))
        return Outcome(BREAK if wrong else SAME, told, wrong)

    return try_once


KINDS = (Kind("certificates", 60.0, _prepare),)
