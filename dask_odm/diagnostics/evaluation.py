"""Applies a model to the rows of a store, chunk by chunk: writes predictions, or compares them with labels."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, TextIO

import numpy as np
from dask.base import compute
from numpy.typing import NDArray

from dask_odm.data.store.asides import owned_file
from dask_odm.data.store.locations import is_address, location_of
from dask_odm.data.store.records import check_target, write_record
from dask_odm.data.store.statistics import StatisticsAccumulator
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.curves import ProbabilityCounts, RocCounts
from dask_odm.diagnostics.regression import Errors
from dask_odm.errors import InputError, StoreError
from dask_odm.events import Progress, report
from dask_odm.solvers.log_odds import probabilities
from dask_odm.strategies.predict import label_block
from dask_odm.typing import Array

KIND = "prediction"
STDOUT = "-"


@dataclass
class Evaluation:
    """How predictions compare with the labels, gathered chunk by chunk.

    Attributes
    ----------
    classes : list
        The model's labels.
    theta : float or None
        Half the width of the model's band; None where it has none.
    confusion : int ndarray of shape (n_classes, n_classes)
        Rows by true and predicted class.
    other : int
        Rows with a label that the model does not know; they count as wrong.
    unlabelled : int
        Rows without a label; they do not count.
    right_weight, weight : float
        Weight of the rows that are predicted right, and of all rows that count.
    band : int ndarray of shape (3,)
        Rows with a margin below, within and above 1 ± theta.
    margins : list of ndarray, or None
        Margins of the rows with one of the labels: ``y f(x)`` of two classes with one score; with a score a class, that
        of a row's own class less the largest other. A list passed to the constructor is filled.
    link : ndarray or None
        Of a model that has probabilities: what they are made with.
    roc : RocCounts or None
        Of two classes.
    probabilities : ProbabilityCounts or None
        Where there is a link.
    """

    classes: list[Any]
    theta: float | None
    confusion: NDArray[np.int64] = field(init=False)
    other: int = 0
    unlabelled: int = 0
    right_weight: float = 0.0
    weight: float = 0.0
    band: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    margins: list[Array] | None = None
    link: Array | None = None
    roc: RocCounts | None = field(init=False)
    probabilities: ProbabilityCounts | None = field(init=False)
    _statistics: StatisticsAccumulator = field(default_factory=lambda: StatisticsAccumulator(1))

    def __post_init__(self) -> None:
        self.confusion = np.zeros((len(self.classes),) * 2, dtype=np.int64)
        self.roc = RocCounts() if len(self.classes) == 2 else None
        self.probabilities = None if self.link is None else ProbabilityCounts()

    @property
    def rows(self) -> int:
        """Rows that count."""
        return int(self.confusion.sum()) + self.other

    @property
    def accuracy(self) -> float:
        """Share of the rows that are predicted right."""
        return float(np.trace(self.confusion)) / self.rows

    def add(self, true: Array, scores: Array, weight: Array | None, shares: Array | None = None) -> None:
        """Add rows: ``true`` numbers of classes, -1 without label, -2 with another one; the model's scores; weights.

        ``shares`` are their probabilities, where the link does not tell them from the scores.
        """
        self.unlabelled += int((true == -1).sum())
        self.other += int((true == -2).sum())
        known, predicted = true >= 0, label_block(scores, np.arange(len(self.classes)))
        np.add.at(self.confusion, (true[known], predicted[known]), 1)
        weight = np.ones(len(true)) if weight is None else weight
        self.weight += float(weight[true != -1].sum())
        self.right_weight += float(weight[true == predicted].sum())
        if self.roc is not None:
            self.roc.add(true[known] == 1, scores[known], weight[known])
        if self.probabilities is not None and self.link is not None:
            found = probabilities(scores[known], self.link) if shares is None else shares[known]
            self.probabilities.add(true[known], found, weight[known])
        margins = _margins(true[known], scores[known])
        self._statistics.update(margins[:, None])
        if self.margins is not None:
            self.margins.append(margins)
        if self.theta is not None:
            sides = np.searchsorted([1.0 - self.theta, 1.0 + self.theta], margins)
            self.band += np.bincount(sides, minlength=3)

    def facts(self) -> dict[str, Any]:
        """Return everything as plain values."""
        facts: dict[str, Any] = {
            "rows": self.rows,
            "accuracy": self.accuracy,
            "weighted_accuracy": self.right_weight / self.weight if self.weight else None,
            "classes": self.classes,
            "confusion": self.confusion.tolist(),
            "other_label_rows": self.other,
            "unlabelled_rows": self.unlabelled,
            **self._class_facts(),
        }
        if self._statistics.count:
            found = self._statistics.result()
            names = ("minimum", "mean", "variance", "maximum")
            facts["margins"] = {name: float(getattr(found, name)[0]) for name in names}
            if self.theta is not None:
                sides = ("below_band", "in_band", "above_band")
                facts["margins"] |= dict(zip(sides, self.band.tolist(), strict=True))
        return facts

    def _class_facts(self) -> dict[str, Any]:
        """Return what confusion, scores and probabilities say; of a class without rows None."""
        right, counts = np.diag(self.confusion), self.confusion
        recall, precision = _shares(right, counts.sum(axis=1)), _shares(right, counts.sum(axis=0))
        met = [share for share in recall if share is not None]
        names = list(map(str, self.classes))
        facts: dict[str, Any] = {
            "balanced_accuracy": float(np.mean(met)) if met else None,
            "precision": dict(zip(names, precision, strict=True)),
            "recall": dict(zip(names, recall, strict=True)),
        }
        if self.roc is not None:
            facts["auc"] = self.roc.area
        if self.probabilities is not None and self.probabilities.weight:
            found = self.probabilities
            facts |= {"log_loss": found.log_loss, "brier": found.brier, "calibration_error": found.calibration_error}
        return facts

    def table(self) -> str:
        """Return the confusion counts as a table: a line for each true class."""
        names = [str(label) for label in self.classes]
        width = max(10, *map(len, names))
        lines = [" ".join(["true \\ predicted".ljust(16), *(name.rjust(width) for name in names)])]
        for name, counts in zip(names, self.confusion.tolist(), strict=True):
            lines.append(" ".join([name.ljust(16), *(str(count).rjust(width) for count in counts)]))
        return "\n".join(lines)


def _shares(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(parts.tolist(), wholes.tolist(), strict=True)]


def _margins(true: Array, scores: Array) -> Array:
    if scores.ndim == 1:
        return np.where(true == 1, 1.0, -1.0) * scores
    own = np.arange(scores.shape[1]) == true[:, None]
    margins: Array = scores[own] - np.where(own, -np.inf, scores).max(axis=1)
    return margins


def evaluate(model: Any, store: Store, *, keep_margins: bool = False) -> Evaluation:
    """Compare a classifier's predictions with the labels of a store, chunk by chunk; labels are matched by value.

    Raises
    ------
    InputError
        No row of the store has a label, no label is one of the model's, or the rows have another number of features.
    """
    if store.y_kind == "real":
        store.require_classes()
    if not store.known_rows or store.classes is None or store.layout.y is None:
        raise InputError(f"store '{store.path}' has no labels to compare with.")
    code = {label: i for i, label in enumerate(model.classes_.tolist())}
    if not set(store.classes) & set(code):
        raise InputError(
            f"none of the labels of store '{store.path}', {list(store.classes)[:10]}, is the model's: {list(code)}."
        )
    table = np.array([*(code.get(label, -2) for label in store.classes), -1])
    theta = getattr(model, "theta", None)
    found = Evaluation(
        model.classes_.tolist(),
        None if theta is None else float(theta),
        margins=[] if keep_margins else None,
        link=getattr(model, "probability_link_", None),
    )
    coupled = found.link is not None and getattr(model._model, "pairs", 0) > 0
    shares = blocks(model.predict_proba(store.path), "probabilities") if coupled else repeat(None)
    for i, scores in enumerate(blocks(model.decision_function(store.path), "evaluate")):
        weight = None if store.layout.weight is None else store.read_chunk(store.layout.weight, i)
        found.add(table[store.read_chunk(store.layout.y, i)], scores, weight, next(shares))
    return found


def compare(model: Any, store: Store) -> Evaluation | Errors:
    """Compare a model's predictions with the labels, or a regressor's with the targets, of a store, chunk by chunk.

    Raises
    ------
    InputError
        As `evaluate`. Of a regressor: the store has no real targets, or the model has several.
    """
    return _errors(model, store) if not hasattr(model, "classes_") else evaluate(model, store)


def _errors(model: Any, store: Store) -> Errors:
    store.require_targets("evaluate")
    if not store.known_rows or store.layout.y is None:
        raise InputError(f"store '{store.path}' has no targets to compare with.")
    lazy, found = model.predict(store.path), Errors()
    if lazy.ndim == 2:
        raise InputError(f"the model predicts {lazy.shape[1]} targets a row, but a store holds one.")
    for i, predicted in enumerate(blocks(lazy, "evaluate")):
        weight = None if store.layout.weight is None else store.read_chunk(store.layout.weight, i)
        found.add(store.read_chunk(store.layout.y, i), predicted, weight)
    return found


def blocks(lazy: Any, phase: str) -> Iterator[Array]:
    """Compute the blocks of a lazy array in order, a few at a time; reports `Progress`."""
    delayed = lazy.to_delayed().ravel().tolist()
    together = 2 * (os.cpu_count() or 1)
    report(Progress(phase, 0, len(delayed)))
    for start in range(0, len(delayed), together):
        done = compute(*delayed[start : start + together])
        report(Progress(phase, start + len(done), len(delayed)))
        yield from done


def check_predictions(out: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Raise InputError where `write_predictions` could not write, before anything is computed."""
    if out == STDOUT:
        return
    path = location_of(out)
    if path.endswith(".zarr"):
        check_target(path, KIND, overwrite=overwrite)
    elif not path.endswith(".csv"):
        raise InputError(f"'{path}' must end in .csv or .zarr, which tells the format, or be - for stdout.")
    elif is_address(path):
        raise InputError(f"'{path}' must end in .zarr: predictions go to an object store in that format only.")
    elif not os.path.isdir(os.path.dirname(path)):
        raise InputError(f"cannot write '{path}': there is no folder '{os.path.dirname(path)}'.")
    elif os.path.isdir(path) or (os.path.lexists(path) and not overwrite):
        raise InputError(f"'{path}' exists; pass overwrite=True (--overwrite) to replace it if it is a file.")


