"""Scores of settings of one kernel on a sample of rows: kernel values are computed once, the problems solved in turn.

The sample's rows become Nyström features ``L⁻¹ k(x)`` over landmarks, whose Gram matrix is ``LLᵀ``. With these features
the kernel machine is a linear one, for any λ, υ and θ. Each solve starts from the solution before it, and updates the
Hessian before it. Landmarks that add nearly nothing to the others are left out. Settings are judged by the decision
values of left-out rows. They are left out one by one, in closed form from the Hessian at the solution, or in folds, by
weights of zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.sparse import issparse

from dask_odm.data.rows.targets import folds_of
from dask_odm.errors import InputError
from dask_odm.kernels.landmarks import Landmarks
from dask_odm.kernels.pivots import choose
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import EXACT_FEATURES, PrimalProblem, PrimalSums
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, ResidualLoss, ResidualSettings
from dask_odm.learning.problem.nystrom_features import coordinates
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.run import FitRun, KernelChoice
from dask_odm.learning.training.training_data import KernelData
from dask_odm.linalg.csr_rows import CSRRows
from dask_odm.linalg.rows import ArrayRows
from dask_odm.linalg.threads import single_threaded_blas
from dask_odm.methods.left_out import inverse_factor, left_out
from dask_odm.methods.linear.solver import UpdatedProblem, solve_newton
from dask_odm.methods.search.axes import TUNING
from dask_odm.typing import Array

Given = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]  # for each split, the rows to learn from and to validate by
Parts = tuple[Array, Array] | None
Machine = tuple[Array, float, float]
# of decision values (n,) or (n, classes), codes of the classes (n,) and weights (n,): scores (q,)
Score = Callable[[Array, Array, Array], Array]


@dataclass(frozen=True)
class Splits:
    """The splits of the rows into those to learn from and those to validate by.

    ``cv`` of None leaves rows out one by one. An int is a number of folds, a float the share of one validation part,
    and a tuple the splits themselves.
    """

    cv: int | float | Given | None
    seed: int

    @property
    def count(self) -> int:
        return self.cv if isinstance(self.cv, int) else len(self.cv) if isinstance(self.cv, tuple) else 1

    def parts(self, numbers: Array, k: int) -> tuple[Array, Array] | None:
        """Return masks (n,) of what split ``k`` learns from and validates by; None if rows are left out singly."""
        if self.cv is None:
            return None
        if isinstance(self.cv, tuple):
            inside, outside = (np.isin(numbers, each) for each in self.cv[k])
            return inside, outside
        if isinstance(self.cv, int):
            outside = folds_of(numbers, self.cv, self.seed) == k
        else:
            # by the lower half of the hash: samples have the rows of the smallest upper halves
            outside = folds_of(numbers, 1 << 32, self.seed) < self.cv * (1 << 32)
        return ~outside, outside

    def divide(self, numbers: Array) -> bool:
        """Return whether each split leaves some of the rows to learn from, and some to validate by."""
        parts = (self.parts(numbers, k) for k in range(self.count))
        return all(each is None or (each[0].any() and each[1].any()) for each in parts)


@dataclass(frozen=True, eq=False)
class TrialRows:
    """A sample of rows as one kernel sees them, ready for trials of λ, υ and θ.

    ``X`` (n, k), an array or CSR, is the input of ``features``. ``y`` (n,) is ±1 for two classes, the code of the
    class for more, and a real target without ``class_weights``. ``numbers`` (n,) are the rows' numbers, which decide
    their folds.
    """

    features: FeatureMap
    X: Any
    y: Array
    weight: Array
    class_weights: tuple[float, ...]
    numbers: Array
    groups: Array | None = None  # numbers of the groups that are left out instead of rows, (n,), as of all rows

    @cached_property
    def machines(self) -> list[Machine]:
        """The machines, each with its mask of positive rows (int8), and its negative and positive class weights.

        That of real targets has these instead of a mask.
        """
        if not self.class_weights:
            return [(self.y, 1.0, 1.0)]
        if len(self.class_weights) == 2:
            return [((self.y > 0).astype(np.int8), *self.class_weights)]
        return [((self.y == code).astype(np.int8), 1.0, 1.0) for code in range(len(self.class_weights))]

    @cached_property
    def learned_weight(self) -> Array:
        """The weight of each row in learning, (n,), including class weights only if there are more than two classes."""
        if len(self.class_weights) <= 2:
            return self.weight
        return self.weight * np.array(self.class_weights)[self.y.astype(np.int64)]

    def left_out(self, settings: Sequence[tuple[float, float, float]], splits: Splits) -> list[LeftOut]:
        """Return the values of left-out rows for each split, by each setting (λ/M, υ, θ)."""
        units = self.numbers if self.groups is None else self.groups
        codes = self.y if not self.class_weights else self.machines[0][0].astype(np.int64)
        codes = self.y.astype(np.int64) if len(self.class_weights) > 2 else codes
        found = []
        for k in range(splits.count):
            parts = splits.parts(units, k)
            with single_threaded_blas:  # once for all solves, since entering it looks for libraries
                machines = [self._left_out(machine, settings, parts) for machine in self.machines]
            out = np.flatnonzero(self.weight if parts is None else np.where(parts[1], self.weight, 0.0))
            values = np.stack([np.stack([each[out] for each in machine]) for machine in machines], axis=-1)
            values = values[..., 0] if len(machines) == 1 else values
            found.append(LeftOut(values, codes[out], self.weight[out], units[out]))
        return found

    def _left_out(self, machine: Machine, settings: Sequence[tuple[float, float, float]], parts: Parts) -> list[Array]:
        """Return the decision values of left-out rows by one machine, for all settings."""
        weight = self.learned_weight if parts is None else np.where(parts[0], self.learned_weight, 0.0)
        if not weight.any():
            raise InputError("cv leaves no row to learn from: choose another.")
        solved = self.solved(machine, settings, weight)
        if parts is not None:
            X = self.features.block(self.X)
            return [self.features.scores(X, w) for _, _, w, _ in solved]
        groups = None if self.groups is None else np.unique(self.groups, return_inverse=True)[1]
        found = []
        for problem, loss, w, sums in solved:
            hessian = sums.curvature + np.eye(problem.k)
            inverse = inverse_factor(hessian)
            if groups is not None:
                found.append(problem.without_groups(w, hessian, inverse, groups, int(groups.max()) + 1))
                continue
            pairs = problem.leverages(w, inverse.astype(self.X.dtype))
            # whole rows, so that weights do not count as rows of which others remain
            found.append(left_out(loss, pairs[0], pairs[1], machine[0], weight, np.empty(0))[0])
        return found

    def solved(
        self, machine: Machine, settings: Sequence[tuple[float, float, float]], weight: Array, tol: float = TUNING.tol
    ) -> Iterator[tuple[PrimalProblem, BandLoss, Array, PrimalSums]]:
        """Yield problem, loss, solution and sums there of every setting; each solve starts from the one before it."""
        codes, negative, positive = machine
        total = float(np.where(codes == 1, positive, negative) @ weight)
        of_row: type[BandLoss] = BandLoss if self.class_weights else ResidualLoss
        odm = ODMSettings if self.class_weights else ResidualSettings
        losses = [of_row(odm(share * total, *band), total, negative, positive) for share, *band in settings]
        # a small pass has one thread, as handing over would take as long
        threads = CPU_COUNT if self.X.shape[0] * self.features.k > 1 << 19 else 1
        problem = UpdatedProblem.of_rows(self.features, losses[0], self.X, codes, weight, threads)
        w = np.zeros(self.features.k)
        for loss in losses:
            problem.weigh(loss)
            with np.errstate(over="ignore", invalid="ignore"):
                solution = solve_newton(problem, w, tol=tol, max_iter=50, certify=False)
            assert solution.sums is not None
            w = solution.x
            yield problem, loss, w, solution.sums


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Decision ``values`` (settings, n) or (settings, n, classes) of left-out rows, their classes and weights.

    Of real targets, these stand in ``codes``, and their predictions in ``values``.

    ``units`` (n,) are the numbers of what is left out at a time, rows or groups, as of all rows. A group whose rows are
    in several samples thus stays in one part.
    """

    values: Array
    codes: Array
    weight: Array
    units: Array

    @classmethod
    def joined(cls, parts: Sequence[LeftOut]) -> LeftOut:
        """Return the rows of all parts; raise InputError if there are none."""
        found = cls(
            np.concatenate([each.values for each in parts], axis=1),
            np.concatenate([each.codes for each in parts]),
            np.concatenate([each.weight for each in parts]),
            np.concatenate([each.units for each in parts]),
        )
        if not len(found.codes):
            raise InputError("cv leaves no row to validate by: choose fewer folds, or a larger share.")
        return found

    def without(self, units: Array) -> LeftOut:
        """Return the rows of other units."""
        rows = np.flatnonzero(~np.isin(self.units, units))
        return LeftOut(self.values[:, rows], self.codes[rows], self.weight[rows], self.units[rows])

    def scores(self, score: Score) -> Array:
        """Return the scores (settings, q)."""
        return np.array([score(values, self.codes, self.weight) for values in self.values])

    def scores_of_parts(self, score: Score, seed: int) -> Array:
        """Return the scores of parts of the rows, (settings, q, `SearchTuning.parts`); NaN if one has none."""
        part = folds_of(self.units, TUNING.parts, seed)
        found = np.full((*self.scores(score).shape, TUNING.parts), np.nan)
        for k in range(TUNING.parts):
            rows = np.flatnonzero(part == k)
            for i, values in enumerate(self.values if len(rows) else ()):
                with suppress(InputError):  # of one class, say
                    found[i, :, k] = score(values[rows], self.codes[rows], self.weight[rows])
        return found


