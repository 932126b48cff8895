"""Leave-one-out in closed form: the decision value that every row would have if the model had not learned from it.

The model minimises ``½ aᵀG a + Σ_i loss_i(f_i)``, f = K a, with a piecewise quadratic loss. Let u be minus the losses'
derivatives at f, c their second derivatives, and ``h_i = k_iᵀ (G + Kᵀ diag(c) K)⁻¹ k_i`` the leverages. One Newton step
from the solution gives the decision value of row i without it::

    f_i − h_i u_i / (1 − h_i c_i)

This is exact if no other row changes its side of the band and the landmarks stay. ``Σ h_i c_i`` is the effective number
of parameters. If equal rows were merged, u and c are those of one of them and h is that of all. Rows with u = 0 keep
their value. (Cook and Weisberg, *Residuals and influence in regression*, 1982, for squares; Opper and Winther,
*Gaussian processes and SVM: mean field and leave-one-out*, 2000, for kernels.)

Accuracy, effective parameters and the probability link of a fit follow, for one machine or several.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from scipy.linalg import lapack

from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import Loss
from dask_odm.learning.training.recipe import Trained
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.systems import mended
from dask_odm.methods.odm_fit import ODMFit
from dask_odm.models.model import PREDICTED_ROWS, Model, class_scores, with_lacking
from dask_odm.models.probabilities import fit_link, joined_links
from dask_odm.models.sets import conformity_table
from dask_odm.typing import Array

LEFT_OUT_ROWS = "_left_out_rows"  # attribute: the class of every row, and its weight, 0 if it takes no part
LEFT_OUT_PAIRS = "_left_out_pairs"  # attribute: left-out scores of the machines of all pairs, (n, pairs)
LEFT_OUT = (  # attributes that are saved to a file
    "loo_score_", "loo_parameters_", "probability_link_", "conformity_", "loo_group_scores_",
)  # fmt: skip
LEFT_OUT_BYTES = 320  # bytes per row: its score and leverage, and what a link is fitted to
OF_MACHINE = "_left_out"  # scores, classes and weights of one machine's rows, until machines are joined
OF_ROWS = ("loo_decision_function_", LEFT_OUT_ROWS)  # attributes that are not saved to a file
OF_MACHINES = (*LEFT_OUT, *OF_ROWS, OF_MACHINE)  # attributes that machines have one by one


def left_out(
    loss: Loss, scores: Array, leverages: Array, y: Array, weight: Array, copies: Array
) -> tuple[Array, float]:
    """Return the decision value of each row by the model without it, (n,), and the effective number of parameters.

    ``scores`` and ``leverages`` are (n,), and so are ``y`` and ``weight``, which are empty if the loss needs none.
    ``copies`` are weights without those of classes, or empty: one above 1 stands for several equal rows, and one of
    them is left out.
    """
    _, dual, curvature = loss.evaluate(scores, y, weight)
    one = 1.0 / np.maximum(copies, 1.0) if copies.size else 1.0
    taken = leverages * curvature
    # rounding may push 1 − h c below 0
    moved = leverages * one * dual / np.maximum(1.0 - one * taken, 1e-9)
    return scores - moved, float(taken.sum())


def linear_leverages(
    problem: PrimalProblem, w: Array, groups: tuple[Array, int] | None = None
) -> tuple[Array, Array | None]:
    """Return scores and leverages (2, n) of all rows at the solution ``w`` (k,) of a linear model. Takes two passes.

    With ``groups``, the numbers of the rows' groups and how many there are, also return the values (n,) of all rows
    without their groups, else None.
    """
    hessian = problem.sums(w, "full", double_precision=True).curvature + np.eye(len(w))
    inverse = inverse_factor(hessian)
    found = problem.leverages(w, inverse)
    return found, None if groups is None else problem.without_groups(w, hessian, inverse, *groups)


def inverse_factor(matrix: Array) -> Array:
    """Return the lower triangular ``L⁻¹`` with ``L Lᵀ`` = ``matrix`` (r, r), which is symmetric.

    A ridge of 1e-12 times the trace is added first, below which eigenvalues are rounding errors, and more if the matrix
    is still not positive definite.
    """
    ridge = 1e-12 * float(np.trace(matrix))

    def attempt(more: float) -> Array | None:
        factor, info = lapack.dpotrf(matrix + (ridge + more) * np.eye(len(matrix)), lower=1, clean=1)
        return None if info else np.asarray(lapack.dtrtri(factor, lower=1)[0])

    return np.ascontiguousarray(mended(attempt, lambda: ridge))


def left_out_values(
    fit: ODMFit, given: TrainingData, solved: TrainingData, found: Array, groups_out: Array | None = None
) -> dict[str, Any]:
    """Return what leaving out finds of the rows of ``given`` data by one machine, as fitted attributes.

    ``solved`` is the data with equal rows merged, and ``found`` (2, n) are scores and leverages of its rows. If groups
    are left out, ``groups_out`` (n,) are the values of rows without their groups, and no rows are merged.
    """
    loss = fit.loss(solved)
    y, weight = given.columns()
    found = solved.unmerged(found)
    copies = np.empty(0) if fit.whole_rows else given.row_weights()
    without, parameters = left_out(loss, found[0], found[1], y, weight, copies)
    without = without if groups_out is None else groups_out
    counted = loss.row_stiffness(y, weight) * (loss.total_weight / loss.settings.stiffness)
    total, numbers = given.row_numbers
    scores = spread(np.where(counted > 0, without, np.nan), total, numbers, np.nan)
    of_row = y if fit.has_real_targets else y == 1
    of_machine = (scores, spread(of_row, total, numbers), spread(counted, total, numbers))
    return {"loo_parameters_": parameters, OF_MACHINE: of_machine}


def attributes_of(
    fit: ODMFit, given: TrainingData, solved: TrainingData, found: Array, groups_out: Array | None = None
) -> dict[str, Any]:
    """Return the fitted attributes of leave-one-out for one machine; arguments as of `left_out_values`.

    If all rows are positive, or targets are real, there are none but these values: nothing is told apart.
    """
    values = left_out_values(fit, given, solved, found, groups_out)
    scores, positive, counted = values[OF_MACHINE]
    if given.whole is None or fit.has_real_targets:  # else it is one of several machines, which are joined
        warned_if_many(values["loo_parameters_"], int(np.count_nonzero(counted)))
    if fit.has_real_targets or positive[counted > 0].all():
        return values
    _, weight = given.columns()
    shares = spread(weight if weight.size else np.ones(given.rows), *given.row_numbers)
    if given.whole is not None:
        return values | {LEFT_OUT_ROWS: (positive, shares)}
    return values | of_two_classes(scores, positive, counted, shares, values["loo_parameters_"])


def of_two_classes(scores: Array, positive: Array, counted: Array, shares: Array, parameters: float) -> dict[str, Any]:
    """Return the fitted attributes that follow from left-out ``scores`` (n,), NaN for rows that take no part.

    ``counted`` are the rows' weights with class weights, and ``shares`` without.
    """
    taking = counted > 0
    own = positive > 0
    right = ((scores > 0) == own) & taking
    return {
        "loo_decision_function_": scores,
        "loo_score_": float(shares[right].sum() / shares[taking].sum()),
        "loo_parameters_": parameters,
        "probability_link_": fit_link(scores[taking], own[taking], counted[taking]),
        "conformity_": conformity_table(scores[taking], own[taking].astype(np.int64), counted[taking], 2),
        LEFT_OUT_ROWS: (own.astype(np.int64), np.where(taking, shares, 0.0)),
    }


def group_scores(found: dict[str, Any], groups: Array) -> dict[str, Any]:
    """Return the accuracy of every group's rows by the model without the group, NaN for one without a weight.

    ``found`` are the attributes of leaving out, and ``groups`` (n,) numbers from 0. Empty if some rows have none.
    """
    if LEFT_OUT_ROWS not in found:
        return {}
    values = found["loo_decision_function_"]
    codes, weight = found[LEFT_OUT_ROWS]
    whole = np.bincount(groups, weight)
    right = np.bincount(groups, weight * is_right(values, codes))
    return {"loo_group_scores_": np.divide(right, whole, out=np.full(len(whole), np.nan), where=whole > 0)}


def is_right(values: Array, codes: Array) -> Array:
    """Return whether decision ``values`` (n,) or (n, k) predict the classes ``codes`` (n,), or all labels (n, k)."""
    of_signs = values.ndim == 1 or codes.ndim == 2  # of two classes, or of labels
    predicted = values > 0 if of_signs else np.nan_to_num(values, nan=-np.inf).argmax(axis=1)
    return (predicted == codes).reshape(len(codes), -1).all(axis=1)


def warned_if_many(parameters: float, rows: int) -> float:
    """Return the number of effective parameters; warn if they are so many that the closed form is too optimistic."""
    if parameters > 0.5 * rows:
        warnings.warn(
            f"leave-one-out is too hopeful here: the model has {parameters:.0f} effective parameters for {rows} rows, "
            "counted for each machine. Choose a smaller lam or gamma, or validate by other rows.",
            UserWarning,
            stacklevel=2,
        )
    return float(parameters)


def joined_left_out(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the left-out scores of all machines of many classes, with one link for all of them.

    Empty if a machine has none. For one against the rest, a row's score for a class is that of the class's machine
    without the row. Of pairs, a row has scores for the machines of its own class alone.
    """
    if not all(OF_MACHINE in machine for machine in machines):
        return {}
    scores, positive, weight = (np.stack(each, axis=1) for each in zip(*(m[OF_MACHINE] for m in machines), strict=True))
    known = ~np.isnan(scores)
    return {
        "loo_decision_function_": scores,
        "loo_parameters_": warned_if_many(sum(each["loo_parameters_"] for each in machines), known.sum()),
        "probability_link_": fit_link(*(each[known] for each in (scores, positive > 0, weight))),
    }


