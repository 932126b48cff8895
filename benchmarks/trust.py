"""What is made of left-out values, beside refits, scikit-learn and MAPIE: scores, groups, thresholds, sets, intervals.

    DASK_ODM_DATA=folder python benchmarks/trust.py [scores groups thresholds sets importance outliers intervals]
        [searches] [--names a7a ...] [--tables hourly ...] [--rows N]

prints a Markdown table for each. Data, splits and scaling are those of `linear_rivals.py`, settings those of
`real_data.py`; of the training rows only ``--rows`` are learned from, and as many test rows are judged.

scores
    Scores of left-out rows by `loo_score`, and by scikit-learn's scorers from refits of twenty folds.
groups
    Rows in 30 clusters, each left out whole: mean distance of decision values in closed form from those of refits
    without the cluster, and of those of rows that were left out singly; accuracy by all three.
thresholds
    Balanced accuracy on test rows with no threshold, with `tune_threshold`, and with `TunedThresholdClassifierCV`.
sets
    Coverage of test rows by sets for 90 %, and their mean size: `predict_set`, and MAPIE's `CrossConformalClassifier`
    of the same classifier in five folds ("–" if MAPIE is not installed).
importance
    Loss of accuracy on test rows by `permutation_importance` over a store, beside scikit-learn's of the same model: the
    largest loss of both, the largest difference of two losses of a feature, and seconds. Either draws its rows.
outliers
    One class is learned, and test rows of both are told apart: area under the ROC curve, and the share of rows of the
    learned class that are false alarms where .1 is asked for, of `OneClassODM` and of `OneClassSVM`.
intervals
    Share of test rows whose target is in its interval for 80, 90 and 95 %, and mean width for 90 % in deviations of the
    targets, with ``noise="even"`` and "uneven", from no other settings: tables of numbers of `table_sets.py`, means of
    five cuts. The last line is the largest distance from what was asked for.
searches
    `loo_score_` of a search from no settings less the accuracy on test rows, of ``--tables`` of `table_sets.py`: mean
    over ten cuts, its standard error, the deviation of one cut, and the one that the counts of rows alone make. Only
    if it is named.

Seconds are of the wall clock, after a fit of a few rows, which compiles.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from linear_rivals import SETS, Data, published
from real_data import DATA_SETS
from sklearn.base import clone
from sklearn.cluster import KMeans
from sklearn.inspection import permutation_importance as sklearn_importance
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold, TunedThresholdClassifierCV, cross_validate
from sklearn.svm import OneClassSVM
from table_sets import TABLES, cut

from dask_odm import ODMClassifier, ODMClassifierCV, ODMRegressor, OneClassODM, ingest, permutation_importance

GROUPS = 30
NU = 0.1
SCORES = ("accuracy", "roc_auc", "average_precision", "neg_log_loss")
Row = list[Any]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and its seconds."""
    began = time.perf_counter()
    return call(), time.perf_counter() - began


def model_of(name: str, rows: int, train: int, **more: Any) -> ODMClassifier:
    """The hand-tuned settings, with the weight that a row has among all training rows."""
    given = DATA_SETS[name].landmark
    settings = {key: given[key] for key in ("gamma", "lam", "upsilon", "theta")}
    settings["lam"] *= rows / train
    return ODMClassifier(**settings, scale=None, random_state=0, **more)


def scores(name: str, data: Data, train: int) -> Row:
    """Several scores, in closed form and by refits."""
    X, y = data[:2]
    model, fit = timed(lambda: model_of(name, len(y), train, loo=True).fit(X, y))
    closed, scoring = timed(lambda: model.loo_score(list(SCORES)))
    folds = StratifiedKFold(20, shuffle=True, random_state=0)
    refits, seconds = timed(lambda: cross_validate(clone(model), X, y, cv=folds, scoring=list(SCORES)))
    pairs = [(closed[each], float(refits[f"test_{each}"].mean())) for each in SCORES]
    return [*(value for pair in pairs for value in pair), fit + scoring, seconds]


