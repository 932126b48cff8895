"""Sums whose worker dies on the way, for the tests of passes over a store: tasks that workers import."""

import os
import signal
from pathlib import Path

import numpy as np

from dask_odm.engine import passes
from dask_odm.learning.problem.linear import Query


class DeadlySums:
    """`sum_groups`, whose worker dies once, after it summed the chunks from ``first`` at a w that is not zero."""

    def __init__(self, folder: str, first: int) -> None:
        self.folder, self.first = folder, first

    def __call__(self, store, query, method, arguments, columns, first, groups, *more):
        total = passes.sum_groups(store, query, method, arguments, columns, first, groups, *more)
        if groups[0].start == self.first and np.any(query.w if isinstance(query, Query) else arguments[:1]):
            marker = Path(self.folder) / "died"
            if not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)
        return total
