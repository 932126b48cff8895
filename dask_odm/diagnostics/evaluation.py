"""Comparison of a model's predictions with the labels or targets of a store, chunk by chunk in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.sparse import csr_array

from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.data.store.statistics import StatisticsAccumulator, known_targets, listed
from dask_odm.data.store.store import Store
from dask_odm.diagnostics.pipelines import labelled_rows, last_step
from dask_odm.diagnostics.score_counts import Errors, ProbabilityCounts, RocCounts, coverage_facts, range_facts
from dask_odm.diagnostics.summaries import Results
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.lazy import computed_in_order
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import NOT_LABELS
from dask_odm.estimators.inputs.resolved import Given, LazyTable
from dask_odm.estimators.inputs.resolving import resolve, stored
from dask_odm.estimators.scoring import NumberScoring, Scoring, scorers_of
from dask_odm.events import Progress, report
from dask_odm.html import MOST_LINES
from dask_odm.methods.left_out import is_right
from dask_odm.models.classes import codes_of, require_common
from dask_odm.models.predict import code_block
from dask_odm.models.probabilities import probabilities
from dask_odm.models.sets import sets, thresholds_of
from dask_odm.printing import short
from dask_odm.typing import Array

COVERAGES = (0.8, 0.9, 0.95)  # of sets of classes and of intervals that are told


def evaluate(model: Any, store: Any, *, keep_margins: bool = False) -> Any:
    """Compare a model's predictions with the labels or targets of rows, a chunk at a time.

    Parameters
    ----------
    model : fitted estimator
        An estimator of this package, or a scikit-learn Pipeline that ends with one, which gets prepared rows.
    store : Store, str or path, Dataset from `open_store`, or (X, y)
        Rows with labels, matched by value as of `codes_of`, or targets. X and y are as `fit` takes them.
    keep_margins : bool, default=False
        Whether the result has the margin of every row.

    Returns
    -------
    Evaluation by labels, `Errors` by targets, or `Together` of several of a row. ``print`` shows it, and ``facts()``
    returns all results.

    Raises
    ------
    InputError
        Anything else; no labels, or none of the model's; rows with another number of features.
    """
    steps, model = last_step(model, "evaluate")
    if isinstance(store, tuple) and len(store) == 2:
        resolved = resolve(*store, needs_labels=False) if steps else model._resolve(*store)
        if resolved.y is None:
            raise InputError("evaluate needs labels or targets, but y is None.")
        if isinstance(resolved, Given):
            with scratch_folder() as folder:
                return evaluate(model, labelled_rows(steps, model, resolved, folder), keep_margins=keep_margins)
        if isinstance(resolved, LazyTable):
            raise InputError("a pipeline prepares words in memory alone: pass frame.compute(), or some of its rows.")
        with resolved.stored(model._targets) as written:
            return evaluate(steps.pipeline(model), written, keep_margins=keep_margins)
    given, store = store, stored(store)
    if store is None:
        raise InputError(f"evaluate takes a store, its path, or (X, y). Got {type(given).__name__} instead.")
    with scratch_folder() if steps else nullcontext("") as folder:
        prepared = steps.prepared(store, folder)
        several = hasattr(model, "multilabel_") or not hasattr(model, "classes_")
        count = model._model.outputs if several else 1
        held = prepared.targets or 1
        if count != held:
            raise InputError(f"{prepared.name}: {held} labels or targets a row, but the model predicts {count}.")
        return _of_columns(model, prepared) if several else _of_classes(model, prepared, keep_margins=keep_margins)


def _of_classes(model: Any, store: Store, *, keep_margins: bool) -> Evaluation:
    """Compare a classifier's predictions with the labels of a store that has its features."""
    if store.y_kind == "real":
        store.require_classes("evaluate")
    if not store.known_rows:
        raise InputError(f"{store.name} has no labels to compare with.")
    labels = list(store.classes or ())
    classes = listed(model.classes_)
    values = 2 * 8 * store.chunk_rows * len(classes)  # as they are computed, and in the dtype of the rows
    what = f"The decision values of {store.chunk_rows:,} rows, a chunk, for {len(classes):,} classes"
    advice = "Ingest the rows in smaller chunks: chunk_rows (--chunk-rows)."
    Cluster.current(model.memory_limit).require(values, 1, what, advice)
    require_common(labels, classes, store.name)
    table = np.array([*codes_of(labels, classes), -1])
    unknown = np.flatnonzero(table[:-1] < 0)
    strangers = [labels[i] for i in unknown]
    table[unknown] = len(classes) + np.arange(len(unknown))
    # the band of one class is about scores, from which an offset was taken
    theta = None if hasattr(model, "offset_") else getattr(model, "theta", None)
    lacking = model._model.lacking  # classes that had no row, which no link knows
    found = Evaluation(
        classes, None if theta is None else float(theta), strangers, margins=[] if keep_margins else None,
        link=getattr(model, "probability_link_", None),
        conformity=None if lacking else getattr(model, "conformity_", None),
        threshold=getattr(model, "threshold_", 0.0),
    )  # fmt: skip
    computed = found.link is not None and (getattr(model._model, "pairs", 0) > 0 or lacking)
    shares = blocks(store, model.predict_proba(store.path), "probabilities") if computed else repeat(None)
    for y, scores, weight in _beside_targets(store, model.decision_function(store.path)):
        found.add(table[y], scores, weight, next(shares))
    return found


