"""Made-up and bundled data: the same rows wherever they go, and the properties that are promised."""

import os
from itertools import cycle
from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import chisquare, kstest, triang
from sklearn import datasets as bundled
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import dask_odm.datasets as ds
from dask_odm.data.datasets.made_up import Chessboard, Gaussians, Separable, Shells, Susy
from dask_odm.errors import InputError
from dask_odm.events import Progress, listen
from data.reading import stored
from traced import traced

MAKERS = [
    ds.make_chessboard,
    ds.make_duplicated,
    ds.make_imbalanced,
    ds.make_overlapping,
    ds.make_separable,
    ds.make_shells,
    ds.make_susy,
    ds.make_wide,
]
CHUNK = 1 << 18  # numbers that recipes make at a time


@pytest.mark.parametrize(("make", "dtype"), list(zip(MAKERS, cycle(["float32", "float64"]), strict=False)))
def test_a_store_holds_what_memory_holds(tmp_path, make, dtype):
    options = {"n_samples": 700, "dtype": dtype, "random_state": 3}
    X, y = make(**options)
    assert X.dtype == dtype
    store = make(**options, store=tmp_path / "a.zarr")
    rows, labels = stored(store)
    np.testing.assert_array_equal(rows, X, strict=True)
    np.testing.assert_array_equal(labels, y)
    assert store.classes == tuple(np.unique(y).tolist())
    assert len(store.classes) == 2
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        make(**options, store=tmp_path / "a.zarr")
    assert make(**options | {"random_state": 4}, store=tmp_path / "a.zarr", overwrite=True).digest != store.digest
    assert os.listdir(tmp_path) == ["a.zarr"]


@pytest.mark.parametrize("make", MAKERS)
def test_rows_are_one_sequence_that_the_seed_fixes(make):
    """Any stretch of it is the same, across the borders of chunks too."""
    chunk = (4_000_000 if make is ds.make_shells else CHUNK) // 2_000
    options = {} if make is ds.make_susy else {"n_features": 2_000}
    chunk = CHUNK // 18 if make is ds.make_susy else chunk
    X, y = make(chunk + 30, **options)
    for start, rows in ((0, 10), (7, 20), (chunk - 5, 30), (chunk, 3)):
        part, labels = make(rows, start=start, **options)
        np.testing.assert_array_equal(part, X[start : start + rows])
        np.testing.assert_array_equal(labels, y[start : start + rows])
    other, _ = make(10, random_state=1, **options)
    assert not np.isclose(other, X[:10]).all(axis=1).any()


def test_without_a_seed_rows_differ():
    first, second = (ds.make_overlapping(50, random_state=None)[0] for _ in range(2))
    assert not np.isclose(first, second).any(axis=1).all()


@pytest.mark.slow
def test_memory_does_not_grow_with_a_store(tmp_path):
    def peak(rows: int) -> int:
        store, top = traced(Gaussians(50).write, tmp_path / f"{rows}.zarr", rows)
        assert store.rows == rows
        return top

    peak(100)
    assert peak(400_000) < 1.2 * peak(100_000)  # 80 MB and 20 MB of rows, chunks of 8 to 16


def test_rows_are_reported(tmp_path):
    heard: list[Progress] = []
    with listen(heard.append):
        ds.make_susy(30_000, store=tmp_path / "a.zarr")
    assert heard[0] == Progress("generate", 0, 30_000, "rows")
    assert heard[-1] == Progress("generate", 30_000, 30_000, "rows")
    assert len(heard) > 2


@pytest.mark.parametrize("margin", [0.01, 2.0])
def test_separable_rows_keep_their_distance(margin):
    recipe = Separable(20, 5, margin)
    X, y = recipe.arrays(20_000, dtype="float64")
    distance = y * (X @ recipe.direction)
    assert margin * (1 - 1e-9) <= distance.min() < margin + 0.01
    np.testing.assert_allclose(np.linalg.norm(recipe.direction), 1.0)
    across = X - np.outer(X @ recipe.direction, recipe.direction)
    np.testing.assert_allclose(np.cov(across.T), np.eye(20) - np.outer(recipe.direction, recipe.direction), atol=0.04)
    assert abs(y.mean()) < 0.03


