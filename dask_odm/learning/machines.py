"""Many classes by two-class machines: one-vs-rest, or one-vs-one.

Any two-class solver learns many classes this way: machine after machine, on the same training data. A solver that can
learn all machines at once does so in its recipe (`Recipe.train_machines`). Either way the machines' models become
one model with a row of coefficients per machine. `dask_odm.models.model` combines the votes of one-against-one
machines.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
from scipy.sparse import vstack

from dask_odm.data.rows.memory import SparseRows
from dask_odm.data.rows.targets import OneOfMany
from dask_odm.errors import InputError
from dask_odm.learning.training.checkpoints import forget_checkpoint
from dask_odm.learning.training.recipe import Choice, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.linear_model import LinearModel
from dask_odm.models.model import Model
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")
Scheme = Literal["ovr", "ovo"]
Attributes = dict[str, Any]
MOST_CLASSES = 32_767  # of a fit, as of a store
MOST_PAIRS = 1 << 18  # of classes; their records alone take a gigabyte, and small ones a minute or two
MANY_CLASSES = 500  # of which a fit says how many machines they take


def require_few(classes: int, scheme: Scheme) -> None:
    """Raise InputError, with the way out, if so many classes take too many machines; log how many if there are many."""
    pairs = classes * (classes - 1) // 2
    wrong = (
        "If the labels are measurements or row numbers, choose another column, or a regressor such as ODMRegressorCV."
    )
    if classes > MOST_CLASSES:
        raise InputError(f"y has {classes:,} different labels; a classifier learns at most {MOST_CLASSES:,}. {wrong}")
    if scheme == "ovo" and pairs > MOST_PAIRS:
        raise InputError(
            f"{classes:,} classes make {pairs:,} pairs, and at most {MOST_PAIRS:,} are learned: take multi_class='ovr' "
            f"(--multi-class ovr), one machine for each class. {wrong}"
        )
    if classes > MANY_CLASSES:
        count, of = (pairs, "each pair of classes") if scheme == "ovo" else (classes, "each class, from all rows")
        logger.warning(
            "%s classes are learned by %s machines, one for %s: this takes as long as that many fits of two classes, "
            "or somewhat less.", f"{classes:,}", f"{count:,}", of,
        )  # fmt: skip


class _Pairs(Sequence[OneOfMany]):
    """Targets of the machines of all pairs, made when asked for, since each holds a weight for every class."""

    def __init__(self, weights: tuple[float, ...]) -> None:
        self._weights = weights
        self._pairs = list(combinations(range(len(weights)), 2))

    def __len__(self) -> int:
        return len(self._pairs)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        weights = [0.0] * len(self._weights)
        for code in self._pairs[i]:
            weights[code] = self._weights[code]
        return OneOfMany(self._pairs[i][1], tuple(weights))


def train_machines(
    choice: Choice[Any],
    data: TrainingData,
    fit: Any,
    scheme: Scheme,
    combine: Callable[[Sequence[Attributes]], Attributes],
) -> Trained:
    """Train a machine for every class or pair of classes, and join them into one model.

    ``choice`` says how a machine learns. ``fit`` are the family's settings, a frozen dataclass with its `FitRun` as
    ``run``. If machines are to learn by settings of their own, ``fit.of_machine(i, count, run)`` returns those of
    machine i. ``combine`` joins the fitted attributes of all machines, as `joined_attributes` does, without the
    support.
    """
    weights = tuple(data.class_weights)
    pairs = len(weights) if scheme == "ovo" else 0
    machines: Sequence[OneOfMany] = _Pairs(weights) if pairs else [OneOfMany(i, weights) for i in range(len(weights))]
    together = choice.train_machines(data, fit, machines, pairs)
    if together is not None:
        return together
    count = len(machines)
    own_settings = getattr(fit, "of_machine", lambda i, count, run: replace(fit, run=run))
    runs = enumerate(runs_of(fit.run, count))
    fits = ((data.of_machine(machines[i]), own_settings(i, count, run)) for i, run in runs)
    return joined((choice.train(*each) for each in fits), pairs, combine)


def train_targets(
    choice: Choice[Any], data: TrainingData, fit: Any, combine: Callable[[Sequence[Attributes]], Attributes]
) -> Trained:
    """Train a machine for each of several targets of a row, and join them into one model; arguments as before."""
    count = data.n_targets
    runs = runs_of(fit.run, count)
    parts = [(data.of_target(i), fit.of_machine(i, count, run)) for i, run in enumerate(runs)]
    return choice.train_targets(data, fit, parts, lambda machines: joined(machines, 0, combine))


def runs_of(run: FitRun, count: int) -> list[FitRun]:
    """Return the run of every machine: the first uses the given checkpoint path, the others each a path beside it."""
    if run.checkpoint is None:
        return [run] * count
    paths = [run.checkpoint, *(f"{run.checkpoint}.{i}" for i in range(1, count))]
    if not run.resume:
        for path in paths[1:]:  # they may be of another seed, which a fit that resumes from this one could not tell
            forget_checkpoint(path)
    return [replace(run, checkpoint=path) for path in paths]


def joined(machines: Iterable[Trained], pairs: int, combine: Callable[[Sequence[Attributes]], Attributes]) -> Trained:
    """Join trained machines, in order, into one model. Rows that support several of them are kept once.

    ``pairs`` is the number of classes for one-against-one machines, and 0 for one against the rest. ``combine`` joins
    the machines' fitted attributes.
    """
    parts: list[Trained] = []
    rows: list[Any] = []  # support rows of each machine that no machine before it has
    numbers = np.empty(0, np.int64)  # of these rows
    for trained in machines:
        own = trained.attributes.get("support_", np.empty(0, np.int64))
        new = np.flatnonzero(~np.isin(own, numbers))
        numbers = np.concatenate([numbers, own[new]])
        if isinstance(trained.model, KernelModel):
            support: Any = trained.model.support
            rows.append(support.take(new) if isinstance(support, SparseRows) else support[new])
            trained = replace(trained, model=replace(trained.model, support=np.empty((0, trained.model.features))))
        parts.append(trained)
    if parts[0].path:
        path = tuple(joined(each, pairs, combine) for each in zip(*(part.path for part in parts), strict=True))
        return replace(path[-1], path=path)
    order = np.argsort(numbers)

    def spread(coefficients: Sequence[Array]) -> Array:
        """Return coefficients (machines, n_support) over the joint support, from each machine's own (1, ·)."""
        out = np.zeros((len(parts), len(numbers)))
        for i, (part, own) in enumerate(zip(parts, coefficients, strict=True)):
            out[i, np.searchsorted(numbers[order], part.attributes["support_"])] = own[0]
        return out

    attributes = combine([part.attributes for part in parts])
    if "support_" in parts[0].attributes:
        attributes["support_"] = numbers[order]
    if "dual_coef_" in parts[0].attributes:
        attributes["dual_coef_"] = spread([part.attributes["dual_coef_"] for part in parts])
    models: list[Any] = [part.model for part in parts]
    intercept = np.concatenate([model.intercept for model in models])
    if not rows:
        model: Model = LinearModel(np.concatenate([model.weights for model in models]), intercept, pairs)
    else:
        sparse = isinstance(rows[0], SparseRows)
        stacked = vstack([each.X for each in rows], format="csr") if sparse else np.concatenate(rows)
        model = replace(
            models[-1],
            support=SparseRows(stacked[order]) if sparse else stacked[order],
            coefficients=spread([model.coefficients for model in models]),
            intercept=intercept,
            pairs=pairs,
            double_precision=any(model.double_precision for model in models),
        )
    return Trained(model, attributes, joined_warning([part.warning for part in parts]))


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
