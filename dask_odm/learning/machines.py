"""Many classes by two-class machines: one against the rest, or one against one.

Any two-class solver learns many classes this way: machine after machine, on the same training data. A solver that can
learn all machines at once does so in its recipe (`Recipe.train_machines`). Either way the machines' models become
one model with a row of coefficients per machine. `dask_odm.models.pairs` combines the votes of one-against-one
machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy.sparse import vstack

from dask_odm.data.rows.scaling import Scaling
from dask_odm.data.rows.sparse import SparseRows
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.kernels.base import Kernel
from dask_odm.learning.shared_pass import run_jointly
from dask_odm.learning.training.checkpoint_files import forget_checkpoint
from dask_odm.learning.training.recipe import Choice
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.trained import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.models.base import Model
from dask_odm.models.kernel import KernelModel
from dask_odm.models.linear import LinearModel
from dask_odm.models.pairs import pair_count
from dask_odm.typing import Array

Scheme = Literal["ovr", "ovo"]
Attributes = dict[str, Any]


def machines_of(class_weights: Sequence[float], scheme: Scheme) -> list[OneOfMany]:
    """Return the targets of every machine: each class against the rest, or each pair with its second class positive."""
    weights = tuple(class_weights)
    codes = range(len(weights))
    if scheme == "ovr":
        return [OneOfMany(code, weights) for code in codes]
    pairs = (set(pair) for pair in combinations(codes, 2))
    return [OneOfMany(max(pair), tuple(weights[code] if code in pair else 0.0 for code in codes)) for pair in pairs]


def machine_count(classes: int, scheme: Scheme) -> int:
    """Return how many machines so many classes need."""
    return classes if scheme == "ovr" else pair_count(classes)


def train_machines(
    choice: Choice[Any],
    data: TrainingData,
    fit: Any,
    scheme: Scheme,
    joined: Callable[[Sequence[Attributes]], Attributes],
) -> Trained:
    """Train a machine for every class or pair of classes, and join them into one model.

    ``choice`` says how a machine learns. ``fit`` are the family's settings; ``fit.of_machine(i, count, run)`` returns
    those of machine i. ``joined`` combines the fitted attributes of all machines, as `joined_attributes` does, without
    the support.
    """
    machines = machines_of(data.class_weights, scheme)
    pairs = len(data.class_weights) if scheme == "ovo" else 0
    together = choice.train_machines(data, fit, machines, pairs)
    if together is not None:
        return together
    join = Joined(pairs, joined)
    for trained in trained_machines(choice.train, data, fit, machines, choice.recipe.at_once(data, fit)):
        join.add(trained)
    return join.trained()


def trained_machines(
    train: Callable[[TrainingData, Any], Trained],
    data: TrainingData,
    fit: Any,
    machines: Sequence[OneOfMany],
    most: int,
) -> Iterator[Trained]:
    """Yield the result of ``train`` for every machine. Up to ``most`` machines at once share passes over a store."""
    runs = runs_of(fit.run, len(machines))
    works = (
        partial(train, data.of_machine(targets), fit.of_machine(i, len(machines), run))
        for i, (targets, run) in enumerate(zip(machines, runs, strict=True))
    )
    yield from run_jointly(works, most)


def runs_of(run: FitRun, count: int) -> list[FitRun]:
    """Return the run of every machine: the first uses the given checkpoint path, the others each a path beside it."""
    if run.checkpoint is None:
        return [run] * count
    paths = [run.checkpoint, *(f"{run.checkpoint}.{i}" for i in range(1, count))]
    if not run.resume:
        for path in paths[1:]:  # they may be of another seed, which a fit that resumes from this one could not tell
            forget_checkpoint(path)
    return [replace(run, checkpoint=path) for path in paths]


@dataclass(frozen=True, eq=False)
class _MachinePart:
    """The parts of a trained machine that the joined model needs: coefficients or weights, intercept and attributes."""

    coefficients: Array
    intercept: Array
    attributes: Attributes
    warning: str | None


class Joined:
    """Collects trained machines in order and joins them into one model. Rows that support several are kept once.

    ``pairs`` is the number of classes for one-against-one machines, and 0 for one against the rest. ``joined`` combines
    the machines' fitted attributes.
    """

    def __init__(self, pairs: int, joined: Callable[[Sequence[Attributes]], Attributes]) -> None:
        self._pairs, self._joined, self._support = pairs, joined, _Support()
        self._parts: list[_MachinePart] = []
        self._seen: tuple[Kernel, Scaling] | None = None
        self._double_precision = False
        self._paths: list[Joined] = []

    def add(self, trained: Trained) -> None:
        """Add the next machine."""
        if trained.path and not self._paths:
            self._paths = [Joined(self._pairs, self._joined) for _ in trained.path]
        for joined, each in zip(self._paths, trained.path, strict=True):
            joined.add(replace(each, path=()))
        model = trained.model
        attributes = trained.attributes
        if isinstance(model, KernelModel):
            self._support.add(attributes["support_"], model.support)
            self._seen = model.kernel, model.scaling
            self._double_precision |= model.double_precision
            coefficients: Array = model.coefficients
        else:
            assert isinstance(model, LinearModel)
            coefficients = model.weights
            if "support_" in attributes:
                self._support.add(attributes["support_"], None)
        self._parts.append(_MachinePart(coefficients, model.intercept, attributes, trained.warning))

    def trained(self) -> Trained:
        """Return all machines as one trained model."""
        if self._paths:
            path = tuple(joined.trained() for joined in self._paths)
            return replace(path[-1], path=path)
        attributes = self._joined([part.attributes for part in self._parts])
        intercept = np.concatenate([part.intercept for part in self._parts])
        if self._support.numbers is not None:
            attributes["support_"] = self._support.sorted_numbers
        if "dual_coef_" in self._parts[0].attributes:
            attributes["dual_coef_"] = self._spread(part.attributes["dual_coef_"] for part in self._parts)
        if self._seen is not None:
            coefficients = self._spread(part.coefficients for part in self._parts)
            rows = self._support.sorted_rows
            kernel, scaling = self._seen
            model: Model = KernelModel(
                kernel, scaling, rows, coefficients, intercept, self._pairs, self._double_precision
            )
        else:
            weights = np.concatenate([part.coefficients for part in self._parts])
            model = LinearModel(weights, intercept, self._pairs)
        return Trained(model, attributes, joined_warning([part.warning for part in self._parts]))

    def _spread(self, coefficients: Iterable[Any]) -> Array:
        """Return coefficients (machines, n_support) over the joint support, from each machine's own (1, ·)."""
        numbers = self._support.sorted_numbers
        out = np.zeros((len(self._parts), len(numbers)))
        for i, (part, own) in enumerate(zip(self._parts, coefficients, strict=True)):
            out[i, np.searchsorted(numbers, part.attributes["support_"])] = own[0]
        return out