def of_many_classes(found: dict[str, Any], model: Model, data: TrainingData, fit: ODMFit) -> dict[str, Any]:
    """Return the other fitted attributes of leave-one-out of many classes, from those of `joined_left_out`.

    Pairs vote. If machines of other classes than a row's own have learned from rows of its group, its scores are NaN.
    If there are such rows, the accuracy is the share of correct signs of the machines of each row's own class.
    """
    total, numbers = data.row_numbers
    at, y, weight = data.taking_part
    at = at if numbers is None else numbers[at]
    codes = y.astype(np.int64)
    shares = weight / np.array(data.class_weights)[codes]  # class weights change what is learned, not the score
    scores = found["loo_decision_function_"]
    of_pairs: dict[str, Any] = {}
    if model.pairs:
        values = scores
        scores = np.full((total, model.pairs), np.nan)
        scores[at] = _voted(values, at, codes, model, data, at if fit.groups is None else fit.groups[at])
        of_pairs = {"loo_decision_function_": scores, LEFT_OUT_PAIRS: values}
        if np.isnan(scores[at]).any():
            negative, positive = (codes[:, None] == each for each in np.triu_indices(model.pairs, 1))
            right = ((values[at] > 0) == positive).mean(axis=1, where=negative | positive)
            return of_pairs | {"loo_score_": float(np.average(right, weights=shares))}
    return of_pairs | {
        "loo_score_": float(np.average(scores[at].argmax(axis=1) == codes, weights=shares)),
        "conformity_": conformity_table(scores[at], codes, weight, scores.shape[1]),
        LEFT_OUT_ROWS: (spread(codes, total, at).astype(np.int64), spread(shares, total, at)),
    }


