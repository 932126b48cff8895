"""The command line on cubes in zarr and NetCDF: what it learns and maps is what Python does with the same cube."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from cli.running import run
from dask_odm import ODMClassifier, Store, load_model, spatial_blocks
from small_cubes import BANDS, labels_of, plain_rows, scene

SETTINGS = ("--lam", 100, "--scale", "minmax", "--tol", 1e-6)


def written(folder: Path, name: str, cube: xr.Dataset | xr.DataArray, **options) -> None:
    dataset = cube.to_dataset(name=cube.name) if isinstance(cube, xr.DataArray) else cube
    if "band" in dataset.coords:
        dataset = dataset.assign_coords(band=dataset.band.astype(object))  # which zarr has a stable type for
    if name.endswith(".nc"):
        dataset.drop_encoding().to_netcdf(folder / name, engine="scipy")
    else:
        dataset.to_zarr(folder / name, consolidated=False, **options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Scenes of one variable, of a variable for each band, and beside its labels; labels of two kinds; a model."""
    path = tmp_path_factory.mktemp("cubes")
    bands = scene().to_dataset("band").chunk(y=4)
    written(path, "scene.zarr", scene().chunk(y=4, band=2))
    written(path, "bands.zarr", bands)
    written(path, "whole.zarr", bands.assign(landcover=labels_of("codes")[0]))
    written(path, "scene.nc", scene().to_dataset("band"))
    written(path, "labels.zarr", labels_of("codes")[0].to_dataset().assign(other=labels_of("floats")[0]))
    written(path, "bare.zarr", labels_of("codes")[0].drop_attrs())
    written(path, "only.zarr", labels_of("codes")[0])
    frame = labels_of("codes")[0].to_dataframe().reset_index()[["y", "x", "landcover"]]
    frame[frame["landcover"] > 0].to_csv(path / "points.csv", index=False)
    frame.assign(cover=frame["landcover"], number=range(len(frame))).to_csv(path / "more.csv", index=False)
    run("fit", path / "scene.zarr", path / "model.zarr", "--labels", f"{path}/labels.zarr:landcover", *SETTINGS)
    return path


def expected(bands: list[str] = BANDS) -> ODMClassifier:
    plain = plain_rows("codes")
    training = replace(plain, X=plain.X[:, :, [BANDS.index(band) for band in bands]]).training
    return ODMClassifier(lam=100, scale="minmax", tol=1e-6).fit(*training)


