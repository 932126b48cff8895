"""Leave-one-out beside refits and folds, probabilities beside `CalibratedClassifierCV`, the search beside `SVC`.

    DASK_ODM_DATA=folder python benchmarks/left_out.py refits|folds|probabilities|search|pairs [name ...] [--rows N]

Data, splits and scaling are those of `linear_rivals.py`, hand-tuned settings those of `real_data.py`. ``--rows`` takes
only so many of the training rows, and as many test rows.

refits
    Of up to 300 rows, exact kernels: mean distance of the closed form's decision values from those of all n refits,
    and of the training rows' own; accuracy in closed form and by refits.
folds
    Accuracy in closed form, by ten folds and on test rows; seconds of a fit, of one that leaves out, and of the folds.
probabilities
    Log loss, Brier score and calibration error on test rows, and seconds, beside ``CalibratedClassifierCV(SVC, cv=5)``.
search
    Accuracy on test rows of what `ODMClassifierCV` finds from no settings at all, and of hand-tuned settings; seconds
    of the search with its last fit, those that its first trials told, and those of one fit of the tuned `SVC`.
    ``--seed`` is that of the search.
pairs
    Of the sets of `many_classes.py`: accuracy on test rows, in closed form, seconds of fit and predictions, and MB of
    the model's arrays, by pairs of classes and by each class against the rest.

Seconds are of the processor, of all threads of this process: other work on the machine counts little.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from linear_rivals import Data, published
from many_classes import load
from real_data import DATA_SETS
from sklearn.calibration import CalibratedClassifierCV
from sklearn.model_selection import KFold
from sklearn.svm import SVC

from dask_odm import ODMClassifier, ODMClassifierCV
from dask_odm.diagnostics.score_counts import ProbabilityCounts

FOLDS = 10
REFITS = 300
TOL = 1e-6  # of the refits, so that only leaving out tells


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """What it returns, and its seconds."""
    began = time.process_time()
    return call(), time.process_time() - began


def tuned(name: str, share: float, **more: Any) -> ODMClassifier:
    """With hand-tuned settings, on a share of the training rows, each of the same weight."""
    model = ODMClassifier(
        **{"solver": "landmark", "scale": None, "random_state": 0, **DATA_SETS[name].landmark, **more}
    )
    return model.set_params(lam=share * model.lam)


def refits(name: str, data: Data, share: float) -> dict[str, Any]:
    """The closed form beside all n refits."""
    X, y = data[0][:REFITS], data[1][:REFITS]
    given = DATA_SETS[name].landmark
    settings = {key: given[key] for key in ("gamma", "lam", "upsilon", "theta")}
    settings["lam"] *= share * len(y) / len(data[1])  # the same weight of a row
    model = ODMClassifier(solver="exact", loo=True, scale=None, tol=TOL, **settings).fit(X, y)
    settings["lam"] *= 1.0 - 1.0 / len(y)
    true = np.empty(len(y))
    for i in range(len(y)):
        others = np.arange(len(y)) != i
        one = ODMClassifier(solver="exact", scale=None, tol=TOL, **settings).fit(X[others], y[others])
        true[i] = one.decision_function(X[i : i + 1])[0]
    return {
        "rows": len(y),
        "error": float(np.abs(model.loo_decision_function_ - true).mean()),
        "moved": float(np.abs(model.decision_function(X) - true).mean()),
        "loo": model.loo_score_,
        "refits": float(((true > 0) == (y == 1)).mean()),
    }


def folds(name: str, data: Data, share: float) -> dict[str, Any]:
    """The closed form beside ten folds of the same model."""
    X, y, T, t = data
    plain, fit = timed(lambda: tuned(name, share).fit(X, y))
    model, with_loo = timed(lambda: tuned(name, share, loo=True).fit(X, y))

    def by_folds() -> float:
        parts = KFold(FOLDS, shuffle=True, random_state=0).split(X)
        right = [(tuned(name, 0.9 * share).fit(X[a], y[a]).predict(X[b]) == y[b]).sum() for a, b in parts]
        return float(np.sum(right) / len(y))

    accuracy, seconds = timed(by_folds)
    figures = {"loo": model.loo_score_, "folds": accuracy, "test": plain.score(T, t)}
    parameters = {"parameters": model.loo_parameters_, "rows": len(y)}
    return figures | parameters | {"fit_s": fit, "fit_and_loo_s": with_loo, "folds_s": seconds}


def probabilities(name: str, data: Data, share: float) -> dict[str, Any]:
    """Probabilities by the link beside those of SVC by five folds."""
    X, y, T, t = data
    ours, seconds = timed(lambda: tuned(name, share, loo=True).fit(X, y))
    svc = CalibratedClassifierCV(SVC(**DATA_SETS[name].svc), cv=5)
    theirs, svc_seconds = timed(lambda: svc.fit(X, y))
    found: dict[str, Any] = {"rows": len(y)}
    for who, model, spent in (("", ours, seconds), ("svc_", theirs, svc_seconds)):
        counts = ProbabilityCounts()
        counts.add(t, model.predict_proba(T).astype(np.float64), np.ones(len(t)))
        loss, brier, error = counts.facts().values()
        found |= {f"{who}log_loss": loss, f"{who}brier": brier, f"{who}ece": error}
        found[f"{who}s"] = spent
    return found


def search(name: str, data: Data, share: float, seed: int = 0) -> dict[str, Any]:
    """From no settings, beside hand-tuned ones and the seconds of SVC."""
    X, y, T, t = data
    found, seconds = timed(lambda: ODMClassifierCV(random_state=seed).fit(X, y))
    figures = {"search": found.score(T, t), "tuned": tuned(name, share).fit(X, y).score(T, t)}
    _, svc = timed(lambda: SVC(**DATA_SETS[name].svc).fit(X, y))
    told = {"search_s": seconds, "expected_s": found.search_seconds_["expected"], "svc_s": svc}
    return figures | {"rows": len(y), **told, **found.best_params_}


def pairs(name: str, data: Data, share: float) -> dict[str, Any]:
    """Many classes by pairs and by each against the rest, from no settings."""
    X, y, T, t = data
    found: dict[str, Any] = {"rows": len(y), "classes": len(np.unique(y))}
    for scheme in ("ovo", "ovr"):
        model = ODMClassifier(loo=True, random_state=0, multi_class=scheme)
        _, seconds = timed(lambda model=model: model.fit(X, y))
        found |= {scheme: model.score(T, t), f"{scheme}_loo": model.loo_score_, f"{scheme}_s": seconds}
        predicting = min(timed(lambda model=model: model.predict(T))[1] for _ in range(3))
        found |= {f"{scheme}_predict_s": predicting, f"{scheme}_mb": model._model.nbytes / 1e6}
    return found


MEASURES = {each.__name__: each for each in (refits, folds, probabilities, search, pairs)}


def main(argv: list[str] | None = None) -> int:
    """One line of JSON a data set."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("what", choices=MEASURES)
    parser.add_argument("names", nargs="*", default=list(DATA_SETS))
    parser.add_argument("--rows", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", default=os.environ.get("DASK_ODM_DATA"), help="folder of the data sets")
    given = parser.parse_args(argv)
    if given.data is None:
        parser.error("name the folder of the data sets by --data or DASK_ODM_DATA")
    for name in given.names:
        X, y, T, t = (load if given.what == "pairs" else published)(name, Path(given.data))
        data = X[: given.rows], y[: given.rows], T[: given.rows], t[: given.rows]
        warm = ODMClassifierCV() if given.what == "search" else ODMClassifier(solver="landmark", loo=True)
        warm.fit(X[:300], y[:300])  # compiles
        more = {"seed": given.seed} if given.what == "search" else {}
        found = MEASURES[given.what](name, data, len(data[1]) / len(y), **more)
        rounded = {key: round(value, 5) if isinstance(value, float) else value for key, value in found.items()}
        print(json.dumps({"data": name, **rounded}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
