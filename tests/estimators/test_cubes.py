"""Cubes of any dimensions to `fit`, and maps out of `predict`: what plain NumPy rows give, in the same places."""

import ast
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from dask.system import CPU_COUNT
from sklearn.base import clone
from sklearn.model_selection import GroupKFold

from dask_odm import MDDRidge, MemoryLimitError, ODMClassifier, ODMClassifierCV, ingest, load_model, open_store
from dask_odm.data.cubes.blocks import AnswerFormat
from dask_odm.data.cubes.cube import cube_of
from dask_odm.data.cubes.maps import map_bytes
from dask_odm.errors import InputError
from estimators.odm_models import SETTINGS
from small_cubes import BANDS, TIMES, PlainRows, classes, labels_of, places, plain_rows, scene, values
from small_problems import blobs
from traced import traced


@dataclass(frozen=True, eq=False)
class Shape:
    """A cube and labels, made of the small scene, and the plain rows that they stand for."""

    make: Callable[[], tuple[Any, Any]]
    plain: Callable[[], PlainRows] = plain_rows
    dimensions: tuple[str, ...] = ("y", "x")


def of(change: Callable[[xr.DataArray], Any], kind: str = "floats") -> Callable[[], tuple[Any, Any]]:
    return lambda: (change(scene()), labels_of(kind)[0])


def beside(change: Callable[[xr.DataArray], Any], kind: str = "floats") -> Callable[[], tuple[Any, Any]]:
    return lambda: (scene(), change(labels_of(kind)[0]))


def nodata() -> np.ndarray:
    return np.where(np.isfinite(values()), np.round(50 * values()), -999).astype(np.int16)


def seasons() -> xr.DataArray:
    return scene().expand_dims(time=TIMES) * xr.DataArray([1.0, 2.0], dims="time")


def over_time() -> xr.DataArray:
    return labels_of("floats")[0].expand_dims(time=TIMES)


def plain_over_time() -> PlainRows:
    one = plain_rows()
    return PlainRows(np.stack([one.X, 2 * one.X]), np.stack([one.labels, one.labels]))


def with_clouds(data: np.ndarray) -> np.ndarray:
    data[:4, :5] = np.nan
    return data


def one_band() -> PlainRows:
    return PlainRows(plain_rows().X[:, :, 1:2], plain_rows().labels)


def masked(array: xr.DataArray) -> xr.DataArray:
    """The array, lazy, with a mask in place of NaN, and a number behind the mask; xarray does not see the mask."""
    missing = np.isnan(array.values)
    lazy = da.from_array(np.ma.array(np.where(missing, 5.0, array.values), mask=missing), chunks=4)
    plain = np.empty((0,) * array.ndim)
    return array.copy(data=lazy.map_blocks(lambda block: block, dtype=array.dtype, meta=plain))


def open_data_cube() -> xr.Dataset:
    """Bands over time as odc-stac loads them: whole numbers, with the attributes and coordinates that it gives."""
    cube = (scene(nodata()).expand_dims(time=TIMES) * xr.DataArray([1, 1], dims="time")).astype(np.int16)
    bands = cube.to_dataset("band").drop_vars(["latitude", "wavelength"], errors="ignore").chunk(time=1, y=5, x=4)
    projection = xr.DataArray(np.int32(32632), attrs={"crs_wkt": "…", "grid_mapping_name": "transverse_mercator"})
    bands = bands.assign_coords(spatial_ref=projection)
    attributes = {"nodata": -999, "units": "1", "grid_mapping": "spatial_ref"}
    return bands.assign({name: band.assign_attrs(attributes) for name, band in bands.data_vars.items()})


def points(kind: str, off: float = 0.0) -> pd.DataFrame:
    """The labelled pixels and one without a label as a table, each ``off`` metres from the middle of its cell."""
    labels, plain = labels_of(kind)
    at = np.argwhere((plain != None) | (np.arange(90).reshape(9, 10) == 55))  # noqa: E711  (elementwise)
    y, x = (places()[name][at[:, axis]] for axis, name in enumerate(("y", "x")))
    return pd.DataFrame({"x": x + off, "cover": labels.values[tuple(at.T)], "y": y - off})


def transect() -> PlainRows:
    return PlainRows(values()[:, 4, 1:2], classes()[:, 4].astype(object))


