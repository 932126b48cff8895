"""Made-up scenes: the same for any chunks, with the shares asked for, and Bayes' rule as SciPy's densities give it."""

import dask
import numpy as np
import pytest
from scipy.stats import multivariate_normal

from dask_odm import InputError, ODMClassifier
from dask_odm.data.datasets.scenes import SceneMaker
from dask_odm.datasets import make_scene


def never(*arguments, **options):
    raise AssertionError("computed")


@pytest.mark.parametrize("n_times", [1, 3])
def test_a_scene_does_not_depend_on_chunks_and_lines(n_times):
    small = make_scene(40, 50, n_times=n_times, n_bands=3, random_state=5)
    tall = make_scene(64, 50, n_times=n_times, n_bands=3, random_state=5, chunk_lines=7)
    assert tall.cube.dims[-3:] == ("band", "y", "x")
    assert ("time" in tall.cube.dims) == (n_times > 1)
    for one, other in zip(small, tall, strict=True):
        np.testing.assert_array_equal(one, other.isel(y=slice(40)))
        assert other.chunksizes["y"][0] == 7
    another = make_scene(40, 50, n_times=n_times, n_bands=3, random_state=6)
    assert (another.truth != small.truth).mean() > 0.2


def test_nothing_is_computed_yet():
    with dask.config.set(scheduler=never):
        scene = make_scene(10_000, 10_000, n_bands=10)
    assert scene.cube.nbytes == 4_000_000_000
    assert max(scene.cube.data.chunksize) == 10_000
    assert scene.cube.data.chunksize[1] * 400_000 <= 16 << 20


def test_shares_are_those_asked_for():
    scene = make_scene(600, 500, n_classes=3, clouds=0.2, labelled=0.1, random_state=1)
    truth = scene.truth.values
    assert set(np.unique(truth)) == {1, 2, 3}
    assert (truth[1:] == truth[:-1]).mean() > 0.95  # smooth
    missing = np.isnan(scene.cube.values)
    assert (missing.any(axis=0) == missing.all(axis=0)).all()
    assert missing.mean() == pytest.approx(0.2, abs=0.1)  # clouds are large, so that few of them vary
    labels = scene.labels.values
    assert (labels > 0).mean() == pytest.approx(0.1, abs=0.02)
    np.testing.assert_array_equal(labels[labels > 0], truth[labels > 0])
    assert scene.labels.attrs["flag_meanings"] == "water forest field"


@pytest.mark.parametrize("mixed", [0.0, 0.4])
def test_the_best_map_is_that_of_the_densities(mixed):
    scene = make_scene(12, 30, n_classes=3, n_bands=2, noise=1.5, mixed=mixed, clouds=0.3, random_state=2)
    means = SceneMaker(30, 3, 2, 1, 1.5, mixed, 0.3, 0.02, 2).means
    X = scene.cube.values.reshape(2, -1).T
    there = ~np.isnan(X).any(axis=1)

    def density(mean):
        return multivariate_normal(mean, 1.5**2 * np.eye(2)).pdf(X[there])

    likely = [
        (1 - mixed) * density(means[a])
        + sum(mixed / 2 * density((means[a] + means[b]) / 2) for b in range(3) if b != a)
        for a in range(3)
    ]
    best = scene.best.values.ravel()
    np.testing.assert_array_equal(best[there], 1 + np.argmax(likely, axis=0))
    assert (best[~there] == 0).all()


def test_a_machine_comes_near_the_best_map():
    scene = make_scene(200, 200, n_bands=3, noise=1.0, labelled=0.05, random_state=3)
    clear = scene.best.values > 0
    found = ODMClassifier(scale="minmax", lam=1e4).fit(scene.cube, scene.labels).predict(scene.cube).values
    right, best = ((each == scene.truth.values)[clear].mean() for each in (found, scene.best.values))
    assert best - 0.1 < right < best + 0.05  # which does not know how often each class is there
    assert (found[~clear] == 255).all()


@pytest.mark.parametrize(("given", "message"), [
    ({"height": 0}, "The 'height' parameter of make_scene must be an int"),
    ({"n_classes": 9}, "The 'n_classes' parameter of make_scene must be an int"),
    ({"clouds": 1.0}, "The 'clouds' parameter of make_scene must be a float"),
])  # fmt: skip
def test_what_is_refused(given, message):
    with pytest.raises(InputError, match=message):
        make_scene(**given)