def _best(recipe: Gaussians, X: np.ndarray) -> np.ndarray:
    """Labels by Bayes' rule, from the two densities."""
    mean = recipe.distance * recipe.direction
    plus = np.log(recipe.positive) - 0.5 * np.square(X - mean).sum(axis=1)
    minus = np.log(1 - recipe.positive) - 0.5 * np.square(X + mean).sum(axis=1)
    return np.where(plus > minus, 1, -1)


def _best_accuracy(recipe: Gaussians | Susy) -> float:
    """Accuracy of the best classifier, which decides by ``⟨w, x⟩ + log(p/(1−p))/(2·distance)``."""
    p, normal = recipe.positive, NormalDist()
    shift = np.log(p / (1 - p)) / (2 * recipe.distance)
    return p * normal.cdf(recipe.distance + shift) + (1 - p) * normal.cdf(recipe.distance - shift)


@pytest.mark.parametrize("positive", [0.5, 0.05, 0.7])
@pytest.mark.parametrize("accuracy", [0.7, 0.9])
def test_the_best_accuracy_is_the_one_stated(positive, accuracy):
    recipe = Gaussians(6, 1, distance=NormalDist().inv_cdf(accuracy), positive=positive)
    X, y = recipe.arrays(100_000, dtype="float64")
    deviation = 4 * np.sqrt(0.25 / len(y))
    assert abs((_best(recipe, X) == y).mean() - _best_accuracy(recipe)) < deviation
    assert abs((y == 1).mean() - positive) < deviation
    if positive == 0.5:
        np.testing.assert_allclose(_best_accuracy(recipe), accuracy)
    assert _best_accuracy(recipe) >= max(positive, 1 - positive)


def test_makers_have_the_stated_accuracy():
    """A classifier that is right for these data comes within noise of the best, and no better."""
    for make, best, options in (
        (ds.make_overlapping, 0.8, {"accuracy": 0.8}),
        (ds.make_imbalanced, 0.9681, {}),
        (ds.make_duplicated, 0.9, {"share": 0.3}),
        (ds.make_wide, 0.95, {"n_features": 60, "informative": 3}),
    ):
        X, y = make(20_000, **options)
        new, labels = make(20_000, start=10**6, **options)
        assert abs(LinearDiscriminantAnalysis().fit(X, y).score(new, labels) - best) < 0.012, make.__name__


def test_wide_rows_have_few_features_that_matter():
    X, y = ds.make_wide(3_000, 500, informative=4, accuracy=0.99)
    gap = np.abs(X[y == 1].mean(axis=0) - X[y == -1].mean(axis=0))
    assert (gap > 8 / np.sqrt(len(y))).sum() in (3, 4)  # one of the four may weigh little


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99])
def test_duplicated_rows_repeat_earlier_ones_with_their_label(share):
    recipe = Gaussians(7, 2, share=share)
    X, y = recipe.arrays(recipe.chunk_rows + 1_000)
    for start, rows in ((0, recipe.chunk_rows), (0, 1_001), (recipe.chunk_rows, 1_000)):
        part, labels = X[start : start + rows], y[start : start + rows]
        distinct, first, which = np.unique(part, axis=0, return_index=True, return_inverse=True)
        assert rows - len(distinct) == int(rows * share)
        np.testing.assert_array_equal(labels, labels[first][which])


def test_susy_has_the_shape_of_susy():
    X, y = ds.make_susy(50_000)
    assert X.shape[1] == 18
    assert abs((y == 1).mean() - 0.46) < 0.01
    np.testing.assert_allclose(_best_accuracy(Susy()), 0.8, atol=1e-4)
    positive = (X > 0).all(axis=0)
    assert positive.sum() == 8  # momenta and masses
    correlation = np.abs(np.corrcoef(X.T) - np.eye(18))
    assert correlation[8:].max() > 0.4
    assert len(ds.make_susy()[0]) == 10_000


