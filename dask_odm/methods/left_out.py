"""Leave-one-out attributes of a fit: decision values, accuracy, effective parameters and the probability link."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_odm.learning.leave_one_out import left_out
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.settings import ODMFit
from dask_odm.models.probabilities import fit_link
from dask_odm.typing import Array

LEFT_OUT = ("loo_score_", "loo_parameters_", "probability_link_")  # attributes that are saved to a file
LEFT_OUT_BYTES = 320  # bytes per row: its score and leverage, and what a link is fitted to
OF_MACHINE = "_left_out"  # scores, classes and weights of one machine's rows, until machines are joined


def attributes_of(fit: ODMFit, given: TrainingData, solved: TrainingData, found: Array) -> dict[str, Any]:
    """Return the fitted attributes of leave-one-out for the rows of ``given`` data.

    ``solved`` is the data with equal rows merged, and ``found`` (2, n) are scores and leverages of its rows.
    """
    loss = fit.loss(solved)
    y, weight = given.columns()
    if solved.held is not None and solved.held.copies is not None:
        found = found[:, solved.held.copies]
    without, parameters = left_out(loss, found[0], found[1], y, weight)
    counted = loss.row_stiffness(y, weight) * (loss.total_weight * loss.settings.low**2 / loss.settings.lam)
    taking = counted > 0
    if parameters > 0.5 * taking.sum():  # the closed form is too optimistic
        warnings.warn(
            f"leave-one-out is too hopeful here: the model has {parameters:.0f} effective parameters for "
            f"{int(taking.sum())} rows. Choose a smaller lam or gamma, or validate by other rows.",
            UserWarning,
            stacklevel=2,
        )
    positive = y == 1
    right = (without > 0) == positive
    shares = np.where(taking, weight if weight.size else 1.0, 0.0)
    total, numbers = given.row_numbers
    scores = _spread(np.where(taking, without, np.nan), total, numbers, np.nan)
    return {
        "loo_decision_function_": scores,
        "loo_score_": float(shares[right].sum() / shares.sum()),
        "loo_parameters_": parameters,
        OF_MACHINE: (scores, _spread(positive, total, numbers), _spread(counted, total, numbers)),
        "probability_link_": fit_link(without[taking], positive[taking], counted[taking]),
    }


def joined_left_out(machines: Sequence[dict[str, Any]], *, pairs: bool) -> dict[str, Any]:
    """Return the leave-one-out attributes of all machines, with one link for all of them.

    Empty if a machine has none. For one against the rest, a row's score for a class is that of the class's machine
    without the row. With ``pairs``, a row has scores for the machines of its own class alone, and the accuracy is their
    share of correct signs.
    """
    if not all(OF_MACHINE in machine for machine in machines):
        return {}
    scores, positive, weight = (np.stack(each, axis=1) for each in zip(*(m[OF_MACHINE] for m in machines), strict=True))
    if pairs:
        known = ~np.isnan(scores)
        share = float(np.average((scores[known] > 0) == positive[known], weights=weight[known]))
    else:
        known = ~np.isnan(scores).any(axis=1)
        own = weight[np.arange(len(weight)), positive.argmax(axis=1)]  # in the machine of its own class
        right = scores[known].argmax(axis=1) == positive[known].argmax(axis=1)
        share = float(np.average(right, weights=own[known]))
    flat = (each[known].ravel() for each in (scores, positive > 0, weight))
    return {
        "loo_decision_function_": scores,
        "loo_score_": share,
        "loo_parameters_": float(sum(machine["loo_parameters_"] for machine in machines)),
        "probability_link_": fit_link(*flat),
    }


def _spread(values: Array, total: int, numbers: Array | None, rest: float = 0.0) -> Array:
    """Return ``values`` at the places ``numbers`` among all ``total`` rows that were given, and ``rest`` elsewhere."""
    out = np.full(total, rest)
    out[slice(None) if numbers is None else numbers] = values
    return out
