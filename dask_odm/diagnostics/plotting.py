"""Plots of margins, confusion, ROC, reliability, predicted numbers, learning curves, and weights of shards.

All return matplotlib's axes, and raise PlottingUnavailableError if matplotlib is not installed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.pipeline import Pipeline

from dask_odm.errors import DaskODMError, InputError
from dask_odm.printing import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from dask_odm.diagnostics.evaluation import Evaluation
    from dask_odm.diagnostics.importance import Importance
    from dask_odm.diagnostics.learning_curve import LearningCurve
    from dask_odm.diagnostics.score_counts import Errors

# Colours that colour-blind people tell apart, of Okabe and Ito, in an order that also differs in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442")
BLUE, ORANGE, GREEN, RED = COLOURS[:4]
_EVALUATED = "what dask_odm.evaluate(model, (X, y)) returns of a"


class PlottingUnavailableError(DaskODMError, ImportError):
    """Matplotlib, which is optional, is not installed."""


def plot_margin_distribution(
    margins: ArrayLike, theta: float | None = None, ax: Axes | None = None, *, bins: int = 60
) -> Axes:
    """Draw a histogram of margins with the band in which a row costs nothing.

    Parameters
    ----------
    margins : array-like of shape (n_samples,)
        ``y * f(x)`` with ``y`` in -1, +1; negative for a misclassified row.
    theta : float in [0, 1), optional
        Half the width of the band around a margin of 1; by default none is drawn, as for a model without.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure, which pyplot does not manage
        (``plot_margin_distribution(...).figure.savefig("margins.png")``).
    bins : int, default=60
        Number of bars.

    Raises
    ------
    InputError
        If there are no margins, one is not finite, or ``theta`` is out of its range.
    """
    ax = _axes(ax, margins, "__len__", "margins y f(x), as of y * model.decision_function(X)")
    values = np.asarray(margins, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise InputError(f"margins must be one-dimensional and not empty; got an array of shape {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError(f"margins must be finite; {np.count_nonzero(~np.isfinite(values))} of {values.size} are not.")
    if theta is not None:
        if not isinstance(theta, Real) or not 0.0 <= theta < 1.0:
            raise InputError(
                "The 'theta' parameter of plot_margin_distribution must be a float in the range [0.0, 1.0). "
                f"Got {theta!r} instead."
            )
        ax.axvspan(1.0 - theta, 1.0 + theta, color=GREEN, alpha=0.2, label=f"free band, 1 ± {theta:g}")
    ax.hist(values, bins=bins, color=BLUE)
    wrong = f"{100.0 * (values < 0).mean():.3g} % misclassified"
    ax.axvline(0.0, color="black", linewidth=1.0, linestyle="--", label=wrong)
    ax.set(xlabel="margin  y f(x)", ylabel="rows", title="Margin distribution")
    ax.legend()
    return ax


def plot_shard_weights(model: Any, ax: Axes | None = None, *, least: float = 1e-6) -> Axes:
    """Draw the weight of every shard in every epoch of a `dask_odm.MixingClassifier`, with suspects named and in red.

    Parameters
    ----------
    model : MixingClassifier, or a Pipeline that ends with one
        Fitted.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a new figure, as in `plot_margin_distribution`.
    least : float, default=1e-6
        Lower end of the axis, as a share of a fair weight. Smaller weights are drawn there, too.

    Raises
    ------
    InputError
        If the model has no shards: it is another estimator, or not fitted.
    """
    model = model[-1] if isinstance(model, Pipeline) else model
    ax = _axes(ax, model, "shard_weights_", "the shard_weights_ of a fitted MixingClassifier")
    weights = model.shard_weights_
    shares = np.maximum(weights * weights.shape[1], least)
    bad = np.isin(np.arange(weights.shape[1]), [model.shards_.index(name) for name in model.suspects_])
    epochs = np.arange(1, len(shares) + 1)
    for chosen, color, what in ((~bad, BLUE, "shards"), (bad, RED, "suspects")):
        lines = ax.semilogy(epochs, shares[:, chosen], color=color, linewidth=0.8, alpha=0.6)
        if lines:
            lines[0].set_label(f"{chosen.sum()} {what}, {100.0 * weights[-1][chosen].sum():.3g} % of the weight")
    ax.axhline(1.0, color="black", linewidth=1.0, linestyle="--", label="a fair share")
    suspects = ", ".join(ticks(model.suspects_[:6])) + (" …" if len(model.suspects_) > 6 else "")
    title = f"Weights of the shards; suspects: {suspects}" if suspects else "Weights of the shards: no suspects"
    ax.set(xlabel="epoch", ylabel="weight, in fair shares", title=title)
    ax.legend(loc="lower left", fontsize="small")
    return ax


def plot_roc(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the ROC of a model for two classes, as `sklearn.metrics.RocCurveDisplay` does.

    Parameters
    ----------
    evaluation : dask_odm.diagnostics.evaluation.Evaluation
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.

    Raises
    ------
    InputError
        If there are not two classes, each with rows.
    """
    ax = _axes(ax, evaluation, "roc", f"{_EVALUATED} classifier")
    if evaluation.roc is None or evaluation.roc.area is None:
        raise InputError("a ROC is one of two classes, each with rows.")
    from sklearn.metrics import RocCurveDisplay

    false, true = evaluation.roc.curve()
    RocCurveDisplay(fpr=false, tpr=true, roc_auc=evaluation.roc.area).plot(ax, plot_chance_level=True)
    names = ticks(evaluation.classes)
    ax.set(xlabel=f"rows of {names[0]} taken for {names[1]}", ylabel=f"rows of {names[1]} found", title="ROC")
    return ax


