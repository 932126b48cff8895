"""The margin plot shows what it is given, keeps off pyplot, and says what is missing."""

import subprocess
import sys
from itertools import combinations

import numpy as np
import pytest
import xarray as xr

import dask_odm as odm
from dask_odm import DaskODMError, InputError, MixingClassifier, ODMClassifier
from dask_odm.datasets import contaminate_labels, deal_shards, make_separable
from dask_odm.diagnostics import plotting
from dask_odm.diagnostics.maps import CubeMap, plot_classes

MARGINS = np.array([-0.5, 0.2, 0.9, 1.0, 1.1, 1.1, 1.6, 2.0])


def test_histogram_holds_every_row_and_the_band() -> None:
    ax = plotting.plot_margin_distribution(MARGINS, 0.25, bins=7)
    bars = list(ax.containers[0])
    assert sum(bar.get_height() for bar in bars) == len(MARGINS)
    (band,) = [patch for patch in ax.patches if patch not in bars]
    np.testing.assert_allclose(band.get_extents().transformed(ax.transData.inverted()).intervalx, [0.75, 1.25])
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == ["free band, 1 ± 0.25", "12.5 % misclassified"]


def test_margins_of_a_model_without_a_band_have_none() -> None:
    ax = plotting.plot_margin_distribution(MARGINS)
    assert len(ax.patches) == len(ax.containers[0])
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["12.5 % misclassified"]


def test_draws_where_it_is_told_and_saves(tmp_path) -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    assert plotting.plot_margin_distribution(MARGINS.tolist(), 0.0, ax) is ax
    plotting.plot_margin_distribution(MARGINS, 0.1).figure.savefig(tmp_path / "margins.png")
    assert (tmp_path / "margins.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("margins", "theta", "message"),
    [
        ([], 0.1, r"not empty; got an array of shape \(0,\)"),
        ([[1.0]], 0.1, r"one-dimensional .* shape \(1, 1\)"),
        ([1.0, np.nan, np.inf], 0.1, "2 of 3 are not"),
        ([1.0], 1.0, r"'theta' parameter .* range \[0.0, 1.0\). Got 1.0"),
        ([1.0], float("nan"), "'theta' parameter .* Got nan"),
        ([1.0], ODMClassifier(), r"'theta' parameter .* Got ODMClassifier\(\)"),
    ],
)
def test_bad_input_is_named(margins, theta, message) -> None:
    with pytest.raises(InputError, match=message):
        plotting.plot_margin_distribution(margins, theta)


def test_without_matplotlib_the_error_says_so(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(plotting.PlottingUnavailableError, match="pip install 'dask-odm\\[plot\\]'") as caught:
        plotting.plot_margin_distribution(MARGINS, 0.1)
    assert isinstance(caught.value, DaskODMError)


def test_neither_import_nor_plot_touches_pyplot() -> None:
    code = (
        "import sys; from dask_odm.diagnostics.plotting import plot_margin_distribution as plot\n"
        "assert 'matplotlib' not in sys.modules\n"
        "plot([0.5, 1.0], 0.1)\n"
        "assert 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_weights_of_shards_show_the_suspects() -> None:
    X, y = make_separable(900, 4)
    sender = deal_shards(900, 9)
    wrong, bad = contaminate_labels(y, sender, flipped=2)
    model = MixingClassifier(max_iter=8, random_state=0).fit(X, wrong, shard=sender)
    ax = plotting.plot_shard_weights(model, least=1e-3)
    *lines, fair = ax.lines
    assert [line.get_color() for line in lines] == [plotting.BLUE] * 7 + [plotting.RED] * 2
    expected = np.maximum(model.shard_weights_ * 9, 1e-3)
    drawn = np.array([line.get_ydata() for line in lines]).T
    np.testing.assert_array_equal(drawn[:, 7:], expected[:, bad])
    np.testing.assert_array_equal(drawn[:, :7], np.delete(expected, bad, axis=1))
    assert list(fair.get_ydata()) == [1.0, 1.0]
    assert ax.get_title() == f"Weights of the shards; suspects: {bad[0]}, {bad[1]}"
    assert any(text.get_text().startswith("2 suspects, ") for text in ax.get_legend().get_texts())
    honest = plotting.plot_shard_weights(MixingClassifier(max_iter=2, random_state=0).fit(X, y))
    assert honest.get_title() == "Weights of the shards: no suspects"


@pytest.mark.parametrize(
    ("plot", "what"),
    [
        (odm.plot_roc, r"evaluate\(model, \(X, y\)\) returns of a classifier"),
        (odm.plot_confusion, "of a classifier"),
        (odm.plot_reliability, "of a classifier"),
        (odm.plot_predictions, "of a regressor"),
        (odm.plot_importance, r"permutation_importance\(model, X, y\)"),
        (odm.plot_learning_curve, r"learning_curve\(model, X, y\)"),
        (odm.plot_margin_distribution, r"margins y f\(x\), as of y \* model.decision_function"),
        (odm.plot_shard_weights, "the shard_weights_ of a fitted MixingClassifier"),
    ],
)
def test_a_plot_that_is_given_a_model_says_what_it_draws(plot, what) -> None:
    with pytest.raises(InputError, match=f"^this plot draws .*{what}.* Got ODMClassifier instead"):
        plot(ODMClassifier())


# How deuteranopes and protanopes see linear RGB (Machado, Oliveira and Fernandes, 2009).
SEEN = {
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
}


@pytest.mark.parametrize("who", SEEN)
def test_the_colour_blind_tell_seven_classes_of_a_map_apart(who: str) -> None:
    codes = np.arange(7)[None]
    found = CubeMap(xr.DataArray(codes * 1.0, dims=("y", "x")), codes, list("abcdefg"), 1)
    pixels = np.asarray(plot_classes(found).images[0].get_array())[..., :3].reshape(-1, 3)
    linear = np.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4)
    light = np.clip(linear @ np.transpose(SEEN[who]), 0.0, 1.0)
    seen = np.where(light <= 0.0031308, 12.92 * light, 1.055 * light ** (1 / 2.4) - 0.055)
    assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.2
