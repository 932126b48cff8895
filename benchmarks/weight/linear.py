"""Special routes of linear models: dask_odm/methods/linear."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from scipy.sparse import csr_array, random_array
from sklearn.datasets import make_classification

import dask_odm.methods.linear.routes as special
import dask_odm.methods.search.trials as trials
from benchmarks.weight.route import Route, Routes
from dask_odm import ODMClassifier, ODMClassifierCV
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss


class SummedProblem(PrimalProblem):
    """A problem whose Hessian is summed anew at every point."""

    def weigh(self, loss: BandLoss) -> None:
        """Replace the loss by another one."""
        vars(self).update(vars(self.with_lam(1.0)), _loss=loss)


SummedProblem.of_rows = SummedProblem.over_rows


def routes(scale: float) -> Routes:
    n = int(8000 * scale)
    text = csr_array(random_array((n, 8000), density=0.01, random_state=0))
    y = np.asarray(text[:, :400].sum(axis=1)).ravel() > 2.0
    model = ODMClassifier("linear", lam=1e4)
    wider = text[: n // 4]
    yield Route.replacing(
        "descent in the dual first",
        f"{n // 4:,} × 8,000 text, or Newton-CG",
        lambda: model.fit(wider, y[: n // 4]),
        special,
        thin_problem=lambda *_: None,
    )
    n = int(1000 * scale)
    rng = np.random.default_rng(0)
    wide = rng.standard_normal((n, 4000))
    label = wide[:, :20].sum(axis=1) + rng.standard_normal(n) > 0
    yield Route.replacing(
        "Gram reduction",
        f"{n:,} × 4,000 standardised, or Newton-CG",
        lambda: model.fit(wide, label),
        special,
        FewRows=SimpleNamespace(of=lambda *_: None),
    )
    n = int(4000 * scale)
    X, kind = make_classification(n, 20, n_informative=10, random_state=0)
    search = ODMClassifierCV(random_state=0)
    yield Route.replacing(
        "Hessians that are updated",
        f"search over {n:,} × 20, or summed anew",
        lambda: search.fit(X, kind),
        trials,
        UpdatedProblem=SummedProblem,
    )