def _voted(values: Array, at: Array, codes: Array, model: Model, data: TrainingData, units: Array) -> Array:
    """Return the class scores (rows, classes) of the rows ``at``; fill in what ``values`` (n, pairs) lack of them.

    The ``model`` has the scores of machines that have learned from none of the rows that are left out together, whose
    ``units`` (rows,) are equal. Where a machine has learned from them, all scores of a row are NaN.
    """
    learned = np.zeros((units.max() + 1, model.pairs), dtype=bool)  # which classes the rows of a unit have
    learned[units, codes] = True
    votes = np.empty((len(at), model.pairs))
    step = 16 * PREDICTED_ROWS
    for start in range(0, len(at), step):
        some = slice(start, start + step)
        rows = at[some]
        scores = model.machine_scores(data.given_rows(rows).astype(data.dtype), CPU_COUNT).T
        negative, positive = (learned[units[some]][:, each] for each in np.triu_indices(model.pairs, 1))
        lacking = np.isnan(values[rows])
        values[rows] = np.where(lacking & ~(negative | positive), scores, values[rows])
        votes[some] = class_scores(values[rows].T, model.pairs).T
        votes[some][np.isnan(values[rows]).any(axis=1)] = np.nan
    return votes


def labels_left_out(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the leave-one-out attributes of the machines of several labels, with a link for each; empty without.

    The accuracy is the share of the rows of which all labels are right.
    """
    if not all(OF_MACHINE in machine for machine in machines):
        return {}
    values = [machine[OF_MACHINE] for machine in machines]
    scores, positive, weight = (np.stack(each, axis=1) for each in zip(*values, strict=True))
    known = ~np.isnan(scores).any(axis=1)
    shares = next((machine[LEFT_OUT_ROWS][1] for machine in machines if LEFT_OUT_ROWS in machine), weight[:, 0])
    links = [fit_link(own[known], sign[known] > 0, counted[known]) for own, sign, counted in values]
    return {
        "loo_decision_function_": scores,
        "loo_score_": float(np.average(is_right(scores, positive > 0)[known], weights=shares[known])),
        "loo_parameters_": warned_if_many(sum(each["loo_parameters_"] for each in machines), len(links) * known.sum()),
        "probability_link_": joined_links(links),
        LEFT_OUT_ROWS: ((positive > 0).astype(np.int64), np.where(known, shares, 0.0)),
    }


def of_all_classes(trained: Trained, learned: Array | None, classes: Array | None) -> Trained:
    """Return what was ``learned`` of some classes as a model of all ``classes``; the others had no row.

    Their scores are less than any other, those of left-out rows as well. What turns scores into probabilities and sets
    stays that of the learned classes.
    """
    if learned is None or classes is None or len(learned) == len(classes):
        return trained
    own = np.isin(classes, learned)
    lacking = tuple(np.flatnonzero(~own).tolist())
    found = dict(trained.attributes)
    model: Any = trained.model
    if (scores := found.get("loo_decision_function_")) is not None:
        found["loo_decision_function_"] = with_lacking(scores.reshape(len(scores), -1), lacking)
    if LEFT_OUT_ROWS in found:
        codes, weight = found[LEFT_OUT_ROWS]
        found[LEFT_OUT_ROWS] = np.flatnonzero(own)[codes], weight
    path = tuple(of_all_classes(each, learned, classes) for each in trained.path)
    return replace(trained, model=replace(model, lacking=lacking), attributes=found, path=path)


def spread(values: Array, total: int, numbers: Array | None, rest: float = 0.0) -> Array:
    """Return ``values`` at the places ``numbers`` among all ``total`` rows that were given, and ``rest`` elsewhere."""
    out = np.full(total, rest)
    out[slice(None) if numbers is None else numbers] = values
    return out