def groups(name: str, data: Data, train: int) -> Row:
    """Whole groups that are left out, in closed form and by refits."""
    X, y = data[:2]
    group = KMeans(GROUPS, n_init=1, random_state=0).fit_predict(X)
    model = model_of(name, len(y), train, solver="exact")
    _, plain = timed(lambda: clone(model).fit(X, y))
    model.set_params(loo=True)
    singly = clone(model).fit(X, y)
    _, closed = timed(lambda: model.fit(X, y, groups=group))

    def by_refits() -> Any:
        out = np.empty(len(y))
        for each in range(GROUPS):
            own = group == each
            other = model_of(name, int((~own).sum()), train, solver="exact").fit(X[~own], y[~own])
            out[own] = other.decision_function(X[own])
        return out

    true, refits = timed(by_refits)
    values = model.loo_decision_function_, singly.loo_decision_function_
    errors = [float(np.abs(each - true).mean()) for each in values]
    right = [float(((each > 0) == (y == 1)).mean()) for each in (values[0], true, values[1])]
    return [*errors, *right, plain, closed, refits]


def thresholds(name: str, data: Data, train: int) -> Row:
    """A threshold by left-out values, and by refits of folds."""
    X, y, T, t = data
    model, ours = timed(lambda: model_of(name, len(y), train, loo=True).fit(X, y))
    untouched = balanced_accuracy_score(t, model.predict(T))
    _, tuning = timed(lambda: model.tune_threshold("balanced_accuracy"))
    folds = TunedThresholdClassifierCV(model_of(name, len(y), train), scoring="balanced_accuracy")
    _, theirs = timed(lambda: folds.fit(X, y))
    tuned = [balanced_accuracy_score(t, each.predict(T)) for each in (model, folds)]
    return [untouched, *tuned, ours + tuning, theirs]


def sets(name: str, data: Data, train: int) -> Row:
    """Sets of classes by left-out values, and by folds."""
    X, y, T, t = data
    model, seconds = timed(lambda: model_of(name, len(y), train, loo=True).fit(X, y))
    found = [model.predict_set(T)]
    times = [seconds]
    try:
        from mapie.classification import CrossConformalClassifier
    except ImportError:
        return [*_of_sets(found[0], t), seconds, None, None, None]
    rival = CrossConformalClassifier(clone(model), confidence_level=0.9, conformity_score="lac", cv=5, random_state=0)
    _, seconds = timed(lambda: rival.fit_conformalize(X, y))
    found.append(rival.predict_set(T)[1][:, :, 0])
    return [*_of_sets(found[0], t), times[0], *_of_sets(found[1], t), seconds]


def _of_sets(found: Any, t: Any) -> tuple[float, float]:
    return float(found[np.arange(len(t)), t].mean()), float(found.sum(axis=1).mean())


def importance(name: str, data: Data, train: int) -> Row:
    """Importance of features over a store, and in memory by scikit-learn."""
    X, y, T, t = data
    model = model_of(name, len(y), train).fit(X, y)
    with tempfile.TemporaryDirectory() as folder:
        store = ingest((T, t), f"{folder}/test.zarr")
        ours, seconds = timed(lambda: permutation_importance(model, store))
    rival, its = timed(lambda: sklearn_importance(model, T, t, n_repeats=5, random_state=0))
    means = ours.importances_mean, rival.importances_mean
    return [*(float(each.max()) for each in means), float(np.abs(means[0] - means[1]).max()), seconds, its]


def outliers(name: str, data: Data, train: int) -> Row:
    """The larger class alone is learned."""
    X, y, T, t = data
    own = int(y.mean() > 0.5)
    X = X[y == own]
    row: Row = []
    models = OneClassODM(NU, gamma=DATA_SETS[name].landmark["gamma"], lam=1e3, scale=None, random_state=0), None
    for ours in models:
        model = OneClassSVM(nu=NU, gamma=models[0].gamma) if ours is None else ours
        _, fit = timed(lambda model=model: model.fit(X))
        values, predict = timed(lambda model=model: model.decision_function(T))
        row += [roc_auc_score(t == own, values), float((values[t == own] < 0).mean()), fit, predict]
    return row