class _Support:
    """Support rows of all machines, without repetition, by their numbers."""

    def __init__(self) -> None:
        self.numbers: Array | None = None
        self._rows: list[Any] = []

    def add(self, numbers: Array, rows: Any) -> None:
        known = np.empty(0, np.int64) if self.numbers is None else self.numbers
        new = np.flatnonzero(~np.isin(numbers, known))
        self.numbers = np.concatenate([known, numbers[new]])
        if rows is not None:
            self._rows.append(rows.take(new) if isinstance(rows, SparseRows) else rows[new])

    @property
    def _order(self) -> Array:
        assert self.numbers is not None
        return np.argsort(self.numbers)

    @property
    def sorted_numbers(self) -> Array:
        assert self.numbers is not None
        return np.sort(self.numbers)

    @property
    def sorted_rows(self) -> Any:
        if isinstance(self._rows[0], SparseRows):
            return SparseRows(vstack([rows.X for rows in self._rows], format="csr")[self._order])
        return np.concatenate(self._rows)[self._order]


def joined_attributes(machines: Sequence[Attributes]) -> Attributes:
    """Combine the fitted attributes of all machines: the largest gap, the longest run, histories one after the other.

    Other scalars become an array with one entry per machine, and everything else a list. Support is joined elsewhere.
    """
    found: Attributes = {}
    for name, first in machines[0].items():
        values = [attributes[name] for attributes in machines]
        if name == "history_":
            found[name] = [{"machine": i} | record for i, history in enumerate(values) for record in history]
        elif name in ("n_iter_", "dual_gap_"):
            found[name] = type(first)(np.max(values))  # nan if one is not known
        elif name not in ("support_", "dual_coef_"):
            found[name] = np.array(values) if np.isscalar(first) else values
    return found


def joined_warning(warnings: Sequence[str | None]) -> str | None:
    """Return a warning that says how many machines stopped short, and why the first did; None if none did."""
    short = [(i, warning) for i, warning in enumerate(warnings) if warning is not None]
    if not short:
        return None
    i, first = short[0]
    return f"{len(short)} of {len(warnings)} machines stopped short. Machine {i}: {first}"