def test_susy_rows_are_an_invertible_image_so_that_its_best_accuracy_holds():
    """From the rows alone, by the inverse of each step, back to the clouds behind them."""
    recipe = Susy(seed=4)
    X, y = recipe.arrays(20_000, dtype="float64")
    Z = X.copy()
    for i in recipe.momenta:
        Z[:, i] = np.log(X[:, i]) / 0.6
    inverse = np.vectorize(NormalDist().inv_cdf)
    for i in recipe.angles:
        Z[:, i] = inverse(X[:, i] / np.sqrt(12) + 0.5)
    for i in range(8, 18, 2):
        Z[:, i] = np.log(np.expm1(X[:, i]))
    Z = np.linalg.solve(recipe.mixing.T, Z.T).T
    assert abs((_best(recipe.hidden, Z) == y).mean() - 0.8) < 4 * np.sqrt(0.16 / len(y))
    centred = Z - np.outer(y * recipe.distance, recipe.hidden.direction)
    np.testing.assert_allclose(np.cov(centred.T), np.eye(18), atol=0.06)
    linear = LinearDiscriminantAnalysis().fit(X[:15_000], y[:15_000]).score(X[15_000:], y[15_000:])
    assert 0.75 < linear < 0.81


def test_susy_takes_its_own_size_into_a_store(tmp_path, monkeypatch):
    monkeypatch.setattr(Susy, "original_rows", 20_000)
    assert ds.make_susy(store=tmp_path / "a.zarr").rows == 20_000


def test_shells_are_told_apart_by_no_line():
    X, y = ds.make_shells(2_000, 30)
    assert 900 < (y == "outer").sum() < 1_100
    codes = 2.0 * (y == "outer") - 1
    weights, *_ = np.linalg.lstsq(np.column_stack([X, np.ones(2_000)]), codes, rcond=None)
    new, labels = ds.make_shells(2_000, 30, start=10**6)
    assert (((np.column_stack([new, np.ones(2_000)]) @ weights > 0) == (labels == "outer")).mean()) < 0.6
    points = new @ np.linalg.pinv(Shells(30)._basis)
    assert (
        np.square(points)[labels == "outer"].sum(axis=1).mean()
        > np.square(points)[labels == "inner"].sum(axis=1).mean()
    )


def test_the_best_accuracy_on_a_chessboard_is_the_one_stated():
    """Bayes' rule knows the colour of each square, and which features hold the board."""
    board = Chessboard(20, 1, latent=3, n_squares=6, noise=0.1, accuracy=0.8)
    X, y = board.arrays(100_000, dtype="float64")
    points = X @ board.basis.T
    deviation = 4 * np.sqrt(0.25 / len(y))
    assert abs((np.where(np.floor(points).sum(axis=1) % 2 == 1, 1, -1) == y).mean() - 0.8) < deviation
    assert abs((y == 1).mean() - 0.5) < deviation
    np.testing.assert_allclose(board.basis @ board.basis.T, np.eye(3), atol=1e-12)
    off = np.eye(20) - board.basis.T @ board.basis
    np.testing.assert_allclose(np.cov((X - points @ board.basis).T), 0.01 * off, atol=5e-4)