def intervals(rows: int) -> None:
    """Print how often intervals hold the target of rows that were not learned from."""
    coverages = (0.8, 0.9, 0.95)
    head = " | ".join(f"{noise}: {' | '.join(map(str, coverages))} | width" for noise in ("even", "uneven"))
    print(f"\n| intervals | {head} | R² |\n|{'---|' * (2 * len(coverages) + 4)}", flush=True)
    off = []
    for name, table in TABLES.items():
        if not table.numbers:
            continue
        found = []
        data = table.load()
        for seed in range(5):
            part = cut(data, True, rows, 3000, seed)
            T, t = part["test"], part["y_test"]
            for noise in ("even", "uneven"):
                model = ODMRegressor(loo=True, noise=noise, random_state=0).fit(part["X"], part["y"])
                for coverage in coverages:
                    low, high = model.predict_interval(T, coverage).T
                    found.append(float(((low <= t) & (t <= high)).mean()))
                low, high = model.predict_interval(T, 0.9).T
                found.append(float((high - low).mean() / part["y"].std()))
            found.append(model.score(T, t))
        means = np.reshape(found, (5, -1)).mean(axis=0)
        both = means[: 2 * len(coverages) + 2].reshape(2, -1)[:, :-1]
        off.append(float(np.abs(both - coverages).max()))
        print(f"| {name} | {' | '.join(f'{each:.3f}' for each in means)} |", flush=True)
    print(f"\nat most {max(off):.3f} from what was asked for, in {len(off)} sets")


def searches(names: list[str], rows: int) -> None:
    """Print how far left-out scores of searches are from those of test rows, over cuts."""
    print(f"\n| searches | left out - test | ± | of a cut | by counts |\n|{'---|' * 5}", flush=True)
    for name in names:
        data, found = TABLES[name].load(), []
        for seed in range(10):
            part = cut(data, False, rows, 30_000, seed)
            model = ODMClassifierCV(loo=True, random_state=seed).fit(part["X"], part["y"])
            pair = model.loo_score_, model.score(part["test"], part["y_test"])
            counts = len(part["y"]), len(part["y_test"])
            chance = sum(share * (1.0 - share) / count for share, count in zip(pair, counts, strict=True))
            found.append((pair[0] - pair[1], chance))
        off, chance = np.transpose(found)
        cells = off.mean(), off.std(ddof=1) / len(off) ** 0.5, off.std(ddof=1), chance.mean() ** 0.5
        print(f"| {name} | {' | '.join(f'{each:.4f}' for each in cells)} |", flush=True)


MEASURES: dict[str, tuple[Callable[[str, Data, int], Row], str]] = {
    "scores": (
        scores,
        "accuracy | folds | AUC | folds | average precision | folds | -log loss | folds | s | folds, s",
    ),
    "groups": (
        groups,
        "error, groups | error, singly | accuracy, groups | refits | singly | fit, s | with groups, s | refits, s",
    ),
    "thresholds": (thresholds, "none | left out | TunedThresholdClassifierCV | s | its s"),
    "sets": (sets, "coverage | size | s | MAPIE's coverage | size | s"),
    "importance": (importance, "largest | scikit-learn's | difference | s | its s"),
    "outliers": (
        outliers,
        "AUC | false alarms | fit, s | predict, s | OneClassSVM's AUC | false alarms | fit, s | predict, s",
    ),
}


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", nargs="*", default=[*MEASURES, "intervals"])
    parser.add_argument("--names", nargs="+", default=list(SETS))
    parser.add_argument("--tables", nargs="+", default=["hourly"], help="of searches")
    parser.add_argument("--rows", type=int, default=3000)
    parser.add_argument("--data", default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    given = parser.parse_args(argv)
    if given.data is None:
        parser.error("name the folder of the data sets by --data or DASK_ODM_DATA")
    warnings.simplefilter("ignore")
    held = {name: published(name, Path(given.data)) for name in given.names}
    for what in given.what:
        if what == "intervals":
            intervals(given.rows)
            continue
        if what == "searches":
            searches(given.tables, given.rows)
            continue
        measure, head = MEASURES[what]
        print(f"\n| {what} | {head} |\n|{'---|' * (head.count('|') + 2)}", flush=True)
        for i, (name, (X, y, T, t)) in enumerate(held.items()):
            if not i:
                measure(name, (X[:200], y[:200], T[:200], t[:200]), len(y))  # compiles
            rows = slice(0, given.rows)
            row = measure(name, (X[rows], y[rows], T[rows], t[rows]), len(y))
            print(f"| {name} | {' | '.join('–' if each is None else f'{each:.4g}' for each in row)} |", flush=True)


if __name__ == "__main__":
    main()