def scores_of(model: Any, store: Store, scoring: Any) -> dict[str, float]:
    """Return scores by scikit-learn's scorers, by name, of the rows of a store whose label a classifier has.

    Their decision values are held, a number per row and class; of a regressor, predictions. Raises InputError for a
    scorer that does not suit the classes, and one of probabilities if the model has none, or learned pairs of classes.
    """
    scorers = scorers_of(scoring)
    values, y, weight = model._values_of_labelled(store.path, None, None)
    score: Any = NumberScoring(scorers)
    if hasattr(model, "classes_"):
        link = None if getattr(model._model, "pairs", 0) else getattr(model, "probability_link_", None)
        threshold = getattr(model, "threshold_", 0.0)
        score = Scoring(scorers, model.classes_, threshold, link, fits=False, lacking=model._model.lacking)
    found = score(values, y, np.ones(len(y)) if weight is None else weight)
    return dict(zip(scorers, found.tolist(), strict=True))


def _of_columns(model: Any, store: Store) -> Errors | Together:
    """Compare the predictions of a regressor, or of several labels, with a store that has the model's features."""
    of_labels = hasattr(model, "multilabel_")
    if of_labels and not store.facts.labels:
        raise InputError(NOT_LABELS)
    store.require_targets("evaluate")
    if not store.known_rows:
        raise InputError(f"{store.name} has no targets to compare with.")
    count = store.targets or 1
    each: list[Any] = [Errors() for _ in range(count)]
    if of_labels:  # each with its own link and boundary
        links = np.split(model.probability_link_, count) if hasattr(model, "probability_link_") else [None] * count
        thresholds = model.threshold_.tolist() if hasattr(model, "threshold_") else [0.0] * count
        made = zip(links, thresholds, strict=True)
        each = [Evaluation([0, 1], None, link=link, threshold=threshold) for link, threshold in made]
    giver = model
    made_by: dict[float, Any] = {}  # what makes intervals, by coverage
    if hasattr(model, "predict_interval") and hasattr(model, "conformity_"):
        for share in COVERAGES:
            giver, made_by[share] = model._of_intervals(share)
    right = total = 0.0
    for y, values, weight in _beside_targets(store, giver._values(giver._resolve(store.path))):
        known = known_targets(y)  # of rows that miss another target, too, nothing counts
        true = np.where(known[:, None], y.reshape(len(y), -1), -1 if of_labels else np.nan)
        predicted = values.reshape(len(y), -1)
        if of_labels:
            true = true.astype(np.int64)
            shares = known * (1.0 if weight is None else weight)
            right += float(shares @ is_right(predicted, true))
            total += float(shares.sum())
        held = {share: then(values).reshape(len(y), -1, 2) for share, then in made_by.items()}
        for j, one in enumerate(each):
            more = {"intervals": {share: pairs[:, j] for share, pairs in held.items()}} if held else {}
            one.add(true[:, j], predicted[:, j], weight, **more)
    if not store.targets:
        return each[0]
    names = map(str, range(count))
    return Together(dict(zip(names, each, strict=True)), getattr(model, "threshold_", None), right, total)


