"""Plots for a person: the margin distribution that a machine shapes, and the weights of shards, bad ones in red."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_odm.errors import DaskODMError, InputError

NAMED = 6  # suspects in a title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray


class PlottingUnavailableError(DaskODMError, ImportError):
    """Matplotlib, which is optional, is not installed."""


def plot_margin_distribution(margins: ArrayLike, theta: float, ax: Axes | None = None, *, bins: int = 60) -> Axes:
    """Draw a histogram of margins with the band in which a row costs nothing.

    Parameters
    ----------
    margins : array-like of shape (n_samples,)
        ``y * f(x)`` with ``y`` in -1, +1; negative for a misclassified row.
    theta : float in [0, 1)
        Half the width of the band around a margin of 1.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own, which no pyplot state refers to
        (``plot_margin_distribution(...).figure.savefig("margins.png")``).
    bins : int, default=60
        How many bars.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If there are no margins, one is not finite, or ``theta`` is out of its range.
    PlottingUnavailableError
        If matplotlib is not installed.
    """
    values = _check_margins(margins)
    if not 0.0 <= theta < 1.0:
        raise InputError(
            "The 'theta' parameter of plot_margin_distribution must be a float in the range [0.0, 1.0). "
            f"Got {theta!r} instead."
        )
    ax = _new_axes() if ax is None else ax
    ax.axvspan(1.0 - theta, 1.0 + theta, color="tab:green", alpha=0.2, label=f"free band, 1 ± {theta:g}")
    ax.hist(values, bins=bins, color="tab:blue")
    ax.axvline(0.0, color="black", linewidth=1.0, linestyle="--", label=f"{_percent(values < 0)} misclassified")
    ax.set(xlabel="margin  y f(x)", ylabel="rows", title="Margin distribution")
    ax.legend()
    return ax


def plot_shard_weights(model: Any, ax: Axes | None = None, *, least: float = 1e-6) -> Axes:
    """Draw the weight of every shard in every epoch of a `dask_odm.MixingClassifier`; suspects are red, and named.

    Parameters
    ----------
    model : MixingClassifier
        Fitted.
    ax : matplotlib.axes.Axes, optional
        Where to draw; by default a figure of its own, as `plot_margin_distribution` has it.
    least : float, default=1e-6
        Share of a fair weight that is drawn at the bottom; what is less is there too.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InputError
        If the model has no shards: it is another one, or not fitted.
    PlottingUnavailableError
        If matplotlib is not installed.
    """
    weights = getattr(model, "shard_weights_", None)
    if weights is None:
        raise InputError(f"{type(model).__name__} has no shard_weights_: fit a MixingClassifier, and plot that.")
    ax = _new_axes() if ax is None else ax
    shares = np.maximum(weights * weights.shape[1], least)
    bad = np.isin(np.arange(weights.shape[1]), [model.shards_.index(name) for name in model.suspects_])
    epochs = np.arange(1, len(shares) + 1)
    for chosen, color, what in ((~bad, "tab:blue", "shards"), (bad, "tab:red", "suspects")):
        lines = ax.semilogy(epochs, shares[:, chosen], color=color, linewidth=0.8, alpha=0.6)
        if lines:
            lines[0].set_label(f"{int(chosen.sum())} {what}, {_percent_of(weights[-1][chosen].sum())} of the weight")
    ax.axhline(1.0, color="black", linewidth=1.0, linestyle="--", label="a fair share")
    ax.set(xlabel="epoch", ylabel="weight, in fair shares", title=_title(model.suspects_))
    ax.legend(loc="lower left", fontsize="small")
    return ax


def _title(suspects: list[Any]) -> str:
    if not suspects:
        return "Weights of the shards: no suspects"
    named = ", ".join(str(name) for name in suspects[:NAMED])
    return f"Weights of the shards; suspects: {named}{' …' if len(suspects) > NAMED else ''}"


def _percent_of(share: float) -> str:
    return f"{100.0 * share:.3g} %"


def _percent(chosen: NDArray[np.bool_]) -> str:
    return _percent_of(float(chosen.mean()))


def _check_margins(margins: ArrayLike) -> NDArray[np.float64]:
    values = np.asarray(margins, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise InputError(f"margins must be one-dimensional and not empty; got an array of shape {values.shape}.")
    if not np.isfinite(values).all():
        raise InputError(f"margins must be finite; {np.count_nonzero(~np.isfinite(values))} of {values.size} are not.")
    return values


def _new_axes() -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise PlottingUnavailableError(
            "Plotting needs matplotlib, which is not installed: pip install matplotlib."
        ) from error
    return Figure(figsize=(7.0, 4.0), layout="constrained").subplots()
