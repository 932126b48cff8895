"""The parameters of a learned metric."""

from __future__ import annotations

from dataclasses import KW_ONLY
from typing import Any

from sklearn.utils._param_validation import StrOptions

from dask_odm.learning.parameters import COUNT, SolverObject, parameter, with_parameters


@with_parameters
class Metric(SolverObject):
    """A metric that is learned before the fit, by which the kernel measures distances.

    Parameters
    ----------
    kind : {"diagonal", "full"}, default="diagonal"
        "diagonal": a factor for each feature, also of sparse rows. "full": a matrix, which finds directions that no
        single feature has, and sums and differences of features.
    rounds : int, default=5
        Most rounds. They end once two in a row predict held-out rows no better than one before them.
    rows : int, default=10000
        Rows of the sample that the metric is learned from, of which a fifth is held out.
    values : list of float, or of lists, default=None
        A metric that a search has learned: factors of the scaled features, or a symmetric matrix. Nothing is then
        learned, and γ stays as it is.
    """

    kind: str = parameter("diagonal", StrOptions({"diagonal", "full"}))
    _: KW_ONLY
    rounds: int = parameter(5, COUNT)
    rows: int = parameter(10_000, COUNT)
    values: list[Any] | None = parameter(None, list, None)

    def __str__(self) -> str:
        """Return the kind and the size of what a search learned, for people."""
        return repr(self) if self.values is None else f"{self.kind} of {len(self.values)} features"
