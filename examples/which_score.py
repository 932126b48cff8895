"""Which score chooses
===================

Three rows in a hundred are positive: what a search by accuracy finds, and what one by ROC AUC.

Run it by::

    python examples/which_score.py [--seeds 1] [--rows 6000]

Rows are pages, and features are 300 words that a page has or has not, most of them rarely. Some words, and some pairs
of words, speak for the class. Settings are chosen by what left-out rows say, once by accuracy and once by
`scoring="roc_auc"`, and judged on new pages.
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np
from sklearn.metrics import (
    PrecisionRecallDisplay,
    average_precision_score,
    roc_auc_score,
)

from dask_odm import ODMClassifierCV

WORDS = 300


def pages(
    count: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Words of pages, and labels, of which three in a hundred are 1."""
    # what the words mean is the same for all pages
    fixed = np.random.default_rng(5)
    often = np.clip(0.01 * fixed.pareto(1.2, WORDS), 0.003, 0.5)
    weights = fixed.normal(size=WORDS) * (fixed.random(WORDS) < 0.3)
    pairs = fixed.integers(0, WORDS, (2, 40))
    X = (rng.random((count, WORDS)) < often).astype(np.float32)
    speaks = X @ weights + (X[:, pairs[0]] * X[:, pairs[1]]) @ (
        1.5 * fixed.normal(size=40)
    )
    speaks += 0.4 * rng.logistic(size=count)
    return X, (speaks > np.quantile(speaks, 0.97)).astype(int)


def main() -> None:
    """Print what the settings of either search are worth on new pages."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rows", type=int, default=6000)
    options = parser.parse_args()
    _, ax = plt.subplots()
    for seed in range(options.seeds):
        X, y = pages(options.rows, np.random.default_rng(seed))
        X_new, y_new = pages(20_000, np.random.default_rng(1000 + seed))
        for scoring in ("accuracy", "roc_auc"):
            values = (
                ODMClassifierCV(scoring=scoring, random_state=0)
                .fit(X, y)
                .decision_function(X_new)
            )
            area, precision = (
                roc_auc_score(y_new, values),
                average_precision_score(y_new, values),
            )
            print(
                f"seed {seed}, by {scoring}: AUC {area:.3f}, "
                f"average precision {precision:.3f} on new pages",
                flush=True,
            )
            if seed == 0:
                PrecisionRecallDisplay.from_predictions(
                    y_new, values, name=f"chosen by {scoring}", ax=ax
                )


if __name__ == "__main__":
    main()