SHAPES = {
    "bands first": Shape(of(lambda c: c)),
    "bands last": Shape(of(lambda c: c.transpose("y", "x", "band"))),
    "bands between": Shape(of(lambda c: c.transpose("x", "band", "y")),
                           lambda: PlainRows(values().swapaxes(0, 1), labels_of("floats")[1].T), ("x", "y")),
    "chunked": Shape(of(lambda c: c.chunk(y=4, x=3))),
    "chunked bands": Shape(of(lambda c: c.chunk(band=2, x=7))),
    "chunked bands, last": Shape(of(lambda c: c.transpose("y", "x", "band").chunk(band=1, y=2))),
    "one chunk": Shape(of(lambda c: c.chunk())),
    "Dataset": Shape(of(lambda c: c.to_dataset("band"))),
    "lazy Dataset": Shape(of(lambda c: c.to_dataset("band").chunk(x=4))),
    "Dataset, partly lazy": Shape(of(lambda c: c.to_dataset("band").assign(B03=lambda d: d["B03"].chunk(y=2)))),
    "labels turned": Shape(beside(lambda y: y.T)),
    "labels in another order": Shape(beside(lambda y: y[::-1])),
    "labels with a band": Shape(beside(lambda y: y.expand_dims(band=[1]))),
    "labels of words": Shape(of(lambda c: c, "words"), lambda: plain_rows("words")),
    "labels of fixed words": Shape(of(lambda c: c.chunk(y=4), "fixed words"), lambda: plain_rows("words")),
    "labels of codes": Shape(of(lambda c: c, "codes"), lambda: plain_rows("codes")),
    "lazy labels of codes": Shape(
        lambda: (scene().chunk(y=5), labels_of("codes")[0].chunk(y=2)), lambda: plain_rows("codes")
    ),
    "lazy labels beside an array": Shape(beside(lambda y: y.chunk(x=3))),
    "y ascends": Shape(lambda: (scene().assign_coords(y=places()["y"][::-1]),
                                labels_of("floats")[0].assign_coords(y=places()["y"][::-1]))),
    "coordinates occur twice": Shape(lambda: (scene().assign_coords(x=[1, 1, *range(8)]).chunk(x=5),
                                              labels_of("floats")[0].assign_coords(x=[1, 1, *range(8)]))),
    "no coordinates": Shape(lambda: (scene().drop_vars(["y", "x"]), labels_of("floats")[0].drop_vars(["y", "x"]))),
    "coordinates on one side": Shape(beside(lambda y: y.drop_vars(["y", "x"]))),
    "more scalar coordinates": Shape(of(lambda c: c.assign_coords(time=TIMES[0], mission="A", height=2.0))),
    "whole numbers with nodata": Shape(
        lambda: (scene(nodata()).assign_attrs(_FillValue=np.int16(-999)).chunk(x=4), labels_of("floats")[0]),
        lambda: plain_rows(data=np.where(nodata() == -999, np.nan, nodata())),
    ),
    "an open data cube": Shape(
        lambda: (open_data_cube(), labels_of("floats")[0]),
        lambda: plain_rows(data=np.repeat(np.where(nodata() == -999, np.nan, nodata()), 2, axis=2)),
    ),
    "masked": Shape(lambda: (masked(scene()), masked(labels_of("floats")[0]))),
    "masked, chunked bands": Shape(of(lambda c: masked(c).chunk(band=1))),
    "masked bands": Shape(of(lambda c: masked(c).to_dataset("band"))),
    "points": Shape(lambda: (scene(), points("floats", 4.9))),
    "points of words in a lazy scene": Shape(lambda: (scene().chunk(y=4, x=3, band=1), points("words", -4.9)),
                                             lambda: plain_rows("words")),
    "points in a Dataset": Shape(lambda: (scene().to_dataset("band").chunk(x=4), points("floats"))),
    "float32": Shape(lambda: (scene().astype("f4").chunk(y=3), labels_of("floats")[0]),
                     lambda: plain_rows(data=values().astype("f4"))),
    "blocks without any value": Shape(lambda: (scene(with_clouds(values())).chunk(y=4, x=5), labels_of("floats")[0]),
                                      lambda: plain_rows(data=with_clouds(values()))),
    "one class a block": Shape(of(lambda c: c.chunk(y=1, x=1))),
    "seasons": Shape(lambda: (seasons().chunk(time=1), labels_of("floats")[0]),
                     lambda: plain_rows(data=np.concatenate([values(), 2 * values()], axis=2))),
    "seasons, a variable a band": Shape(
        lambda: (seasons().to_dataset("band").chunk(time=1, y=5), labels_of("floats")[0]),
        lambda: plain_rows(data=np.stack([values(), 2 * values()], axis=3).reshape(9, 10, 6)),
    ),
    "time in the labels": Shape(lambda: (seasons().chunk(time=1, band=2), over_time()), plain_over_time,
                                ("time", "y", "x")),
    "time in the labels, turned": Shape(lambda: (seasons(), over_time().transpose("x", "time", "y")),
                                        plain_over_time, ("time", "y", "x")),
    "one image": Shape(of(lambda c: c[1]), one_band),
    "one image, lazy": Shape(of(lambda c: c[1].chunk(y=2)), one_band),
    "a transect": Shape(lambda: (scene()[1, :, 4], xr.DataArray(classes()[:, 4], dims="y")), transect, ("y",)),
    "stacked": Shape(lambda: (seasons().stack(place=("y", "x")), labels_of("floats")[0].stack(place=("y", "x"))),
                     lambda: PlainRows(np.concatenate([values(), 2 * values()], axis=2).reshape(90, 6),
                                       labels_of("floats")[1].reshape(90)), ("place",)),
}  # fmt: skip


