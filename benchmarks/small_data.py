"""Small data beside SVC and scikit-learn-intelex's, linear models beside LinearSVC: seconds in one process, in turns.

    python benchmarks/small_data.py    # 100 … 10,000 rows, dense and CSR, plain and tuned; linear sets
    python benchmarks/small_data.py --rows 100,1000 --repeats 5
    DASK_ODM_DATA=folder python benchmarks/small_data.py --rows "" --published    # linear sets
    python benchmarks/small_data.py --rows "" --scale 0 --text 1    # kernels of text

A line is Markdown. Seconds are the least of the repeats; a ratio above 1 says that dask_odm is faster. The first lines
have what the machine does: products of matrices in float32 and float64, and reading memory.
"""

from __future__ import annotations

import argparse
import lzma
import os
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, csr_matrix, random_array, vstack
from sklearn.datasets import load_svmlight_file, make_classification
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

from dask_odm import ODMClassifier
from dask_odm.solvers import Landmark

PLAIN = {"lam": 1e4, "scale": None}
TUNED = {"lam": 1e4, "theta": 0.1, "upsilon": 0.2, "scale": "minmax"}
Case = tuple[str, Any, Any, Any, Any]


def kernel_cases(rows: list[int]) -> Iterator[Case]:
    """Name, X, y, our model and its rival: 20 features, of which half say something."""
    rivals = {"SVC": SVC}
    if find_spec("sklearnex"):
        rivals["intelex"] = import_module("sklearnex.svm").SVC
    for n in rows:
        X, y = make_classification(n, 20, n_informative=10, random_state=0)
        thin = np.where(np.abs(X) > 1.0, X, 0.0)
        for (form, given), (name, rival) in product((("dense", X), ("CSR", csr_array(thin))), rivals.items()):
            yield f"{n:,} × 20, {form}, plain, {name}", given, y, ODMClassifier(random_state=0, **PLAIN), rival()
            yield f"{n:,} × 20, {form}, tuned, {name}", given, y, ODMClassifier(random_state=0, **TUNED), rival(C=10.0)