def write_predictions(
    model: Any, store: Store, out: str | os.PathLike[str], *, scores: bool = False, overwrite: bool = False
) -> int:
    """Write a prediction for every row of a store, in their order, and return their number.

    Parameters
    ----------
    model : fitted classifier or regressor
    store : Store
    out : path, or "-" for CSV on stdout
        ``.csv``: one column, ``label`` or ``score``; a column ``score LABEL`` each where a row has a score a class.
        ``.zarr``: array ``score``, or array ``y`` of codes, indices into ``classes`` of the group's attribute
        ``content``. Of a regressor: a column ``prediction``, or one each of several targets; an array ``y`` of
        numbers. Written aside and renamed into place.
    scores : bool
        The decision function instead of labels.
    overwrite : bool
        Replace what an earlier prediction wrote.

    Raises
    ------
    InputError
        The output exists, has another suffix, or the rows have another number of features; or ``scores`` are asked
        of a regressor.
    StoreError
        The disk is full, or the store is damaged.
    """
    check_predictions(out, overwrite=overwrite)
    path = STDOUT if out == STDOUT else location_of(out)
    if not hasattr(model, "classes_"):
        return _write_values(model, store, path, scores=scores, overwrite=overwrite)
    lazy = (model.decision_function if scores else model.predict)(store.path)
    found = blocks(lazy, "predict")
    if _is_text(path):
        each = [f"score {label}" for label in model.classes_.tolist()]
        _write_csv(path, found, each if lazy.ndim == 2 else ["score" if scores else "label"])
    elif scores:
        rows = _Stream(found, (store.rows, *lazy.shape[1:]), store.dtype)
        write_record(path, KIND, {"score": rows}, {"classes": model.classes_.tolist()}, overwrite=overwrite)
    else:
        codes = (np.searchsorted(model.classes_, labels) for labels in found)
        rows = _Stream(codes, (store.rows,), np.dtype(np.int8 if len(model.classes_) < 128 else np.int32))
        write_record(path, KIND, {"y": rows}, {"classes": model.classes_.tolist()}, overwrite=overwrite)
    return store.rows