def plain_model(plain: PlainRows, **settings: Any) -> ODMClassifier:
    return ODMClassifier(**{**SETTINGS, **settings}).fit(*plain.training)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_cube_is_learned_and_mapped_as_its_plain_rows(shape):
    cube, labels = SHAPES[shape].make()
    plain, dimensions = SHAPES[shape].plain(), SHAPES[shape].dimensions
    model, expected = ODMClassifier(**SETTINGS).fit(cube, labels), plain_model(plain)
    np.testing.assert_array_equal(model.classes_, expected.classes_)
    assert model.missing_rows_ == int(((plain.labels != None) & ~plain.complete).sum())  # noqa: E711
    np.testing.assert_array_equal(model.dual_coef_, expected.dual_coef_)  # the same rows in the same order
    scores = model.decision_function(cube)
    assert scores.dims == dimensions
    np.testing.assert_allclose(scores, plain.expected(expected.decision_function, np.nan), rtol=1e-5, atol=1e-5)
    found = model.predict(cube)
    is_lazy = bool(cube.chunks)
    for each in (scores, found):
        assert isinstance(each.data, da.Array if is_lazy else np.ndarray)
        for name in each.coords:
            assert each[name].equals(cube[name]), name
    assert {name for name, c in cube.coords.items() if set(c.dims) <= set(dimensions)} == set(found.coords)
    decoded = model.predict(cube, decode=True).values
    taken = plain.complete
    np.testing.assert_array_equal(decoded[taken], expected.predict(plain.X[taken]))
    assert pd.isna(decoded[~taken]).all()
    codes = found.values
    assert (codes[~taken] == found.attrs["_FillValue"]).all()
    by_code = dict(zip(found.attrs["flag_values"].tolist(), model.classes_.tolist(), strict=True))
    assert [by_code[code] for code in codes[taken].tolist()] == decoded[taken].tolist()
    assert found.dtype == np.uint8
    known = np.array([label is not None for label in plain.labels[taken]])
    right = (decoded[taken][known] == plain.labels[taken][known]).mean()
    assert model.score(cube, labels) == pytest.approx(right)


def test_zeros_on_most_pixels_may_mean_no_label():
    labels = labels_of("codes")[0].drop_attrs()
    with pytest.warns(UserWarning, match=r"y is 0 on 6\d% of the rows, which is learned as a class\. If it means"):
        assert len(ODMClassifier().fit(scene(), labels).classes_) == 3
    labels.encoding["_FillValue"] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ODMClassifier(**SETTINGS).fit(scene(), labels).classes_.tolist() == [3, 4]
        water = xr.zeros_like(labels).where(labels == 0, 1).astype(int)
        assert ODMClassifier(**SETTINGS).fit(scene(), water).classes_.tolist() == [0, 1]