def accuracy(values: Array, codes: Array, weight: Array) -> Array:
    """Return the share of rows that decision values have right, and less the mean logistic loss of their margins, (2,).

    The second decides by default, since chance moves it less. On 13 tables of 100 to 700 rows, settings of the best
    share in five folds promise .017 too much of new rows, and those of the least loss nothing, with .013 more right.
    """
    if values.ndim == 1:
        margins = np.where(codes == 1, values, -values)
        right = (values > 0) == codes
    else:
        own = values[np.arange(len(codes)), codes]
        others = values.copy()
        others[np.arange(len(codes)), codes] = -np.inf
        margins = 0.5 * (own - others.max(axis=1))  # as that of two classes, whose values are f and −f
        right = values.argmax(axis=1) == codes
    # values of the ODM lie about ±1, and a slope of 4 is as good as one that is fitted to each setting
    return np.array([right @ weight, -(np.logaddexp(0.0, -4.0 * margins) @ weight)]) / weight.sum()


def explained(values: Array, targets: Array, weight: Array) -> Array:
    """Return R² of predicted ``values``, (1,); of equal targets, such as one, by the deviation of those of all rows.

    Targets are in units of this deviation, so that smaller differences than 1e-12 are rounding.
    """
    mean = np.average(targets, weights=weight)
    total = weight @ (targets - mean) ** 2
    all_rows = weight.sum()
    return np.array([1.0 - weight @ (values - targets) ** 2 / (total if total > 1e-24 * all_rows else all_rows)])