def plot_confusion(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the confusion matrix, with shares of the rows of each class, and for few classes also the counts.

    Parameters
    ----------
    evaluation : dask_odm.diagnostics.evaluation.Evaluation
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.

    Raises
    ------
    InputError
        If there are more than 1,000 classes.
    """
    ax = _axes(ax, evaluation, "confusion", f"{_EVALUATED} classifier")
    classes = len(evaluation.classes)
    if classes > 1000:  # a cell is a pixel then
        raise InputError(f"a confusion of {classes:,} classes is too large for a plot; draw up to 1,000.")
    counts = evaluation.confusion[:classes]
    few = classes <= 12
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    from sklearn.metrics import ConfusionMatrixDisplay

    shown = ConfusionMatrixDisplay(shares, display_labels=ticks(evaluation.classes)).plot(
        ax=ax, cmap="Blues", im_kw={"vmin": 0.0, "vmax": 1.0}, include_values=few, xticks_rotation=0 if few else 90
    )
    if few:
        for text, share, count in zip(shown.text_.flat, shares.flat, counts.flat, strict=True):
            text.set(text=f"{share:.0%}\n({count})", fontsize=10 if classes <= 6 else 6)
    ax.set(xlabel="predicted", ylabel="true", title="Confusion, as shares of each true class")
    return ax


def plot_reliability(evaluation: Evaluation, ax: Axes | None = None) -> Axes:
    """Draw the share of rows that belong to a class over its predicted probability. At best, both are equal.

    It is scikit-learn's `CalibrationDisplay`.

    Parameters
    ----------
    evaluation : dask_odm.diagnostics.evaluation.Evaluation
        Of a model that has probabilities.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.

    Raises
    ------
    InputError
        If the model has no probabilities.
    """
    ax = _axes(ax, evaluation, "probabilities", f"{_EVALUATED} classifier")
    counts = evaluation.probabilities
    if counts is None or not counts.weight:
        raise InputError("the model has no probabilities: fit it with loo=True.")
    from sklearn.calibration import CalibrationDisplay

    said, found, _ = counts.reliability()
    label = f"calibration error {counts.facts()['calibration_error']:.3f}"
    CalibrationDisplay(found, said, said).plot(ax=ax, name=label)
    ax.set(xlabel="probability", ylabel="share of rows of the class", title="Reliability")
    return ax


def plot_predictions(errors: Errors, ax: Axes | None = None, *, residuals: bool = False) -> Axes:
    """Draw targets over predictions of some rows, or residuals over them, as scikit-learn's `PredictionErrorDisplay`.

    Parameters
    ----------
    errors : dask_odm.diagnostics.score_counts.Errors
        As `dask_odm.evaluate` returns it of a regressor.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.
    residuals : bool, default=False
        Draw target minus prediction in place of the target.

    Raises
    ------
    InputError
        If there are no rows.
    """
    ax = _axes(ax, errors, "points", f"{_EVALUATED} regressor")
    y, predicted, _ = errors.points
    if not len(y):
        raise InputError("there are no rows with targets to draw.")
    from sklearn.metrics import PredictionErrorDisplay

    kind = "residual_vs_predicted" if residuals else "actual_vs_predicted"
    shown = {"scatter_kwargs": {"s": 8, "alpha": 0.5, "color": BLUE}, "line_kwargs": {"color": ORANGE}}
    PredictionErrorDisplay(y_true=y, y_pred=predicted).plot(ax, kind=kind, **shown)
    ax.set(xlabel="predicted", ylabel="residual" if residuals else "true")
    return ax


def plot_learning_curve(curve: LearningCurve, ax: Axes | None = None) -> Axes:
    """Draw leave-one-out scores over the number of training rows, and what score twice as many rows may give.

    Parameters
    ----------
    curve : LearningCurve
        As `dask_odm.learning_curve` returns it.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.
    """
    ax = _axes(ax, curve, "twice", "what dask_odm.learning_curve(model, X, y) returns")
    ax.plot(curve.rows, curve.scores, "o-", color=BLUE, label="left-out rows")
    if np.isfinite(curve.twice):
        ends = [curve.rows[-1], 2 * curve.rows[-1]], [curve.scores[-1], curve.twice]
        ax.plot(*ends, "o--", color=ORANGE, label="of twice as many, if it goes on so")
    ax.set_xscale("log", base=2)
    ax.set_xlabel("rows")
    ax.set_ylabel("score")
    ax.legend()
    return ax


def plot_importance(found: Importance, ax: Axes | None = None, *, most: int = 20) -> Axes:
    """Draw the importance of each feature, the largest first, with standard deviations over the repeats.

    Parameters
    ----------
    found : Importance
        As `dask_odm.permutation_importance` returns it.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own.
    most : int, default=20
        Maximum number of features that are drawn.
    """
    ax = _axes(ax, found, "feature_names", "what dask_odm.permutation_importance(model, X, y) returns")
    order = np.argsort(-found.importances_mean, kind="stable")[:most][::-1]
    places = np.arange(len(order))  # names may look alike once they are cut
    ax.barh(places, found.importances_mean[order], xerr=found.importances_std[order], color=BLUE)
    ax.set_yticks(places, ticks([found.feature_names[j] for j in order]))
    ax.set_xlabel(f"lost of a score of {found.score:.3f}")
    return ax


def draw(found: Any, folder: str) -> list[str]:
    """Draw the confusion, ROC and reliability, or predictions and residuals, as PNG files, and return their paths.

    Of several labels or targets of a row, they are of the worst.
    """
    found = found.worst()[1] if hasattr(found, "worst") else found
    drawn: list[str] = []
    plots: dict[str, Any] = {"confusion": plot_confusion, "roc": plot_roc, "reliability": plot_reliability}
    if not hasattr(found, "confusion"):  # that of a regressor
        plots = {"predictions": plot_predictions, "residuals": partial(plot_predictions, residuals=True)}
    for name, plot in plots.items():
        with suppress(InputError):  # raised for what the evaluation does not have
            figure: Any = plot(found).figure
            os.makedirs(folder, exist_ok=True)
            drawn.append(os.path.join(folder, f"{name}.png"))
            figure.savefig(drawn[-1])
    return drawn


def ticks(labels: Iterable[Any]) -> list[str]:
    """Return labels or names that leave room for the plot."""
    return [short(label, 24) for label in labels]


def _axes(ax: Axes | None, found: Any, has: str, what: str) -> Any:
    """Return ``ax``, or those of a new figure; raise InputError unless what is drawn ``has`` an attribute."""
    if not hasattr(found, has):
        raise InputError(f"this plot draws {what}. Got {type(found).__name__} instead.")
    if ax is not None and not hasattr(ax, "figure"):
        raise InputError(f"ax must be axes of Matplotlib, or None. Got {type(ax).__name__} instead.")
    return new_axes() if ax is None else ax


def new_axes() -> Any:
    """Return the axes of a figure of its own, to which no pyplot state refers."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailableError(
            "Plotting needs matplotlib, which is not installed: pip install 'dask-odm[plot]'."
        ) from error
    return Figure(figsize=(7.0, 4.0), layout="constrained").subplots()
