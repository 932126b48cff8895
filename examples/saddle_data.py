"""Data of the SaddleSVC examples
==============================

The data of the examples of SaddleSVC, in the manner of the paper's appendix D, and its table 2 of them.

Run it by::

    python examples/saddle_data.py [--folder FOLDER]

Published sets are read in LIBSVM form (``name.svm.xz``, ``name.train.svm.xz`` and ``name.test.svm.xz``) from a folder,
by default the one that ``DASK_ODM_DATA`` names; without one, there are the generated sets only.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_svmlight_files

Rows = tuple[Any, Any, Any, Any]
NAMES = (
    "iris",
    "mushrooms",
    "phishing",
    "a7a",
    "ijcnn1",
    "skin-nonskin",
    "madelon",
)
# of the least distance from the plane to the largest; the paper prints it the
# other way round
RATIO = 0.1
# of the unit ball's radius: rows nearer to the plane have labels at random
BLURRED = 0.1


class Kept:
    """What was measured, in a JSON file: an interrupted figure goes on.

    Parameters
    ----------
    path : str or None
        None keeps nothing.
    """

    def __init__(self, path: str | None) -> None:
        self._file = None if path is None else Path(path)
        there = self._file is not None and self._file.exists()
        self._found: dict[str, Any] = (
            json.loads(self._file.read_text()) if self._file and there else {}
        )

    def __call__(self, name: str, measure: Callable[[], Any]) -> Any:
        """What is kept by this name, else what ``measure()`` returns, as JSON
        has it.
        """
        if name not in self._found:
            self._found[name] = json.loads(json.dumps(measure()))
            if self._file is not None:
                self._file.write_text(json.dumps(self._found))
        return self._found[name]


def synthetic(
    n: int,
    d: int,
    *,
    separable: bool = True,
    nonzero: float = 1.0,
    seed: int = 0,
) -> tuple[Any, Any]:
    """Rows of the unit ball, labelled by the side of a plane 0.1 to 1 away.

    The plane goes through the centre. Where they are not ``separable``, rows
    come as near to it as they like, and labels of those within 0.1 are drawn.
    A share ``nonzero`` of the features of every row is kept, which then are
    not in the ball's shape any more.
    """
    random = np.random.default_rng(seed)
    normal = random.standard_normal(d)
    normal /= np.linalg.norm(normal)
    sign = random.choice([-1.0, 1.0], n)
    distance = random.uniform(RATIO if separable else 0.0, 1.0, n)
    along = random.standard_normal((n, d))
    along -= np.outer(along @ normal, normal)
    radius = random.random(n) ** (1 / max(1, d - 1)) * np.sqrt(
        1 - distance**2
    )
    X = along * (radius / np.linalg.norm(along, axis=1))[:, None] + np.outer(
        sign * distance, normal
    )
    if nonzero < 1.0:
        X *= random.random((n, d)) < nonzero
    y = (
        sign
        if separable
        else np.where(distance < BLURRED, random.choice([-1.0, 1.0], n), sign)
    )
    return X, y


def published(name: str, folder: str) -> Rows:
    """Training and test rows of a set, features to [0, 1]: its own test file,
    or a random tenth.
    """
    files = [
        Path(folder) / f"{name}{part}.svm.xz" for part in (".train", ".test")
    ]
    if files[0].exists():
        X, y, *test = _read(*files)
    else:
        X, y = _read(Path(folder) / f"{name}.svm.xz")
        if name == "iris":  # setosa against the rest
            y = (y == y[0]).astype(int)
        order = np.random.default_rng(0).permutation(len(y))
        tenth, rest = order[: len(y) // 10], order[len(y) // 10 :]
        test, X, y = [X[tenth], y[tenth]], X[rest], y[rest]
    low, width = X.min(axis=0), np.ptp(X, axis=0)
    width[width == 0] = 1.0
    return (X - low) / width, y, (test[0] - low) / width, test[1]


def split(X: Any, y: Any) -> Rows:
    """A tenth of the rows, which come in random order, for the test."""
    return (
        X[len(y) // 10 :],
        y[len(y) // 10 :],
        X[: len(y) // 10],
        y[: len(y) // 10],
    )


def available(
    names: tuple[str, ...] | list[str], folder: str | None
) -> list[str]:
    """Those of ``names`` that the folder has."""
    here = (
        []
        if folder is None
        else [path.name for path in Path(folder).glob("*.svm.xz")]
    )
    return [
        name
        for name in names
        if {f"{name}.svm.xz", f"{name}.train.svm.xz"} & set(here)
    ]


def _read(*paths: Path) -> list[Any]:
    """X and y of every file, of as many features."""
    with ExitStack() as opened:
        read = load_svmlight_files(
            [opened.enter_context(lzma.open(path)) for path in paths]
        )
    return [
        part.toarray() if k % 2 == 0 else part for k, part in enumerate(read)
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the paper's table 2."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--folder", default=os.environ.get("DASK_ODM_DATA"))
    options = parser.parse_args(arguments)
    sets: dict[str, Any] = {
        "synthetic": synthetic(2000, 32),
        "not separable": synthetic(2000, 32, separable=False),
    }
    sets |= {
        name: published(name, options.folder)[:2]
        for name in available(NAMES[:2], options.folder)
    }
    print("data set             n      n₁      n₂     d   nonzero")
    for name, (X, y) in sets.items():
        positive = int((y == y.max()).sum())
        print(
            f"{name:14} {len(y):7} {positive:7} {len(y) - positive:7} "
            f"{X.shape[1]:5} {np.mean(X != 0):9.3f}"
        )


if __name__ == "__main__":
    main()