def linear_cases(scale: float) -> Iterator[Case]:
    """As `kernel_cases`: binary rows, a third of them repeats, and text, dense and CSR; fewer rows than features."""
    rng = np.random.default_rng(0)
    ours, rival = ODMClassifier("linear", **PLAIN), LinearSVC()
    n = int(50_000 * scale)
    binary = (rng.random((n, 300)) < 0.04).astype(float)
    binary[-n // 3 :] = binary[: -(-n // 3)]  # repeats
    y = binary[:, :20].sum(axis=1) + 0.3 * rng.standard_normal(n) > 0.8
    yield f"{n:,} × 300 binary, dense", binary, y, ours, rival
    yield f"{n:,} × 300 binary, CSR", csr_array(binary), y, ours, rival
    n = int(8_000 * scale)
    text = csr_array(random_array((n, 8_000), density=0.01, random_state=0))
    y = np.asarray(text[:, :400].sum(axis=1)).ravel() > 2.0
    yield f"{n:,} × 8,000 text, CSR", text, y, ours, rival
    yield f"{n:,} × 8,000 text, dense", text.toarray(), y, ours, rival
    n = int(1_000 * scale)
    wide = rng.standard_normal((n, 4_000))
    y = wide[:, :20].sum(axis=1) + rng.standard_normal(n) > 0
    yield f"{n:,} × 4,000, standardised", wide, y, ours, rival


def text_cases(scale: float) -> Iterator[Case]:
    """As `kernel_cases`: tf-idf of made-up text of two classes, CSR, as wide as Reuters' news and wider."""
    X, y = text(int(7_770 * scale), 8_315)
    yield f"{X.shape[0]:,} × 8,315 text, RBF", X, y, ODMClassifier(random_state=0, **PLAIN), SVC()
    X, y = text(int(2_000 * scale), 100_000)
    ours = ODMClassifier(gamma=1.0, solver=Landmark(100), random_state=0, **PLAIN)
    rival = make_pipeline(Nystroem(gamma=1.0, n_components=min(100, X.shape[0]), random_state=0), LinearSVC())
    yield f"{X.shape[0]:,} × 100,000 text, RBF at 100 landmarks", X, y, ours, rival


def text(n: int, words: int) -> tuple[Any, Any]:
    """Return tf-idf of n documents of some 55 different words, whose frequencies follow Zipf's law, and topics."""
    rng = np.random.default_rng(0)
    y = rng.random(n) < 0.3
    document = np.repeat(np.arange(n), 1 + rng.poisson(60 * rng.lognormal(0.0, 0.5, n)))
    rate = 1.0 / (30.0 + np.arange(words))  # without the most frequent words, as texts are given to learners
    word = rng.choice(words, len(document), p=rate / rate.sum())
    topical = rng.random(len(word)) < 0.2  # of every two words with neighbouring ranks, a topic has one
    word[topical] = np.minimum(word[topical] // 2 * 2 + y[document[topical]], words - 1)
    counts = csr_matrix((np.ones(len(word)), (document, word)), shape=(n, words))
    return csr_array(TfidfTransformer(sublinear_tf=True).fit_transform(counts)), y ^ (rng.random(n) < 0.02)


def published_cases(folder: str) -> Iterator[Case]:
    """Sets in LIBSVM form in a folder: binary features, and tf-idf of news, one class against the rest."""
    ours, rival = ODMClassifier("linear", **PLAIN), LinearSVC()
    parts = [_read(folder, f"a7a.{part}", 123) for part in ("train", "test")]
    X, y = vstack([X for X, _ in parts]), np.concatenate([y for _, y in parts])
    yield f"{len(y):,} × 123 binary (a7a), dense", X.toarray(), y, ours, rival
    yield f"{len(y):,} × 123 binary (a7a), CSR", csr_array(X), y, ours, rival
    X, y = _read(folder, "news20bydate.train", None)
    X = csr_array(TfidfTransformer(sublinear_tf=True).fit_transform(X))
    yield f"{len(y):,} × {X.shape[1]:,} text (news20), CSR", X, y == y[0], ours, rival


def _read(folder: str, name: str, n_features: int | None) -> tuple[Any, Any]:
    with lzma.open(Path(folder, f"{name}.svm.xz")) as file:
        X, y = load_svmlight_file(file, n_features=n_features)
    return X, y


def least_seconds(work: list[Callable[[], Any]], repeats: int) -> list[float]:
    """The least seconds of each, which take turns."""
    found = [np.inf] * len(work)
    for _ in range(repeats):
        for i, each in enumerate(work):
            began = time.perf_counter()
            each()
            found[i] = min(found[i], time.perf_counter() - began)
    return found


def line(case: Case, repeats: int) -> str:
    """One line of the table."""
    name, X, y, ours, rival = case
    few = slice(None, None, max(1, len(y) // 200))  # of all classes, also where rows are sorted by these
    ours.fit(X, y), rival.fit(X[few], y[few])  # compiled, or loaded
    fits = least_seconds([lambda: ours.fit(X, y), lambda: rival.fit(X, y)], repeats)
    said: dict[Any, Any] = {}
    work = [lambda each=each: said.update({each: each.predict(X)}) for each in (ours, rival)]
    predictions = least_seconds(work, repeats)
    cells = [f"{fits[0]:.3g} / {fits[1]:.3g}", f"{fits[1] / fits[0]:.2f}"]
    cells += [f"{predictions[0]:.3g} / {predictions[1]:.3g}", f"{predictions[1] / predictions[0]:.2f}"]
    cells += [f"{np.mean(said[ours] == y):.3f} / {np.mean(said[rival] == y):.3f}", f"{ours.dual_gap_:.1e}"]
    return f"| {name} | {' | '.join(cells)} |"


def machine(size: int = 1000) -> str:
    """Speed of the machine, in words."""
    speeds = []
    for dtype in (np.float32, np.float64):
        A = np.ones((size, size), dtype)
        (seconds,) = least_seconds([lambda A=A: A @ A], 5)
        speeds.append(f"{np.dtype(dtype).name} {2 * size**3 / seconds / 1e9:.0f} GF/s")
    flat = np.ones(20 * size * size)
    (seconds,) = least_seconds([flat.sum], 3)
    return f"matrix products {', '.join(speeds)}; memory {flat.nbytes / seconds / 1e9:.1f} GB/s"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="100,200,500,1000,2000,5000,10000")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows of the linear sets; 0: none")
    parser.add_argument("--text", type=float, default=0.0, help="share of the rows of the sets of text; 0: none")
    parser.add_argument("--published", action="store_true", help="linear sets of the folder DASK_ODM_DATA as well")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore", ConvergenceWarning)  # LinearSVC's, at its default of iterations
    print(f"{machine()}\n")
    print("| data | fit, s: ours / rival | ratio | predict, s | ratio | training accuracy | gap |")
    print("|---|---|---|---|---|---|---|")
    for case in kernel_cases([int(each) for each in options.rows.split(",") if each]):
        print(line(case, options.repeats), flush=True)
    for case in linear_cases(options.scale) if options.scale else ():
        print(line(case, options.repeats), flush=True)
    for case in text_cases(options.text) if options.text else ():
        print(line(case, options.repeats), flush=True)
    for case in published_cases(os.environ["DASK_ODM_DATA"]) if options.published else ():
        print(line(case, options.repeats), flush=True)


if __name__ == "__main__":
    main()
