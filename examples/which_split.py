"""Which rows to leave out
=======================

Rows that belong together: a search that leaves out single rows is deceived, one that leaves out groups is not.

Run it by::

    python examples/which_split.py

Sixty fields, of each fifteen rows that are nearly the same, with a label of the field. A narrow kernel learns fields by
heart. Left out singly, a row has its field's other rows among those learned from, and so the narrow kernel looks best.
Of new fields it knows nothing.
"""

from __future__ import annotations

import numpy as np

from dask_odm import ODMClassifierCV


def fields(count: int, rows: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of fields, their labels, and the field of each."""
    field = np.repeat(np.arange(count), rows)
    centres = rng.normal(size=(count, 4))
    labels = (centres[:, 0] + 0.8 * rng.normal(size=count) > 0).astype(int)
    return centres[field] + 0.05 * rng.normal(size=(len(field), 4)), labels[field], field


def main() -> None:
    """Print what each search promises, and what its choice is worth on fields that nobody has seen."""
    rng = np.random.default_rng(1)
    X, y, field = fields(60, 15, rng)
    X_new, y_new, _ = fields(4000, 1, rng)
    for way, groups in (("single rows", None), ("whole fields", field)):
        search = ODMClassifierCV(random_state=0).fit(X, y, groups=groups)
        print(
            f"{way} left out: gamma {search.best_params_['gamma']:.3g}, promised {search.best_score_:.3f}, "
            f"on new fields {search.score(X_new, y_new):.3f}"
        )


if __name__ == "__main__":
    main()