@pytest.mark.parametrize(("source", "labels"), [
    ("scene.zarr", "labels.zarr:landcover"), ("bands.zarr", "only.zarr"), ("whole.zarr", "whole.zarr:landcover"),
    ("scene.nc", "only.zarr:landcover"), ("scene.zarr", "points.csv"),
])  # fmt: skip
@pytest.mark.parametrize("features", [None, ["B02", "B04"]])
def test_a_model_is_that_of_the_plain_rows(folder, tmp_path, source, labels, features):
    named = () if features is None else ("--features", ",".join(features))
    options = ("--labels", folder / labels, *named, *SETTINGS, "--json")
    told = json.loads(run("fit", folder / source, tmp_path / "model.zarr", *options).stdout)
    assert told["rows"] is None
    model = load_model(tmp_path / "model.zarr")
    assert model.feature_names_in_.tolist() == (features or BANDS)
    assert model.missing_rows_ == (2 if features is None else 1)  # one misses only B03
    np.testing.assert_allclose(model.dual_coef_, expected(features or BANDS).dual_coef_, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("labels", ["bare.zarr", "more.csv:cover"])
def test_a_label_that_means_none(folder, tmp_path, labels):
    run("fit", folder / "scene.zarr", tmp_path / "m.zarr", "--labels", folder / labels, "--ignore", 0, *SETTINGS)
    np.testing.assert_array_equal(
        load_model(tmp_path / "m.zarr").dual_coef_, load_model(folder / "model.zarr").dual_coef_
    )


@pytest.mark.parametrize("source", ["scene.zarr", "bands.zarr", "whole.zarr", "scene.nc"])
def test_a_map_is_that_of_the_plain_rows(folder, tmp_path, source):
    said = run("predict", folder / "model.zarr", folder / source, tmp_path / "map.zarr").stdout
    assert said.startswith(f"{tmp_path / 'map.zarr'}: 90 labels, ")
    found = xr.open_zarr(tmp_path / "map.zarr", consolidated=False, mask_and_scale=False)["prediction"]
    np.testing.assert_array_equal(found, plain_rows("codes").expected(expected().predict, 255))
    assert found.attrs["flag_meanings"] == "3 4"
    np.testing.assert_array_equal(found.y, scene().y)
    run("predict", folder / "model.zarr", folder / source, tmp_path / "map.zarr", "--decision-function", "--overwrite")
    found = xr.open_zarr(tmp_path / "map.zarr", consolidated=False)["decision_function"]
    scores = plain_rows("codes").expected(expected().decision_function, np.nan)
    np.testing.assert_allclose(found, scores, rtol=1e-5, atol=1e-5)
    assert [path.name for path in tmp_path.iterdir()] == ["map.zarr"]


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of affine, which rasterio multiplies by
def test_a_cube_of_rioxarray(tmp_path):
    rioxarray = pytest.importorskip("rioxarray")
    scene().drop_vars(["spatial_ref", "latitude"]).rio.write_crs("EPSG:32633").rio.to_raster(tmp_path / "scene.tif")
    cube = rioxarray.open_rasterio(tmp_path / "scene.tif", chunks={"y": 4})
    found = ODMClassifier(lam=100, scale="minmax", tol=1e-6).fit(cube, labels_of("codes")[0]).predict(cube)
    np.testing.assert_array_equal(found, plain_rows("codes").expected(expected().predict, 255))
    assert found.rio.crs.to_epsg() == 32633


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_map_that_gis_programs_open(folder, tmp_path):
    pytest.importorskip("rioxarray")
    import rasterio
    import rasterio.shutil

    run("predict", folder / "model.zarr", folder / "scene.zarr", tmp_path / "map.tif")
    with rasterio.open(tmp_path / "map.tif") as file:
        np.testing.assert_array_equal(file.read(1), plain_rows("codes").expected(expected().predict, 255))
        assert file.nodata == 255
        assert file.transform[:6] == (10.0, 0.0, 295.0, 0.0, -10.0, 5005.0)
    rasterio.shutil.copy(tmp_path / "map.tif", tmp_path / "map.vrt", driver="VRT")  # GDAL writes what it has read
    names = (tmp_path / "map.vrt").read_text()
    assert re.findall("<Category ?/?>(?:(.*?)</Category>)?", names) == ["", "", "", "3", "4"]
    run("predict", folder / "model.zarr", folder / "scene.zarr", tmp_path / "map.tif", status=2)
    named = labels_of("codes")[0].assign_attrs(flag_values=np.array([3, 4]), flag_meanings="water land")
    written(tmp_path, "codes.zarr", named)
    points = pd.read_csv(folder / "points.csv")
    points.replace({"landcover": {3: "sea", 4: "dry land"}}).to_csv(tmp_path / "words.csv", index=False)
    for labels, bands in (("codes.zarr", ("water", "land")), ("words.csv", ("dry land", "sea"))):
        options = ("--labels", tmp_path / labels, "--loo", *SETTINGS)
        run("fit", folder / "scene.zarr", tmp_path / "m.zarr", *options, "--overwrite")
        run("predict", tmp_path / "m.zarr", folder / "scene.zarr", tmp_path / "proba.tif", "--proba", "--overwrite")
        with rasterio.open(tmp_path / "proba.tif") as file:
            assert file.descriptions == bands
    run("fit", folder / "scene.zarr", tmp_path / "r.zarr", "--labels", tmp_path / "codes.zarr", "--loo",
        "--estimator", "regressor")  # fmt: skip
    run("predict", tmp_path / "r.zarr", folder / "scene.zarr", tmp_path / "ends.tif", "--sets", 0.5)
    with rasterio.open(tmp_path / "ends.tif") as file:
        assert file.descriptions == ("low", "high")


def test_a_sample_is_stored(folder, tmp_path):
    run("ingest", folder / "scene.zarr", tmp_path / "a.zarr", "--labels", folder / "only.zarr", "--per-class", 5)
    store = Store.open(tmp_path / "a.zarr")
    assert store.classes == (3, 4)
    assert store.class_counts == (5, 5)
    assert [name for name, _ in store.layout.coordinates] == ["y", "x"]


@pytest.mark.parametrize("kind", ["an image", "points", "a store"])
def test_blocks_of_places_are_left_out(folder, tmp_path, kind):
    source = folder / "scene.zarr"
    labels = ("--labels", folder / ("points.csv" if kind == "points" else "only.zarr"))
    if kind == "a store":
        run("ingest", source, tmp_path / "rows.zarr", *labels, "--dtype", "float64")
        source, labels = tmp_path / "rows.zarr", ()
    run("fit", source, tmp_path / "m.zarr", *labels, *SETTINGS, "--loo", "--blocks", "y=30,x=40")
    blocks = spatial_blocks(scene(), {"y": 30, "x": 40})
    expected = ODMClassifier(lam=100, scale="minmax", tol=1e-6, loo=True)
    expected.fit(scene(), labels_of("codes")[0], groups=blocks)
    np.testing.assert_allclose(load_model(tmp_path / "m.zarr").loo_group_scores_, expected.loo_group_scores_)


BAD = {
    "several variables": (("fit", "scene.zarr", "m.zarr", "--labels", "labels.zarr"), "several variables, or none"),
    "no such band": (
        ("fit", "scene.zarr", "m.zarr", "--labels", "only.zarr", "--features", "B02,B99"), "no features 'B02', 'B99'",
    ),
    "no such table": (("fit", "scene.zarr", "m.zarr", "--labels", "none.csv"), "cannot be read as a table of points"),
    "no such file": (("fit", "scene.zarr", "m.zarr", "--labels", "none.zarr"), "xarray cannot open it as a cube"),
    "no labels": (("fit", "scene.zarr", "m.zarr"), "is a zarr group but not a dask_odm store"),
    "features alone": (("fit", "scene.zarr", "m.zarr", "--features", "B02"), "--features goes with --labels"),
    "ignore alone": (("fit", "scene.zarr", "m.zarr", "--ignore", "0"), "--ignore goes with --labels"),
    "a table of a cube": (("predict", "model.zarr", "scene.zarr", "map.csv"), "must end in .zarr or .tif"),
    "a map over a model": (("predict", "model.zarr", "scene.zarr", "model.zarr", "--overwrite"), "is not a map"),
    "a map over a map": (("predict", "model.zarr", "scene.zarr", "only.zarr"), "pass --overwrite to replace it"),
    "options of rows": (("predict", "model.zarr", "scene.zarr", "m.zarr", "--label", "a"), "are for files of rows"),
    "groups of an image": (
        ("fit", "scene.zarr", "m.zarr", "--labels", "only.zarr", "--loo", "--groups", "g.npy"),
        "--groups is for rows of a store, or points; for an image of labels, give --blocks",
    ),
    "blocks without lengths": (
        ("fit", "scene.zarr", "m.zarr", "--labels", "only.zarr", "--loo", "--blocks", "y,x"), "such as y=1500,x=1500",
    ),
    "blocks along another dimension": (
        ("fit", "scene.zarr", "m.zarr", "--labels", "points.csv", "--loo", "--blocks", "lat=3"),
        "there are no places of the rows along lat",
    ),
    "not a cube": (("predict", "model.zarr", "broken.nc", "m.zarr"), "xarray cannot open it as a cube"),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_what_is_refused(folder, monkeypatch, what):
    monkeypatch.chdir(folder)
    Path("broken.nc").write_bytes(b"not a file of NetCDF")
    arguments, message = BAD[what]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert message in run(*arguments, status=2).stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_report_of_a_cube_has_a_map_and_with_labels_how_good_it_is(folder, tmp_path):
    page = tmp_path / "page.html"
    run("report", folder / "model.zarr", folder / "scene.zarr", page)
    assert "<h2>Map</h2>" in page.read_text(encoding="utf-8")
    labels = ("--labels", f"{folder}/labels.zarr:landcover")
    run("report", folder / "model.zarr", folder / "scene.nc", page, *labels, "--overwrite")
    text = page.read_text(encoding="utf-8")
    model = load_model(folder / "model.zarr")
    assert f"{model.score(scene(), labels_of('codes')[0]):.4g}" in text[text.index("Accuracy") :][:100]
    assert str(folder) not in text, "no path of a scratch folder"
    for arguments in ((folder / "scene.zarr", page, "--label", "y"), (folder / "points.csv", page, *labels)):
        refused = run("report", folder / "model.zarr", *arguments, "--overwrite", status=2)
        assert "are for" in refused.output
