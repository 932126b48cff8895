"""The base of models: immutable records that give values for raw rows and are stored without pickle.

With one machine, an output is its value. Machines of many classes are one-vs-rest, or one-vs-one, which
then vote. One-against-one machines come in the order (0, 1), (0, 2), …, (k − 2, k − 1); the second class of a pair is
the positive one. A class's score is the number of machines that vote for it. Ties are broken by confidence: the sum f
of its machines' scores is added as ``f/(3(|f| + 1))``, less than a vote, as in scikit-learn's `OneVsOneClassifier`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np

from dask_odm.models.sets import MACHINES
from dask_odm.typing import Array

PREDICTED_ROWS = 512  # to predict that a thread takes at a time; more if these have fewer entries
CLASS_SCORE_BYTES = 64 << 20  # scores of machines that are held until classes have theirs


class Model(ABC):
    """A trained model: it gives values for every raw row, tasks carry it, and its record is written to a file.

    Nothing in it changes once it is made, and it does not know how it was found. It has an ``intercept`` (machines,),
    float64. With ``pairs`` classes, machines are one-vs-one, and an output is the score of a class; with 0, it is
    that of a machine. The classes with the codes ``lacking``, ascending, had no row. They have an output, but no
    machine. Values have the dtype of the rows, but are float64 if ``wide``. If it is ``spread``, the machines after
    the first say how far targets spread, as `dask_odm.models.sets` has them, and no output is theirs.
    """

    kind: ClassVar[str]  # of model, as its record names it
    parts: ClassVar[tuple[str, ...]]  # names of the arrays of its record
    slopes: ClassVar[str]  # name of what values are multiples of, beside the intercept
    intercept: Array
    pairs: int
    lacking: tuple[int, ...] = ()
    wide: bool = False
    spread: bool = False

    @property
    def outputs(self) -> int:
        """Values per row: one for two classes or one target, else one for each class or target."""
        return max(2, self.own_outputs) + len(self.lacking) if self.lacking else self.own_outputs

    @property
    def own_outputs(self) -> int:
        """Values per row for the classes that the machines learned; `lacking` ones have no machine."""
        return self.pairs or (1 if self.spread else len(self.intercept))

    @property
    @abstractmethod
    def features(self) -> int:
        """Number of features of a row."""

    @property
    def nbytes(self) -> int:
        """Bytes of the model's arrays; support rows count as dense."""
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in self.arrays().values())

    @abstractmethod
    def machine_scores(self, X: Any, threads: int = 1) -> Array:
        """Return the scores of all machines for raw rows ``X`` (n, d), float64 (machines, n)."""

    def rescaled(self, unit: Any, mean: Any) -> Self:
        """Return the model whose values are ``unit`` times this one's, plus ``mean``, for each output or (outputs,).

        It is `wide` if float32 would lose digits.
        """
        model: Any = self
        slopes = np.reshape(unit, (-1, 1)) * getattr(self, self.slopes)
        # from there float32 keeps fewer than four digits of a deviation
        wide = bool(np.any(np.abs(mean) > 1000.0 * np.asarray(unit)))
        return replace(model, **{self.slopes: slopes}, intercept=unit * self.intercept + mean, wide=wide)

    def values(self, X: Any, threads: int = 1) -> Array:
        """Return the values of raw rows ``X`` (n, d), dense or CSR: (n, outputs), in their `value_type`."""
        if not self.pairs:
            own = self.machine_scores(X, threads)[: self.own_outputs].T.astype(self.value_type(X.dtype))
            return with_lacking(own, self.lacking)
        out = np.empty((X.shape[0], self.pairs), X.dtype)
        step = max(2 * PREDICTED_ROWS, min(32 * PREDICTED_ROWS, CLASS_SCORE_BYTES // (8 * len(self.intercept))))
        for start in range(0, X.shape[0], step):
            rows = slice(start, start + step)
            out[rows] = class_scores(np.ascontiguousarray(self.machine_scores(X[rows], threads)), self.pairs).T
        return with_lacking(out, self.lacking)

    def value_type(self, dtype: Any) -> np.dtype[Any]:
        """Return the dtype of the values of rows of a ``dtype``."""
        return np.dtype(np.float64 if self.wide else dtype)

    def label_values(self, X: Any, threads: int = 1) -> Array:
        """Return values (n, outputs) that give the same labels as `values`, perhaps in fewer digits and less time."""
        return self.values(X, threads)

    def arrays(self) -> dict[str, Any]:
        """Return the arrays of the model's record, by name."""
        return {name: getattr(self, name) for name in self.parts}

    def description(self) -> dict[str, Any]:
        """Return the rest of the model's record, as JSON."""
        found: dict[str, Any] = {"kind": self.kind} | ({"pairs": self.pairs} if self.pairs else {})
        found |= {name: True for name in ("wide", "spread") if getattr(self, name)}
        return found | ({"lacking": list(self.lacking)} if self.lacking else {})


def class_scores(scores: Array, classes: int) -> Array:
    """Return the scores of the classes (classes, n), float64, from machines' ``scores`` (machines, n)."""
    votes = np.zeros((classes, scores.shape[1]))
    total = np.zeros((classes, scores.shape[1]))
    start = 0
    for negative in range(classes - 1):  # with all classes above it
        above = slice(negative + 1, classes)
        some = scores[start : start + classes - negative - 1]
        start += len(some)
        won = some > 0
        votes[above] += won
        votes[negative] += len(some) - won.sum(axis=0)
        total[above] += some
        total[negative] = np.subtract.reduce([total[negative], *some])
    return votes + total / (3.0 * (np.abs(total) + 1.0))


def with_lacking(values: Array, lacking: tuple[int, ...]) -> Array:
    """Return values (n, outputs) of all classes from those of the machines, (n, 1) for two classes.

    A class without a row, of those with the codes ``lacking``, has 1 less than the least of the others, so that it is
    never predicted.
    """
    if not lacking:
        return values
    own = np.hstack([-values, values]) if values.shape[1] == 1 else values
    out = np.empty((len(own), own.shape[1] + len(lacking)), own.dtype)
    out[:, list(lacking)] = own.min(axis=1, keepdims=True) - 1.0
    out[:, np.delete(np.arange(out.shape[1]), lacking)] = own
    return out


def require_finite_parts(arrays: Mapping[str, Array]) -> None:
    """Raise ValueError unless all arrays of a model are finite floats."""
    for name, values in arrays.items():
        if values.dtype.kind != "f" or not np.isfinite(values).all():
            raise ValueError(f"{name} of type {values.dtype} that are not all finite numbers")


def checked_machines(machines: int, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``pairs``, ``lacking``, ``wide`` and ``spread`` of the description of a model with so many machines.

    Raises ValueError unless the machines are as many as their pairs, or as they say how far targets spread, and what
    lacks are codes beside the machines' outputs.
    """
    pairs = description.get("pairs", 0)
    whole = isinstance(pairs, int) and not isinstance(pairs, bool)
    if not whole or (pairs and pairs * (pairs - 1) // 2 != machines):
        raise ValueError(f"{machines} machines for the pairs of {pairs!r:.20} classes")
    codes = description.get("lacking", [])
    own = pairs or machines
    whole = isinstance(codes, list) and all(type(code) is int for code in codes)
    if not whole or codes != sorted(set(codes)) or any(not 0 <= code < max(2, own) + len(codes) for code in codes):
        raise ValueError(f"classes {codes!r:.20} without rows, beside {own} outputs")
    wide, spread = (description.get(name, False) is True for name in ("wide", "spread"))
    if spread and machines != MACHINES:
        raise ValueError(f"{machines} machines, of which two say how far targets spread")
    return {"pairs": pairs, "lacking": tuple(codes), "wide": wide, "spread": spread}


def starts_divide(starts: Array, groups: int, rows: int) -> bool:
    """Return whether group g may have the rows ``starts[g]:starts[g + 1]``, and all together all ``rows``."""
    rising = starts.dtype == np.int64 and starts.shape == (groups + 1,) and bool((np.diff(starts) >= 0).all())
    return rising and starts[0] == 0 and starts[-1] == rows
