"""What of a cube becomes rows and features, what features are called, and what is refused."""

import dask
import numpy as np
import pytest
import xarray as xr

from dask_odm.data.cubes import blocks
from dask_odm.data.cubes.beside import beside, row_dimensions
from dask_odm.data.cubes.blocks import AnswerFormat, slabs
from dask_odm.data.cubes.codes import ClassCodes, decoded, words_of
from dask_odm.data.cubes.cube import cube_of
from dask_odm.data.cubes.maps import mapped
from dask_odm.data.cubes.reading import LabelledCube
from dask_odm.errors import InputError
from small_cubes import BANDS, TIMES, labels_of, plain_rows, scene


def read(X, labels, weight=None):
    cube = cube_of(X, row_dimensions(X, labels))
    return LabelledCube.of(cube, labels, {"sample_weight": weight}, dask.compute).read(dask.compute)


def test_chunks_without_a_label_are_not_read():
    labels, _ = labels_of("floats")
    labels = labels.where(labels.y > 4965)  # the first four lines of pixels
    seen = []

    def loaded(block, block_info=None):
        if block_info is not None:
            seen.append(tuple(block_info[0]["chunk-location"]))
        return block

    chunked = scene().chunk(y=4, band=2)
    X = chunked.copy(data=chunked.data.map_blocks(loaded, dtype=float, meta=np.empty((0, 0, 0))))
    with dask.config.set(scheduler="synchronous"):
        found = read(X, labels)
    assert sorted(seen) == [(0, 0, 0), (1, 0, 0)]
    assert len(found.y) == int(labels.notnull().sum()) - found.missing


def test_features_of_several_dimensions_have_both_names():
    seasons = scene().expand_dims(time=TIMES) + xr.DataArray([0.0, 1.0], dims="time")
    cube = cube_of(seasons.transpose("time", "y", "x", "band"), ["y", "x"])
    assert cube.feature_names.tolist() == [
        f"time={day}, band={band}" for day in ("2024-03-01", "2024-03-31") for band in BANDS
    ]
    assert cube.feature_dimensions == ("time", "band")
    turned = cube_of(seasons.transpose("x", "band", "time", "y"), ["y", "x"], ["time", "band"])
    assert turned.feature_names.tolist() == cube.feature_names.tolist()
    mine = read(seasons, labels_of("floats")[0]).X
    both = np.concatenate([plain_rows().training[0], plain_rows().training[0] + 1.0], axis=1)
    np.testing.assert_array_equal(mine, both)


def test_names_of_features():
    one = scene()
    assert cube_of(one, ["y", "x"]).feature_names.tolist() == BANDS
    numbered = one.drop_vars(["band", "wavelength"]).assign_coords(band=[4, 5, 6])
    assert cube_of(numbered, ["y", "x"]).feature_names.tolist() == ["band=4", "band=5", "band=6"]
    assert cube_of(numbered.drop_vars("band"), ["y", "x"]).feature_names is None
    assert cube_of(one[0], ["y", "x"]).feature_names is None
    dataset = one.to_dataset("band").assign(dem=("y", np.arange(9.0)))
    assert cube_of(dataset, ["y", "x"]).feature_names.tolist() == [*BANDS, "dem"]
    seasons = dataset.expand_dims(time=TIMES)
    assert cube_of(seasons, ["y", "x"]).feature_names.tolist()[:3] == [
        "B02, time=2024-03-01", "B02, time=2024-03-31", "B03, time=2024-03-01"
    ]  # fmt: skip


def test_a_variable_that_lacks_a_dimension_is_the_same_along_it():
    slope = np.arange(9.0)
    cube = cube_of(scene().to_dataset("band").assign(slope=("y", slope), crs=0).chunk(x=4), ["y", "x"])
    found = mapped(cube, lambda X: X[:, 3], (), AnswerFormat(np.dtype(float), np.nan), "slope")
    expected = np.where(plain_rows().complete, slope[:, None], np.nan)
    np.testing.assert_array_equal(found, expected)


def test_weights_along_some_dimensions():
    labels, _ = labels_of("floats")
    weight = xr.DataArray(np.arange(9.0), dims="y")
    for X in (scene(), scene().chunk(y=4)):
        for given in (weight, weight.chunk(y=2)):
            found = read(X, labels, given)
            taken = plain_rows().complete & labels.notnull().values
            np.testing.assert_array_equal(found.weight, np.broadcast_to(np.arange(9.0)[:, None], (9, 10))[taken])


