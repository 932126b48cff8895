"""What leaving out each row tells about a fit of one machine: decision values, accuracy, effective parameters."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dask_odm.errors import InputError
from dask_odm.estimators.fitting.training_data import TrainingData
from dask_odm.estimators.odm.settings import ODMFit
from dask_odm.problems.losses import BandLoss
from dask_odm.solvers.leave_one_out import left_out
from dask_odm.solvers.log_odds import fit_link
from dask_odm.typing import Array

LEFT_OUT = ("loo_score_", "loo_parameters_", "probability_link_")  # attributes that a file holds
MOST_SHARE = 0.5  # of the rows: with more effective parameters leaving out in closed form is too hopeful


def attributes_of(
    fit: ODMFit, given: TrainingData, solved: TrainingData, loss: BandLoss, found: Array
) -> dict[str, Any]:
    """Fitted attributes of leaving out the rows of ``given`` data one by one.

    Parameters
    ----------
    fit : ODMFit
    given, solved : TrainingData
        As they came, and with equal rows made one.
    loss : BandLoss
        Of either.
    found : ndarray of shape (2, n)
        Scores and leverages of the rows of ``solved``.
    """
    y, weight = given.columns()
    found = found if solved.copies is None else found[:, solved.copies]
    out = left_out(loss, found[0], found[1], y, weight)
    counted = loss.row_stiffness(y, weight) * (loss.total_weight * loss.settings.low**2 / loss.settings.lam)
    taking = counted > 0
    if not taking.any():
        raise InputError("no row has both a label and a positive weight.")
    _warn_of(out.parameters, int(taking.sum()))
    positive = y == loss.positive
    right = (out.scores > 0) == positive
    shares = np.where(taking, weight if weight.size else 1.0, 0.0)
    total, numbers = given.row_numbers
    scores = np.full(total, np.nan)
    scores[slice(None) if numbers is None else numbers] = np.where(taking, out.scores, np.nan)
    return {
        "loo_decision_function_": scores,
        "loo_score_": float(shares[right].sum() / shares.sum()),
        "loo_parameters_": out.parameters,
        "probability_link_": fit_link(out.scores[taking], positive[taking], counted[taking]),
    }


def _warn_of(parameters: float, rows: int) -> None:
    """Say where the closed form is too hopeful."""
    if parameters > MOST_SHARE * rows:
        warnings.warn(
            f"leave-one-out is too hopeful here: the model has {parameters:.0f} effective parameters for {rows} rows. "
            "Choose a smaller lam or gamma, or validate by other rows.",
            UserWarning,
            stacklevel=2,
        )
