"""Accuracy of defaults: scaling × λ/n of `ODMClassifier` on two dozen sets, beside SVC and boosting at their defaults.

    python benchmarks/defaults.py                            # sets of scikit-learn and generators
    DASK_ODM_DATA=folder python benchmarks/defaults.py       # and the sets in LIBSVM form in a folder
    python benchmarks/defaults.py iris wine --lams 2,8 --scales minmax,standard

Every set is cut into rows to learn from and rows held out, at most ``--rows`` each; sets of fewer are cut three times.
A line of the first table is the accuracy on held-out rows of one set. The second table has means over all sets of every
scaling (rows) and λ/n (columns); the third has the seconds of all fits. "lam=1e4" does not scale, and "C=1" is SVC
after `StandardScaler`.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import vstack
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_svmlight_file,
    load_wine,
    make_classification,
    make_friedman1,
    make_moons,
)
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.model_selection import StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from dask_odm import ODMClassifier

READ = 40_000  # most rows of a file from which rows are drawn
FILES = {
    "svmguide1": 4, "phishing": 68, "a7a": 123, "cod-rna": 8, "ijcnn1": 22, "skin-nonskin": 3, "mushrooms": 112,
    "madelon": 500, "susy_sub30k": 18, "covtype": 54, "letter": 16, "satimage": 36, "usps": 256, "mnist10k": 784,
    "cadata": 8, "cpusmall": 12,
}  # fmt: skip
Rows = tuple[Any, Any]


def stretched(load: Callable[[], Rows]) -> Rows:
    """Multiply the columns by powers of ten from 10⁻³ to 10³, as tables of unlike units have them."""
    X, y = load()
    return X * 10.0 ** np.random.default_rng(0).integers(-3, 4, X.shape[1]), y


def noisy(n: int) -> Rows:
    return make_classification(n, 20, n_informative=8, flip_y=0.1, class_sep=0.7, random_state=0)


def friedman() -> Rows:
    X, y = make_friedman1(4000, 10, noise=2.0, random_state=0)
    return X, y > np.median(y)


def read(name: str, features: int) -> Rows:
    """Return all parts of a set; real targets become two classes, above their median or not."""
    parts = []
    for path in sorted(Path(os.environ["DASK_ODM_DATA"]).glob(f"{name}.*svm.xz")):
        with lzma.open(path) as file:
            parts.append(load_svmlight_file(file, n_features=features))
    X, y = vstack([X for X, _ in parts]).tocsr(), np.concatenate([y for _, y in parts])
    some = np.random.default_rng(0).permutation(len(y))[:READ]
    X, y = X[some].toarray(), y[some]
    return X, (y > np.median(y)) if len(np.unique(y)) > 50 else y


def all_sets() -> dict[str, Callable[[], Rows]]:
    """Return a function for every set that loads it."""
    bundled = {"iris": load_iris, "wine": load_wine, "breast_cancer": load_breast_cancer, "digits": load_digits}
    sets: dict[str, Callable[[], Rows]] = {name: partial(load, return_X_y=True) for name, load in bundled.items()}
    sets |= {"noisy_1000": partial(noisy, 1000), "noisy_4000": partial(noisy, 4000), "friedman": friedman}
    sets["moons"] = partial(make_moons, 1000, noise=0.3, random_state=0)
    if "DASK_ODM_DATA" in os.environ:
        sets |= {name: partial(read, name, features) for name, features in FILES.items()}
    several = [name for name in ("breast_cancer", "noisy_4000", "satimage", "susy_sub30k") if name in sets]
    return sets | {f"{name}, stretched": partial(stretched, sets[name]) for name in several}


def measure(load: Callable[[], Rows], models: dict[str, Any], most: int) -> dict[str, tuple[float, float]]:
    """Return mean accuracy and seconds of every model, which is made by the number of rows to learn from."""
    X, y = load()
    y = np.unique(y, return_inverse=True)[1]
    n = min(most, int(0.7 * len(y)))
    cuts = StratifiedShuffleSplit(1 if n == most else 3, test_size=min(most, len(y) - n), train_size=n, random_state=0)
    found: dict[str, list[tuple[float, float]]] = {key: [] for key in models}
    for train, test in cuts.split(X, y):
        for key, model in models.items():
            made = model(n)
            began = time.perf_counter()
            made.fit(X[train], y[train])
            seconds = time.perf_counter() - began
            found[key].append((float(made.score(X[test], y[test])), seconds))
    return {key: tuple(np.mean(values, axis=0).tolist()) for key, values in found.items()}


def ours(n: int, scale: str | None, share: float) -> Any:
    return ODMClassifier(scale=scale, lam=share * n, random_state=0)


def table(title: str, scales: list[str], lams: list[float], value: Callable[[str], float], digits: int) -> None:
    print(f"\n| {title} | {' | '.join(f'{each:g}' for each in lams)} |\n|---|{'---|' * len(lams)}")
    for scale in scales:
        values = [f"{value(f'{scale}, {lam:g}'):.{digits}f}" for lam in lams]
        print(f"| {scale} | {' | '.join(values)} |")


def main(arguments: list[str] | None = None) -> None:
    sets = all_sets()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="SET", choices=[[], *sets], help="sets, by default all")
    parser.add_argument("--rows", type=int, default=1000, help="most rows to learn from, and most held out")
    parser.add_argument("--lams", default="1,2,4,8,16", help="values of λ/n")
    parser.add_argument("--scales", default="minmax,standard")
    options = parser.parse_args(arguments)
    scales, lams = options.scales.split(","), [float(each) for each in options.lams.split(",")]
    rivals: dict[str, Any] = {
        "lam=1e4": lambda n: ODMClassifier(scale=None, lam=1e4, random_state=0),
        "C=1": lambda n: make_pipeline(StandardScaler(), SVC()),
        "boosting": lambda n: HistGradientBoostingClassifier(random_state=0),
    }
    tried = {
        f"{scale}, {lam:g}": partial(ours, scale=None if scale == "none" else scale, share=lam)
        for scale in scales for lam in lams
    }  # fmt: skip
    found: dict[str, dict[str, tuple[float, float]]] = {}
    print(f"| set | {' | '.join(rivals | tried)} |\n|---|{'---|' * len(rivals | tried)}")
    for name in options.names or sets:
        found[name] = measure(sets[name], rivals | tried, options.rows)
        print(f"| {name} | {' | '.join(f'{right:.3f}' for right, _ in found[name].values())} |", flush=True)
    means = {key: np.mean([each[key][0] for each in found.values()]) for key in rivals | tried}
    print(f"| mean | {' | '.join(f'{each:.3f}' for each in means.values())} |")
    table("mean accuracy, λ/n:", scales, lams, lambda key: float(means[key]), 4)
    table("seconds, λ/n:", scales, lams, lambda key: sum(each[key][1] for each in found.values()), 1)


if __name__ == "__main__":
    main()