BAD = {
    "words": (lambda X, y: (X.astype(str), y), r"'reflectance' of X holds no numbers, but <U\d+; leave it out"),
    "a Dataset with words": (
        lambda X, y: (X.to_dataset("band").assign(name=y.astype(str)), y), "variable 'name' of X holds no numbers",
    ),
    "another size": (lambda X, y: (X, y[:5]), "y has 5 entries along 'y', and X has 9"),
    "other coordinates": (
        lambda X, y: (X, y.assign_coords(y=y.y + 1e-3)),
        r"different coordinates along 'y': entry 0 is 5000.0 in X and 5000.001 there, .* up to 0.001 apart",
    ),
    "other words": (
        lambda X, y: (X.assign_coords(y=list("abcdefghi")), y.assign_coords(y=list("abcdefghz"))),
        "along 'y': X has i, which is not there",
    ),
    "twice in another order": (
        lambda X, y: (X.assign_coords(y=[1.0, 1.0, *range(7)]), y.assign_coords(y=[*range(7), 1.0, 1.0])),
        "along 'y': some occur more than once",
    ),
    "no dimension shared": (lambda X, y: (X, y[:, 0].rename(y="z")), "y has the dimension 'z', which X has not"),
    "one more dimension": (
        lambda X, y: (X, y.expand_dims(time=TIMES)), r"y has the dimension 'time', .* Select one entry of it: y\.isel",
    ),
    "labels without dimensions": (lambda X, y: (X, y[0, 0]), "y shares no dimension with X; it has none"),
    "a cube without dimensions": (lambda X, y: (X[0, 0, 0], y[0, 0]), "shares no dimension with X; .* X has none"),
    "no labels": (lambda X, y: (X, y.where(False)), "y has no labels: all of its values are missing"),
    "nothing at all": (lambda X, y: (X[:, :0], y[:0]), "y has no labels"),
    "all missing": (lambda X, y: (X.where(False), y), r"all \d+ rows of X that have a label miss a feature"),
    "all missing, lazy": (lambda X, y: (X.where(False).chunk(y=3), y), r"all \d+ rows of X that have a label miss"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused(what):
    make, message = BAD[what]
    with pytest.raises(InputError, match=message):
        read(*make(scene(), labels_of("floats")[0]))


def test_weights_must_be_beside_the_rows():
    cube = cube_of(scene(), ["y", "x"])
    with pytest.raises(InputError, match=r"sample_weight must be a DataArray over .* 'y', 'x'. Got ndarray"):
        beside(cube, np.ones((9, 10)), "sample_weight")
    with pytest.raises(InputError, match="sample_weight has the dimension 'band', along which X has no rows"):
        beside(cube, scene(), "sample_weight")


def test_a_class_dimension_of_the_cube_is_in_the_way():
    cube = cube_of(scene().rename(y="class"), ["class", "x"])
    with pytest.raises(InputError, match="X has a 'class' already"):
        mapped(cube, lambda X: X, (), AnswerFormat(np.dtype(float), np.nan, 3), "", ("class", None))


@pytest.mark.parametrize("rows", [1, 7, 45])
def test_answers_slab_by_slab(monkeypatch, rows):
    monkeypatch.setattr(blocks, "SLAB_BYTES", rows * 3 * 8)
    seen = []

    def total(X: np.ndarray) -> np.ndarray:
        seen.append(len(X))
        return X.sum(axis=1)

    for X in (scene(), scene().transpose("x", "y", "band")):
        cube = cube_of(X, ["y", "x"])
        found = mapped(cube, total, (), AnswerFormat(np.dtype(float), np.nan), "total")
        expected = plain_rows().expected(lambda X: X.sum(axis=1), np.nan)
        np.testing.assert_allclose(found.transpose("y", "x"), expected, rtol=1e-12)
    assert max(seen) <= rows


@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4), (0, 3), (1, 1, 9)])
@pytest.mark.parametrize("most", [1, 2, 5, 7, 100])
def test_slabs_cover_all_once(shape, most):
    counted = np.zeros(shape, dtype=int)
    for slices in slabs(shape, most):
        assert counted[slices].size <= most
        counted[slices] += 1
    assert (counted == 1).all()


@pytest.mark.parametrize(("classes", "dtype", "values", "fill", "meanings"), [
    (["dry land", "water"], "uint8", [0, 1], 255, "dry_land water"),
    (["a b", "a_b", "ä"], "uint8", [0, 1, 2], 255, "a_b a_b_2 ä"),
    ([10, 20, 95], "uint8", [10, 20, 95], 255, "10 20 95"),
    ([-1, 1], "int16", [-1, 1], -(2**15), "-1 1"),
    ([1, 255], "int16", [1, 255], -(2**15), "1 255"),
    ([1.0, 2.0], "uint8", [1, 2], 255, "1 2"),
    ([0.5, 2.0], "uint8", [0, 1], 255, "0.5 2.0"),
    ([1, 2**20], "int32", [1, 2**20], -(2**31), "1 1048576"),
    ([1, 2**40], "uint8", [0, 1], 255, "1 1099511627776"),
    ([False, True], "uint8", [0, 1], 255, "False True"),
])  # fmt: skip
def test_codes_of_classes(classes, dtype, values, fill, meanings):
    found = ClassCodes.of(np.array(classes), {})
    assert (found.values.dtype, found.values.tolist(), found.fill) == (np.dtype(dtype), values, fill)
    assert found.attributes["flag_meanings"] == meanings
    assert found.attributes["_FillValue"].dtype == found.values.dtype


@pytest.mark.parametrize(("values", "meanings", "expected"), [
    (np.array([1, 2, 10], np.uint8), "water land ice", {"1": "water", "2": "land", "10": "ice"}),
    (3, "water", {"3": "water"}), ([1, 2], "water", {}), (None, "water", {}), ([0.5, 1.0], "water land", {}),
])  # fmt: skip
def test_meanings_that_labels_come_with(values, meanings, expected):
    attributes = {"flag_meanings": meanings} | ({} if values is None else {"flag_values": values})
    assert words_of(attributes) == expected
    for classes in (np.array([1, 2]), np.array([1.0, 2.0])):
        found = ClassCodes.of(classes, words_of(attributes)).attributes["flag_meanings"]
        assert found == f"{expected.get('1', '1')} {expected.get('2', '2')}"


def test_more_classes_than_a_byte_has_values():
    found = ClassCodes.of(np.array([f"class {i:03}" for i in range(300)]), {})
    assert found.values.dtype == np.int16
    assert found.values.tolist() == list(range(300))


@pytest.mark.parametrize(("classes", "dtype", "missing"), [
    (np.array([1, 2]), "float64", np.nan), (np.array([1, 2], "f4"), "float32", np.nan),
    (np.array(["a", "b"]), "object", None), (np.array([False, True]), "object", None),
])  # fmt: skip
def test_classes_with_a_missing_value(classes, dtype, missing):
    values, fill = decoded(classes)
    assert values.dtype == dtype
    assert fill is missing or fill != fill
    assert values.tolist() == classes.tolist()
