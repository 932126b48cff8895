"""Plots for a person: the margin distribution that an optimal margin distribution machine shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dask_odm.errors import DaskODMError, InputError

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


def _percent(chosen: NDArray[np.bool_]) -> str:
    return f"{100.0 * chosen.mean():.3g} %"


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