@dataclass(eq=False)
class Together(Results):
    """Comparisons of the labels or targets of a row, each by itself, and how many rows have all labels right."""

    each: dict[str, Any]  # `Evaluation` or `Errors` by name
    thresholds: Array | None = None  # of labels whose boundary was moved
    right: float = 0.0
    weight: float = 0.0

    def facts(self) -> dict[str, Any]:
        """Return the number of rows, the score of all labels or targets together, and the results of each."""
        each = {name: one.facts() for name, one in self.each.items()}
        told = next(iter(each.values()))
        of_labels = "accuracy" in told
        score = self.right / self.weight if of_labels else float(np.mean([facts["r2"] for facts in each.values()]))
        return {"rows": told["rows"], "accuracy" if of_labels else "r2": score, "each": each}

    def worst(self) -> tuple[str, Any]:
        """Return name and comparison of the label with the least area under the ROC, or the target of the least R²."""
        each = self.facts()["each"]
        name = min(each, key=lambda name: each[name].get("r2", each[name].get("auc") or 1.0))
        return name, self.each[name]

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines of a table, one for each label or target, by the names of its columns."""
        found: list[dict[str, Any]] = []
        for i, (name, told) in enumerate(self.facts()["each"].items()):
            if "accuracy" in told:
                line = {"label": short(name), "rows with it": int(self.each[name].counts.sum(axis=1)[1])}
                line |= {score: told[score]["1"] for score in ("precision", "recall")}
                line |= {"area under the ROC curve": told["auc"]}
                line |= {} if self.thresholds is None else {"boundary moved by": float(self.thresholds[i])}
            else:
                line = {"target": short(name), "R²": told["r2"], "root mean squared error": told["rmse"]}
                line |= {"mean absolute error": told["mean_absolute_error"]}
                each = told.get("intervals", {}).items()
                line |= {f"targets in their interval for {float(share):.0%}": facts["held"] for share, facts in each}
            found.append(line)
        return found

    def table(self) -> str:
        """Return the lines as text."""
        return pd.DataFrame(self.lines()).to_string(index=False)


def _beside_targets(store: Store, lazy: Any) -> Iterator[tuple[Any, Array, Array | None]]:
    """Yield the targets, the predictions and the weights of every chunk of a store."""
    for i, predicted in enumerate(blocks(store, lazy, "evaluate")):
        block = store.read_columns(i)
        yield block.y, predicted, block.weight


def blocks(store: Store, lazy: Any, phase: str) -> Iterator[Array]:
    """Yield a lazy array's values of every chunk of a store in order, and report `Progress`.

    A few are computed at a time, on workers ahead of what is asked for.
    """
    count = lazy.numblocks[0]
    report(Progress(phase, 0, count))
    chunk = 0
    for i, done in enumerate(computed_in_order(lazy)):
        report(Progress(phase, i + 1, count))
        at = 0
        while at < len(done):
            rows = store.chunk_slice(chunk)
            yield done[at : at + rows.stop - rows.start]
            at += rows.stop - rows.start
            chunk += 1


@dataclass
class Evaluation(Results):
    """Comparison of a classifier's predictions with labels, updated chunk by chunk.

    ``strangers`` are labels of rows that the model does not have; such rows count as wrong. ``counts`` (classes +
    strangers, classes), sparse, are the rows by true and predicted class. Rows without a label do not count. ``band``
    (3,) counts the rows with a margin below, within and above 1 ± ``theta``. Margins are ``y f(x)`` for one score per
    row, else the score of the row's own class less the largest other score; a list passed as ``margins`` is filled with
    them.
    ``link`` makes probabilities of scores before a ``threshold`` was taken off, and ``conformity`` sets of classes.
    """

    classes: list[Any]
    theta: float | None
    strangers: list[Any] = field(default_factory=list)
    counts: Any = field(init=False)
    unlabelled: int = 0
    right_weight: float = 0.0
    weight: float = 0.0
    band: NDArray[np.int64] = field(default_factory=lambda: np.zeros(3, dtype=np.int64))
    margins: list[Array] | None = None
    link: Array | None = None
    conformity: Array | None = None
    threshold: float = 0.0
    roc: RocCounts | None = field(init=False)
    probabilities: ProbabilityCounts | None = field(init=False)
    sets: dict[float, NDArray[np.float64]] = field(default_factory=dict)  # by coverage: weight, held, classes, empty
    _statistics: StatisticsAccumulator = field(default_factory=lambda: StatisticsAccumulator(1))

    def __post_init__(self) -> None:
        self.counts = csr_array((len(self.classes) + len(self.strangers), len(self.classes)), dtype=np.int64)
        self.roc = RocCounts() if len(self.classes) == 2 else None
        self.probabilities = None if self.link is None else ProbabilityCounts()

    @property
    def confusion(self) -> NDArray[np.int64]:
        """The rows by true and predicted class, (classes + strangers, classes)."""
        return self.counts.toarray()

    @property
    def rows(self) -> int:
        """Number of rows that count."""
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        """Share of the rows that are predicted right."""
        return float(self.counts.diagonal().sum()) / self.rows

    def add(self, true: Array, scores: Array, weight: Array | None, shares: Array | None = None) -> None:
        """Add rows, by their ``true`` rows of the confusion table (-1 without label), scores and weights.

        ``shares`` are their probabilities, if the link cannot compute these from the scores.
        """
        labelled = true >= 0
        predicted = code_block(scores)
        self.unlabelled += int((~labelled).sum())
        places = true[labelled], predicted[labelled]
        self.counts += csr_array((np.ones(len(places[0]), np.int64), places), self.counts.shape)
        weight = np.ones(len(true)) if weight is None else weight
        self.weight += float(weight[labelled].sum())
        self.right_weight += float(weight[true == predicted].sum())
        known = labelled & (true < len(self.classes))
        if self.roc is not None:
            self.roc.add(true[known] == 1, scores[known], weight[known])
        if self.probabilities is not None and self.link is not None:
            found = probabilities(scores[known], self.link, self.threshold) if shares is None else shares[known]
            self.probabilities.add(true[known], found, weight[known])
        for coverage in COVERAGES if self.conformity is not None else ():
            assert self.conformity is not None
            found = sets(scores[known], thresholds_of(self.conformity, coverage, by_class=False), self.threshold)
            size = found.sum(axis=1)
            columns = np.stack([np.ones(len(size)), found[np.arange(len(size)), true[known]], size, size == 0])
            self.sets[coverage] = self.sets.get(coverage, np.zeros(4)) + columns @ weight[known]
        margins = _margins(true[known], scores[known])
        self._statistics.update(margins[:, None])
        if self.margins is not None:
            self.margins.append(margins)
        if self.theta is not None:
            sides = np.searchsorted([1.0 - self.theta, 1.0 + self.theta], margins)
            self.band += np.bincount(sides, minlength=3)

    def set_facts(self) -> dict[str, dict[str, float]]:
        """Return how many rows' sets hold their class, how many classes they have, and how many are empty."""
        return coverage_facts(self.sets, ("held", "size", "empty"))

    def facts(self) -> dict[str, Any]:
        """Return all results as plain values."""
        facts: dict[str, Any] = {
            "rows": self.rows,
            "accuracy": self.accuracy,
            "weighted_accuracy": self.right_weight / self.weight if self.weight else None,
            "classes": self.classes,
            # that of more than a thousand classes has millions of numbers
            "confusion": self.confusion[: len(self.classes)].tolist() if len(self.classes) <= 1000 else None,
            "other_label_rows": int(self._strange.sum()),
            "other_labels": dict(zip(map(str, self.strangers), self._strange.tolist(), strict=True)),
            "unlabelled_rows": self.unlabelled,
            **self._class_facts(),
            **({"sets": self.set_facts()} if self.sets else {}),
        }
        if self._statistics.count:
            facts["margins"] = range_facts(self._statistics)
            if self.theta is not None:
                sides = ("below_band", "in_band", "above_band")
                facts["margins"] |= dict(zip(sides, self.band.tolist(), strict=True))
        return facts

    @property
    def _strange(self) -> NDArray[np.int64]:
        """Number of rows of each label that the model does not have."""
        return self.counts.sum(axis=1)[len(self.classes) :]

    def _class_facts(self) -> dict[str, Any]:
        """Return the results from confusion, scores and probabilities. A class without rows has None."""
        right = self.counts.diagonal()
        counts = self.counts
        recall = _shares(right, counts.sum(axis=1)[: len(self.classes)])
        precision = _shares(right, counts.sum(axis=0))
        met = [share for share in recall if share is not None] + [0.0] * int(np.count_nonzero(self._strange))
        names = list(map(str, self.classes))
        said = self.probabilities
        return {
            "balanced_accuracy": float(np.mean(met)) if met else None,
            "precision": dict(zip(names, precision, strict=True)),
            "recall": dict(zip(names, recall, strict=True)),
            **({"auc": self.roc.area} if self.roc is not None else {}),
            **(said.facts() if said is not None and said.weight else {}),
        }

    def table(self, most: int = 8) -> str:
        """Return a line of counts for each true class, and for at most ``most`` labels that the model lacks.

        Of more than 60 classes, return the most frequent mistakes.
        """
        if len(self.classes) > MOST_LINES:
            return self._mistakes()
        classes = pd.Index(map(short, self.classes), name="true \\ predicted")
        shown = [*classes, *(f"{short(label)} (unknown)" for label in self.strangers[:most])]
        table = pd.DataFrame(self.confusion[: len(shown)], shown, classes).to_string()
        more = len(self.strangers) - most
        return f"{table}\n… and {more} more unknown labels" if more > 0 else table

    def _mistakes(self) -> str:
        """Return which classes are most often taken for which."""
        found = self.counts.tocoo()
        wrong = np.flatnonzero(found.row != found.col)
        first = wrong[np.argsort(-found.data[wrong], kind="stable")[:10]]
        names = [*self.classes, *self.strangers]
        rows = [(short(names[i]), short(names[j])) for i, j in zip(found.row[first], found.col[first], strict=True)]
        table = pd.DataFrame(rows, columns=["true", "predicted"]).assign(rows=found.data[first])
        most = f"the most frequent mistakes of {len(self.classes):,} classes" if rows else "no mistakes"
        return f"{most}\n{table.to_string(index=False)}" if rows else most


def _shares(parts: NDArray[np.int64], wholes: NDArray[np.int64]) -> list[float | None]:
    return [part / whole if whole else None for part, whole in zip(parts.tolist(), wholes.tolist(), strict=True)]


def _margins(true: Array, scores: Array) -> Array:
    if scores.ndim == 1:
        return np.where(true == 1, 1.0, -1.0) * scores
    own = np.arange(scores.shape[1]) == true[:, None]
    return scores[own] - np.where(own, -np.inf, scores).max(axis=1)