def trial_rows(
    data: MemoryData, choice: KernelChoice, count: int, run: FitRun, *, leaves_one: bool, groups: Array | None = None
) -> TrialRows:
    """Make the features of a sample for the kernel of ``choice``, with ``count`` landmarks at most.

    ``groups`` are of all rows that were given.
    """
    own = None if groups is None else groups[data.kept]
    rest = data.y, data.weight, data.class_weights, data.kept, own
    if choice.kernel == "linear":
        features = FeatureMap(data.features, choice.bias)
        if leaves_one and features.k > EXACT_FEATURES:
            raise InputError(
                f"{features.k} features are too many to leave out row by row; choose cv=5, or a validation part."
            )
        if choice.scale is not None:
            features = replace(features, scaling=choice.scaling(data.statistics(choice.scale), sparse=data.keeps_zeros))
        features, X = _without_empty_columns(features, data.X)
        return TrialRows(features, X, *rest)
    seen = data.seen_by(choice)
    if isinstance(seen.scaled, CSRRows):  # a sample of texts has few of all words, and landmarks are dense
        seen = replace(seen, scaled=seen.scaled.without_empty_columns())
    count = min(count, data.rows)
    data.cluster.require(
        trial_bytes(data.rows, count), 1, f"A trial of {data.rows} rows by {count} landmarks", "Use more memory."
    )
    _, values = trial_landmarks(seen, count, run.seed)
    return TrialRows(FeatureMap(values.shape[1], 0.0), values, *rest)


def trial_landmarks(seen: KernelData, count: int, seed: int) -> tuple[Landmarks, Array]:
    """Return at most ``count`` landmarks of a sample, and the Nyström features (n, r) that they give its rows."""
    with single_threaded_blas:
        pool = seen.pivots(count, "uniform")
        # a trial does not change by a share of 1e-4 of the Gram matrix's trace, which landmarks may leave
        landmarks = choose(seen.kernel, pool, method="uniform", seed=seed, count=count, trace=1e-4)
        rows = ArrayRows(seen.scaled) if isinstance(seen.scaled, np.ndarray) else seen.scaled
        return landmarks, coordinates(landmarks, rows, seen.scaled.dtype, CPU_COUNT)


def _without_empty_columns(features: FeatureMap, X: Any) -> tuple[FeatureMap, Any]:
    """Return features and rows of a linear kernel without the columns that are 0 in all of these rows, if sparse.

    Weights of those are 0. A sample of texts has few of all the words that its vectors of weights would be made of.
    """
    if not issparse(X):
        return features, X
    scaling: Any = features.scaling
    used = np.bincount(X.indices, minlength=features.d) > 0
    used[0] = True  # there is a feature even if all rows are 0
    if scaling is not None:
        used |= scaling.shift != 0
    seen = np.flatnonzero(used)
    if scaling is not None:
        scaling = replace(scaling, shift=scaling.shift[seen], factor=scaling.factor[seen])
    return replace(features, d=len(seen), scaling=scaling), X[:, seen]


def trial_bytes(rows: int, landmarks: int) -> int:
    """Return the bytes that a trial takes, for the features of the rows and weighted copies of some."""
    return 12 * rows * landmarks