def test_weights_and_groups_of_points():
    weight, table = np.arange(1.0, 1 + len(points("floats"))), points("floats")
    labels, frame = labels_of("floats")[0], table.assign(weight=weight).set_index(["y", "x"])
    over = frame["weight"].to_xarray().reindex_like(labels, fill_value=1.0)
    expected = ODMClassifier(**SETTINGS).fit(scene(), labels, sample_weight=over)
    found = ODMClassifier(**SETTINGS).fit(scene(), table, sample_weight=weight)
    np.testing.assert_array_equal(found.decision_function(scene()), expected.decision_function(scene()))
    assert found.score(scene(), table) == found.score(scene(), labels)
    folds = GroupKFold(3)
    settings = {"gammas": [0.1, 1.0], "lams": [10.0], "upsilons": [0.2], "thetas": [0.2], "random_state": 0}
    searched = ODMClassifierCV(cv=folds, **settings).fit(scene(), table, groups=weight // 10)
    groups = (over // 10).where(labels.notnull(), 0.0)
    again = ODMClassifierCV(cv=folds, **settings).fit(scene(), labels, groups=groups)
    assert searched.best_score_ == again.best_score_


def test_points_along_one_dimension_and_by_name():
    """A dimension without a column stays a feature; words have to be those of a coordinate."""
    cube = xr.DataArray(values()[:, 4], dims=("station", "band"), coords={"station": [*"abcdefghi"], "band": BANDS})
    table = pd.DataFrame({"station": [*"hgcad"], "y": [1, 1, 0, 0, 0]})
    found = ODMClassifier(**SETTINGS).fit(cube, table)
    expected = ODMClassifier(**SETTINGS).fit(values()[[7, 6, 2, 0, 3], 4], table["y"])
    np.testing.assert_array_equal(found.dual_coef_, expected.dual_coef_)
    with pytest.raises(InputError, match="1 of 5 points are outside X along 'station', the first at z"):
        found.fit(cube, table.replace("h", "z"))


@pytest.mark.parametrize("classes", [["cold", "hot"], [1, 2]])
def test_rows_along_one_dimension_have_labels_as_they_were(classes):
    table = xr.Dataset({name: ("row", column) for name, column in zip("ab", blobs(40, 2, seed=1)[0].T, strict=True)})
    labels = table.a.copy(data=np.array(classes)[(table.a.values > 0).astype(int)])
    for rows in (table, table.chunk(row=10)):
        found = ODMClassifier(**SETTINGS).fit(rows, labels).predict(rows)
        assert found.dims == ("row",)
        assert float((found == labels).mean()) > 0.9
        assert ODMClassifier(**SETTINGS).fit(rows, labels).predict(rows, decode=False).dtype.kind in "iu"


def test_labels_and_weights_by_the_name_of_a_variable():
    labels, _ = labels_of("floats")
    weight = xr.where(labels.y > 4950, 2.0, 1.0)
    dataset = scene().to_dataset("band").assign(landcover=labels, share=weight)
    for given in (dataset, dataset.chunk(y=4)):
        model = ODMClassifier(**SETTINGS).fit(given, "landcover", "share")
        plain = plain_rows()
        taken = plain.complete & labels.notnull().values
        weights = np.broadcast_to(weight.values[:, None], taken.shape)[taken]
        expected = ODMClassifier(**SETTINGS).fit(*plain.training, weights)
        assert model.feature_names_in_.tolist() == BANDS
        np.testing.assert_array_equal(model.dual_coef_, expected.dual_coef_)
        assert model.predict(given).dims == ("y", "x")  # which takes the variables of the fit alone
        assert model.score(given, "landcover") == pytest.approx(expected.score(*plain.training))


@pytest.fixture(scope="module")
def fitted() -> ODMClassifier:
    return ODMClassifier(**SETTINGS).fit(scene(), labels_of("floats")[0])


OTHER_FORMS = {
    "bands in another order": lambda c: c[[2, 0, 1]],
    "more bands": lambda c: c[[2, 0, 0, 1]].assign_coords(band=["B04", "B08", "B02", "B03"]),
    "a Dataset": lambda c: c.to_dataset("band"),
    "a Dataset of more": lambda c: c[::-1].to_dataset("band").assign(SCL=(("y", "x"), np.ones((9, 10)))),
    "another name of the dimension": lambda c: c.rename(band="wave"),
    "no names": lambda c: c.drop_vars("band"),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("form", OTHER_FORMS)
@pytest.mark.parametrize("chunks", [None, {"y": 4}])
def test_features_are_found_by_their_names(fitted, form, chunks):
    given = OTHER_FORMS[form](scene())
    found = fitted.decision_function(given.chunk(chunks) if chunks else given)
    np.testing.assert_allclose(found, fitted.decision_function(scene()), atol=1e-10)


def test_more_rows_than_those_of_the_fit(fitted):
    found = fitted.decision_function(seasons())
    assert found.dims == ("time", "y", "x")
    np.testing.assert_allclose(found[0], fitted.decision_function(scene()), atol=1e-10)
    pixel = fitted.decision_function(scene()[:, 1, 1])
    assert pixel.dims == ()
    np.testing.assert_allclose(pixel, fitted.decision_function(scene())[1, 1], atol=1e-10)
    assert fitted.predict(scene()[:, :0]).shape == (0, 10)
    assert fitted.predict(scene().chunk(y=4)[:, :0]).compute().shape == (0, 10)
    pixels = scene().stack(pixel=("y", "x")).T
    assert fitted.decision_function(pixels).unstack("pixel").dims == ("y", "x")  # of two dimensions, and still a cube


def test_a_model_of_plain_rows_maps_a_cube():
    plain = plain_model(plain_rows())
    expected = plain_rows().expected(plain.decision_function, np.nan)
    np.testing.assert_allclose(plain.decision_function(scene()), expected, atol=1e-10)
    points = xr.DataArray(plain_rows().training[0].T, dims=("band", "point"), coords={"band": BANDS})
    model = ODMClassifier(**SETTINGS).fit(points, xr.DataArray(plain_rows().training[1], dims="point"))
    np.testing.assert_allclose(model.decision_function(scene().chunk(x=3)), expected, atol=1e-10)


@pytest.mark.parametrize("form", [lambda c: c, lambda c: c.to_dataset("band"), lambda c: c.chunk(y=4)])
def test_a_model_of_samples_maps_a_cube_whose_features_span_two_dimensions(form, tmp_path):
    cube = form(seasons())
    labels = labels_of("floats")[0]
    expected = ODMClassifier(**SETTINGS).fit(cube, labels)
    store = ingest((cube, labels), tmp_path / "samples.zarr")
    rows = store.read_rows(np.arange(store.rows))
    of_table = ODMClassifier(**SETTINGS).fit(pd.DataFrame(rows.X, columns=store.feature_names), store.labels(rows.y))
    for model in (ODMClassifier(**SETTINGS).fit(store), of_table):
        xr.testing.assert_allclose(model.decision_function(cube), expected.decision_function(cube), atol=1e-3)
        assert model.score(cube, labels) == pytest.approx(expected.score(cube, labels), abs=0.03)
    with pytest.raises(InputError, match="time=2025-03-01"):
        of_table.predict(cube.assign_coords(time=TIMES + pd.Timedelta(days=365)))


def test_features_without_names_that_span_two_dimensions_are_refused():
    model = ODMClassifier(**SETTINGS).fit(np.random.default_rng(0).normal(size=(20, 6)), np.arange(20) % 2)
    with pytest.raises(InputError, match=r"If several hold them, stack these in the order of the fit: X.stack"):
        model.predict(seasons())
    assert model.predict(seasons().stack(feature=("time", "band"))).dims == ("y", "x")


def test_many_chunks_of_features_give_no_warning():
    cube = open_data_cube().chunk(y=9, x=10)
    model = ODMClassifier(**SETTINGS).fit(cube, labels_of("floats")[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = model.predict(cube)
    np.testing.assert_array_equal(found, model.predict(cube.compute()))


def test_nothing_is_computed_until_it_is_asked_for(fitted):
    def never(*arguments: Any, **options: Any) -> None:
        raise AssertionError("computed")

    with dask.config.set(scheduler=never):
        lazy = [fitted.predict(scene().chunk(y=4)), fitted.decision_function(scene().to_dataset("band").chunk(x=3))]
    assert lazy[0].chunks == ((4, 4, 1), (10,))
    assert [each.shape for each in lazy] == [(9, 10), (9, 10)]


@pytest.mark.parametrize("chunks", [None, {"y": 4}])
def test_a_cube_and_its_map_on_disk(tmp_path, chunks):
    numbered = scene().assign_coords(band=[2, 3, 4])
    numbered.to_zarr(tmp_path / "scene.zarr", consolidated=False)
    on_disk = xr.open_zarr(tmp_path / "scene.zarr", consolidated=False, chunks=None)["reflectance"]
    labels_of("codes")[0].to_zarr(tmp_path / "labels.zarr", consolidated=False)
    opened = xr.open_zarr(tmp_path / "labels.zarr", consolidated=False, chunks=None)
    labels = opened["landcover"]  # floats now, with missing ones
    if chunks:
        on_disk, labels = on_disk.chunk(chunks), labels.chunk(chunks)
    model = ODMClassifier(**SETTINGS).fit(on_disk, labels)
    assert model.classes_.tolist() == [3.0, 4.0]
    found = model.predict(on_disk)
    assert isinstance(found.data, da.Array)
    found.to_zarr(tmp_path / "map.zarr", consolidated=False)
    raw = xr.open_zarr(tmp_path / "map.zarr", consolidated=False, mask_and_scale=False)["prediction"]
    assert raw.dtype == np.uint8
    assert np.asarray(raw.attrs["flag_values"]).tolist() == [3, 4]
    np.testing.assert_array_equal(raw, found)
    masked = xr.open_zarr(tmp_path / "map.zarr", consolidated=False)["prediction"]
    np.testing.assert_array_equal(masked.isnull(), ~plain_rows().complete)
    assert set(masked.coords) >= {"y", "x", "spatial_ref"}


def test_a_map_is_written_in_parts(fitted, tmp_path):
    """As docs/maps.md has it: what another process has written stays."""
    cover = fitted.predict(scene().chunk(y=3))
    cover.to_zarr(tmp_path / "map.zarr", compute=False, consolidated=False)
    for lines in (slice(6, 9), slice(0, 3), slice(3, 6)):
        part = cover[lines].drop_vars(["x", "latitude", "spatial_ref"], errors="ignore").drop_attrs()
        part.to_zarr(tmp_path / "map.zarr", region={"y": lines}, consolidated=False)
    written = xr.open_zarr(tmp_path / "map.zarr", consolidated=False, mask_and_scale=False)["prediction"]
    np.testing.assert_array_equal(written, fitted.predict(scene()))
    assert set(written.coords) == set(cover.coords)


SMOOTH = {"gamma": 0.05, "lam": 2.0, "scale": None}  # few effective parameters, as leaving one out needs them


def test_many_classes_and_probabilities():
    labels = (labels_of("floats")[0] + (scene().x > 350)).rename("class of cover")
    plain = PlainRows(values(), np.where(labels.isnull(), None, labels.values.astype(object)))
    expected = plain_model(plain, loo=True, **SMOOTH)
    for chunks in (None, {"x": 4}):
        given = scene().chunk(chunks) if chunks else scene()
        model = ODMClassifier(**{**SETTINGS, **SMOOTH}, loo=True).fit(given, labels)
        assert model.classes_.tolist() == [1.0, 2.0, 3.0]
        for method, name in (("decision_function", "decision_function"), ("predict_proba", "probability")):
            found = getattr(model, method)(given)
            assert (found.name, found.dims) == (name, ("y", "x", "class"))
            assert found["class"].values.tolist() == [1.0, 2.0, 3.0]
            np.testing.assert_allclose(found, plain.expected(getattr(expected, method), np.nan), atol=1e-8)
        chosen = model.predict_proba(given).compute().idxmax("class")
        np.testing.assert_array_equal(chosen, model.predict(given, decode=True))


def test_a_saved_model_knows_the_cube(fitted, tmp_path):
    seasonal = ODMClassifier(**SETTINGS).fit(seasons().drop_vars("band"), labels_of("floats")[0])
    seasonal.save(tmp_path / "model.zarr")
    loaded = load_model(tmp_path / "model.zarr")
    assert loaded.missing_rows_ == seasonal.missing_rows_ == 2
    assert loaded.feature_names_in_.tolist() == seasonal.feature_names_in_.tolist()
    given = seasons().drop_vars("band").transpose("x", "y", "band", "time")
    np.testing.assert_array_equal(loaded.decision_function(given), seasonal.decision_function(given))
    assert loaded.decision_function(given).dims == ("x", "y")
    refitted = loaded.fit(*plain_rows().training)
    assert not hasattr(refitted, "missing_rows_")
    assert refitted._schema.cube is None


def test_a_map_has_the_meanings_of_the_labels(tmp_path):
    labels = labels_of("codes")[0].assign_attrs(flag_values=np.array([3, 4, 9]), flag_meanings="water land town")
    model = ODMClassifier(**{**SETTINGS, **SMOOTH}, loo=True).fit(scene(), labels)
    model.save(tmp_path / "model.zarr")
    for each in (model, load_model(tmp_path / "model.zarr")):
        for found in (each.predict(scene()), each.predict_proba(scene())["class"]):
            assert (found.flag_values.tolist(), found.flag_meanings) == ([3, 4], "water land")
    assert model.fit(scene(), labels_of("codes")[0]).predict(scene()).attrs["flag_meanings"] == "3 4"
    words = model.fit(scene(), labels_of("words")[0]).predict_proba(scene())["class"]
    assert words.attrs == {}  # they name themselves


def test_a_regression_of_a_cube():
    target = scene()[0].drop_vars("band").rename("amount").where(labels_of("floats")[0].notnull())
    plain = PlainRows(values(), np.where(target.isnull(), None, target.values.astype(object)))
    expected = MDDRidge().fit(*plain.training)
    for given in (scene(), scene().chunk(y=4)):
        model = MDDRidge().fit(given, target)
        found = model.predict(given)
        assert (found.name, found.dims) == ("prediction", ("y", "x"))
        np.testing.assert_allclose(found, plain.expected(expected.predict, np.nan), atol=1e-8)
        assert model.score(given, target) == pytest.approx(expected.score(*plain.training))


@pytest.mark.parametrize("what", ["classes", "real"])
def test_a_cube_larger_than_what_is_read_into_memory(monkeypatch, what):
    """Its labelled rows are spooled block by block, and scored block by block."""
    cube = scene().chunk(y=4, x=6)
    labels = labels_of("words")[0] if what == "classes" else scene()[0].drop_vars("band")
    make = ODMClassifier if what == "classes" else MDDRidge
    settings = {**SETTINGS, "tol": 1e-8} if what == "classes" else {}
    expected = make(**settings).fit(cube, labels)
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 100})
    found = make(**settings).fit(cube, labels)
    assert found.missing_rows_ == expected.missing_rows_
    assert found.feature_names_in_.tolist() == BANDS
    compared = "decision_function" if what == "classes" else "predict"
    np.testing.assert_allclose(getattr(found, compared)(cube), getattr(expected, compared)(cube), atol=0.02)
    assert found.score(cube, labels) == pytest.approx(expected.score(cube, labels), abs=0.02)
    with pytest.raises(InputError, match=r"all \d+ rows of X that have a label miss a feature"):
        make(**settings).fit(cube.where(False), labels)


@pytest.mark.parametrize("form", ["in memory", "lazy", "a variable", "a store"])
def test_groups_are_beside_the_rows(form, tmp_path):
    """A search by groups is one by the splits that scikit-learn makes of the plain rows."""
    X, y = plain_rows().training
    groups = xr.DataArray(np.arange(9) // 2, dims="y", coords={"y": places()["y"]})
    taken = plain_rows().complete & labels_of("floats")[0].notnull().values
    plain = np.broadcast_to(groups.values[:, None], taken.shape)[taken]
    settings = {"gammas": [0.1, 1.0], "lams": [10.0], "upsilons": [0.2], "thetas": [0.2], "random_state": 0}
    expected = ODMClassifierCV(**settings, cv=list(GroupKFold(3).split(X, y, plain))).fit(X, y)
    search = ODMClassifierCV(**settings, cv=GroupKFold(3))
    labels = labels_of("floats")[0]
    if form == "a variable":
        search.fit(scene().to_dataset("band").assign(landcover=labels, block=groups), "landcover", groups="block")
    elif form == "a store":
        store = ingest((scene(), labels), tmp_path / "a.zarr", dtype="float64")
        search.fit(store, groups=((5000 - open_store(store.path).at_y.values) // 20).astype(int))
    else:
        search.fit(scene().chunk(y=2) if form == "lazy" else scene(), labels, groups=groups)
    np.testing.assert_array_equal(search.cv_results_["mean_test_score"], expected.cv_results_["mean_test_score"])
    assert search.best_params_ == expected.best_params_


def wide(chunks: dict[str, int]) -> xr.DataArray:
    """A cube of 72 MB that is made when it is computed; all rows of a line are equal."""
    lines = da.from_array(np.random.default_rng(0).normal(size=(4, 1500, 1)), chunks=-1)
    data = da.broadcast_to(lines, (4, 1500, 1500), chunks=-1)
    return xr.DataArray(data, dims=("band", "y", "x")).chunk(chunks)


@pytest.mark.parametrize("fits", [True, False])
def test_a_cube_whose_blocks_do_not_fit_is_refused_with_chunks_that_do(fits):
    labels = xr.DataArray(np.full((1500, 1500), np.nan), dims=("y", "x"))
    labels[:30, 0] = np.arange(30) % 2
    model = ODMClassifier(**SETTINGS).fit(wide({"y": 100}), labels).set_params(memory_limit=CPU_COUNT * 100_000_000)
    whole = wide({"y": 1500, "x": 1500})
    calls = [lambda X: model.predict(X), lambda X: clone(model).set_params(**small).fit(X, labels)]
    small = {"memory_limit": CPU_COUNT * 30_000_000}
    for call in calls:
        with pytest.raises(MemoryLimitError, match="A block of the cube needs") as refused:
            call(whole)
        chunks = ast.literal_eval(re.search(r"chunks=(\{.*?\})", str(refused.value))[1])
        assert set(chunks) == {"y", "x"}
        if fits:
            call(wide(chunks))
        else:  # twice as large
            with pytest.raises(MemoryLimitError):
                call(wide({**chunks, "y": 2 * chunks["y"]}))
    with pytest.raises(MemoryLimitError, match=r"are free for it. Fewer threads a worker or more memory would do.$"):
        model.set_params(memory_limit=1000).predict(whole)


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True])
def test_the_projected_memory_of_a_map_is_that_of_its_tasks(split):
    plain = plain_model(plain_rows())
    data = 1.0 + da.zeros((3, 1500, 1500), chunks=(1 if split else 3, -1, -1))
    whole = xr.DataArray(data, dims=("band", "y", "x"))
    projected = map_bytes(cube_of(whole, ["y", "x"]), AnswerFormat(np.dtype(np.uint8), 255), 1500 * 1500)
    found = plain.predict(whole)
    with dask.config.set(scheduler="synchronous"):
        found[:1, :1].compute()
        _, peak = traced(found.compute)
    assert 0.4 * projected < peak < projected


def with_labels() -> xr.Dataset:
    return scene().to_dataset("band").assign(landcover=labels_of("floats")[0])


def test_a_feature_that_is_only_named_as_the_labels():
    """An older map of the same name may be learned from."""
    labels, older = labels_of("floats")[0], scene().to_dataset("band").assign(landcover=scene()[0].drop_vars("band"))
    assert ODMClassifier(**SETTINGS).fit(older, labels).feature_names_in_.tolist() == [*BANDS, "landcover"]


BAD = {
    "plain labels": (lambda: (scene(), np.zeros((9, 10))), "X must have two dimensions.*as a DataArray"),
    "one class": (lambda: (scene(), xr.ones_like(labels_of("floats")[0])), "one class only"),
    "points of words": (lambda: (scene(), points("floats").assign(x="here")), "points along 'x' are not all numbers"),
    "points without labels": (lambda: (scene(), points("floats")[["y", "x"]]), "one of labels. Got none beside them"),
    "points without coordinates": (
        lambda: (scene().drop_vars("y"), points("floats")), "X has no coordinates along 'y', which the points have",
    ),
    "points in cells that are there twice": (
        lambda: (scene().assign_coords(x=[1, 1, *range(8)]), points("floats")), "along 'x' occur more than once",
    ),
    "points of labels among the features": (
        lambda: (with_labels().chunk(y=4), points("floats").rename(columns={"cover": "landcover"})),
        "y is also a feature of X, 'landcover'",
    ),
    "negative weights": (lambda: (scene(), labels_of("floats")[0], -xr.ones_like(labels_of("floats")[0])), "egative"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_fit_refuses(what):
    make, message = BAD[what]
    with pytest.raises(InputError, match=message):
        ODMClassifier().fit(*make())


BAD_TO_PREDICT = {
    "other bands": (lambda: scene().assign_coords(band=["B02", "B03", "B11"]), "feature names should match"),
    "too few bands": (lambda: scene()[:2].drop_vars("band"), "X has 2 features, but ODMClassifier is expecting 3"),
    "a Dataset that lacks one": (lambda: scene().to_dataset("band").drop_vars("B03"), "feature names should match"),
}


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
@pytest.mark.parametrize("what", BAD_TO_PREDICT)
def test_what_predict_refuses(fitted, what):
    make, message = BAD_TO_PREDICT[what]
    with pytest.raises(InputError, match=message):
        fitted.predict(make())


@pytest.mark.parametrize(("clouded", "told"), [(0, []), (4, ["WARNING"])])
def test_labels_under_clouds_are_told_if_they_are_many(caplog, clouded, told):
    cube = scene()
    cube[0, :clouded] = np.nan  # whole rows of pixels, in one band
    with caplog.at_level("WARNING", logger="dask_odm"):
        ODMClassifier(**SETTINGS).fit(cube, labels_of("floats")[0])
    assert [each.levelname for each in caplog.records if "as under a cloud" in each.getMessage()] == told
