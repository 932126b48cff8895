"""Settings and labels that the tests of the estimators share."""

import numpy as np

SETTINGS = {"gamma": 0.5, "lam": 100.0, "upsilon": 0.3, "theta": 0.1, "scale": None}
LABELS = [
    np.array([0, 1]),
    np.array([-1, 1], np.int8),
    np.array([0.5, 2.5]),
    np.array([1.0, 2.0], np.float32),
    np.array(["no", "yes"]),
    np.array(["a", "bb"], dtype=object),
    np.array([False, True]),
    np.array([3, 7], np.uint16),
]
