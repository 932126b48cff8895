"""The margin plot shows what it is given, keeps off pyplot, and says what is missing."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dask_odm.diagnostics.plotting import PlottingUnavailableError, plot_margin_distribution
from dask_odm.errors import DaskODMError, InputError

MARGINS = np.array([-0.5, 0.2, 0.9, 1.0, 1.1, 1.1, 1.6, 2.0])


def test_histogram_holds_every_row_and_the_band() -> None:
    ax = plot_margin_distribution(MARGINS, 0.25, bins=7)
    bars = list(ax.containers[0])
    assert sum(bar.get_height() for bar in bars) == len(MARGINS)
    (band,) = [patch for patch in ax.patches if patch not in bars]
    np.testing.assert_allclose(band.get_extents().transformed(ax.transData.inverted()).intervalx, [0.75, 1.25])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["free band, 1 ± 0.25", "12.5 % misclassified"]


def test_draws_where_it_is_told_and_saves(tmp_path) -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert plot_margin_distribution(MARGINS.tolist(), 0.0, ax) is ax
    plot_margin_distribution(MARGINS, 0.1).figure.savefig(tmp_path / "margins.png")
    assert (tmp_path / "margins.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("margins", "theta", "message"),
    [
        ([], 0.1, r"not empty; got an array of shape \(0,\)"),
        ([[1.0]], 0.1, r"one-dimensional .* shape \(1, 1\)"),
        ([1.0, np.nan, np.inf], 0.1, "2 of 3 are not"),
        ([1.0], 1.0, r"'theta' parameter .* range \[0.0, 1.0\). Got 1.0"),
        ([1.0], float("nan"), "'theta' parameter .* Got nan"),
    ],
)
def test_bad_input_is_named(margins, theta, message) -> None:
    with pytest.raises(InputError, match=message):
        plot_margin_distribution(margins, theta)


def test_without_matplotlib_the_error_says_so(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlottingUnavailableError, match="pip install matplotlib") as caught:
        plot_margin_distribution(MARGINS, 0.1)
    assert isinstance(caught.value, DaskODMError)


def test_neither_import_nor_plot_touches_pyplot() -> None:
    code = (
        "import sys; from dask_odm.diagnostics.plotting import plot_margin_distribution as plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plot([0.5, 1.0], 0.1)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