def _write_values(model: Any, store: Store, path: str, *, scores: bool, overwrite: bool) -> int:
    """What a regressor predicts."""
    if scores:
        raise InputError("a regressor has no decision function (--decision-function): its predictions are numbers.")
    lazy = model.predict(store.path)
    found = blocks(lazy, "predict")
    if _is_text(path):
        each = [f"prediction {j}" for j in range(lazy.shape[1])] if lazy.ndim == 2 else ["prediction"]
        _write_csv(path, found, each)
    else:
        rows = _Stream(found, (store.rows, *lazy.shape[1:]), store.dtype)
        write_record(path, KIND, {"y": rows}, {"targets": model._model.outputs}, overwrite=overwrite)
    return store.rows


def _is_text(path: str) -> bool:
    return path == STDOUT or path.endswith(".csv")


def _write_csv(path: str, found: Iterator[Array], titles: list[str]) -> None:
    if path == STDOUT:
        _write_lines(sys.stdout, found, titles)
        return
    try:
        with owned_file(path) as new:
            with open(new, "w", encoding="utf-8", newline="") as file:
                _write_lines(file, found, titles)
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
    except OSError as error:
        raise StoreError(f"cannot write '{path}': {error.strerror}.") from error


def _write_lines(file: TextIO, found: Iterator[Array], titles: list[str]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(titles)
    for values in found:
        words = values.astype(str) if values.dtype.kind == "f" else values  # the shortest exact text
        writer.writerows(words.reshape(len(words), -1).tolist())


class _Stream:
    """Values that arrive block by block, as a `RowSource` that can be read once, from start to end."""

    def __init__(self, found: Iterator[Array], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.shape, self.dtype = shape, dtype
        self._found, self._left = found, np.empty((0, *shape[1:]), dtype=dtype)

    def __getitem__(self, rows: slice) -> Array:
        count = min(rows.stop, self.shape[0]) - rows.start
        parts = [self._left]
        while sum(map(len, parts)) < count:
            parts.append(next(self._found).astype(self.dtype, copy=False))
        values = np.concatenate(parts)
        self._left = values[count:]
        return values[:count]