def test_squares_of_a_chessboard_share_the_rows_and_are_densest_in_the_middle():
    board = Chessboard(4, 2, n_squares=5)
    X, _ = board.arrays(50_000, dtype="float64")
    points = X @ board.basis.T
    squares = np.floor(points).astype(int)
    assert (squares.min(), squares.max()) == (0, 4)
    counts = np.bincount(squares @ [5, 1], minlength=25)
    assert chisquare(counts).pvalue > 1e-4
    inside = points - squares
    assert kstest(inside[:, 0], triang(0.5).cdf).pvalue > 1e-4
    assert kstest(inside[:, 1], triang(0.5).cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ds.make_separable, {"n_samples": 0}, r"'n_samples' parameter of make_separable must be an int in .* Got 0"),
        (ds.make_separable, {"margin": 0.0}, r"'margin' .* must be a float in the range \(0.0, inf\)"),
        (ds.make_overlapping, {"accuracy": 0.5}, r"'accuracy' .* \(0.5, 1.0\). Got 0.5"),
        (ds.make_overlapping, {"accuracy": "high"}, "Got 'high'"),
        (ds.make_overlapping, {"n_features": 2.5}, "'n_features' .* Got 2.5"),
        (ds.make_imbalanced, {"positive": 1.0}, "'positive'"),
        (ds.make_wide, {"informative": 0}, r"'informative' .* \[1, 5000\]"),
        (ds.make_wide, {"n_features": 10}, r"'informative' .* \[1, 10\]. Got 50"),
        (ds.make_duplicated, {"share": 1.0}, "'share'"),
        (ds.make_susy, {"start": -1}, "'start'"),
        (ds.make_susy, {"random_state": "a"}, "'random_state'"),
        (ds.make_chessboard, {"latent": 21}, r"'latent' .* \[1, 20\]. Got 21"),
        (ds.make_chessboard, {"n_squares": 0}, "'n_squares'"),
        (ds.make_shells, {"noise": -1.0}, "'noise'"),
        (ds.make_shells, {"latent": 0}, "'latent'"),
        (ds.make_shells, {"dtype": "float16"}, "'dtype' .* must be a str among"),
    ],
)  # fmt: skip
def test_parameters_out_of_range(make, options, message):
    with pytest.raises(InputError, match=message):
        make(**options)


@pytest.mark.parametrize(("name", "load", "classes"), [
    ("breast_cancer", bundled.load_breast_cancer, ["malignant", "benign"]),
    ("iris", bundled.load_iris, ["versicolor", "virginica"]),
    ("wine", bundled.load_wine, ["class_0", "class_1"]),
    ("digits", bundled.load_digits, [4, 9]),
])  # fmt: skip
def test_bundled_sets_are_those_of_scikit_learn(tmp_path, name, load, classes):
    X, y = ds.load_bundled(name)
    data = load()
    codes = [list(data.target_names).index(each) for each in classes]
    np.testing.assert_array_equal(X, data.data[np.isin(data.target, codes)])
    assert sorted(set(y.tolist())) == sorted(classes)
    np.testing.assert_array_equal(y, data.target_names[data.target[np.isin(data.target, codes)]])
    store = ds.load_bundled(name, store=tmp_path / "a.zarr", dtype="float32")
    rows, labels = stored(store)
    np.testing.assert_array_equal(rows, X.astype(np.float32), strict=True)
    np.testing.assert_array_equal(labels, y)
    assert store.feature_names == tuple(data.feature_names)
    assert store.classes == tuple(sorted(classes))


def test_bundled_classes_are_chosen():
    X, y = ds.load_bundled("digits", (3, 8))
    assert set(y.tolist()) == {3, 8}
    assert X.shape == (357, 64)
    assert set(ds.load_bundled("iris", ("setosa", "virginica"))[1].tolist()) == {"setosa", "virginica"}


@pytest.mark.parametrize("classes", [(3, 3), (3,), (3, 10), 3, ("3", "8"), (1, 2, 3)])
def test_bundled_classes_that_are_not_two(classes):
    with pytest.raises(InputError, match="classes must be two of those of digits: 0, 1, 2"):
        ds.load_bundled("digits", classes)


def test_bundled_names_and_types_that_are_unknown():
    with pytest.raises(InputError, match="no bundled data set 'mnist'; there are breast_cancer, digits, iris, wine"):
        ds.load_bundled("mnist")
    with pytest.raises(InputError, match="dtype must be"):
        ds.load_bundled("iris", dtype="int8")
