"""Fits, checkpoints, predictions and sources in an object store: the same bits as on disk."""

import gzip
import json
import os
from collections.abc import Iterator

import dask
import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from distributed import Client

from dask_odm import InputError, ObjectStoreError, ODMClassifier, Store, StoreError, ingest, load_model, open_store
from dask_odm.cli import main
from dask_odm.data.store.records import read_record
from dask_odm.events import IterationFinished
from object_server import BUCKET, KEY, SECRET, ObjectServer
from small_stores import store_of
from stopping import StoppedError, stop_at

RNG = np.random.default_rng(0)
X = RNG.standard_normal((600, 5)).astype("float32")
Y = np.where(X[:, 0] + 0.3 * RNG.standard_normal(600) > 0, "yes", "no")
pytestmark = pytest.mark.filterwarnings("ignore:The solver stopped at a relative gap")
STEPS = {"kernel": "linear", "solver": "svrg", "max_iter": 6, "tol": 1e-300, "random_state": 0, "scale": None}


@pytest.fixture(scope="module", autouse=True)
def server(object_server: ObjectServer) -> ObjectServer:
    return object_server


@pytest.fixture(scope="module")
def client(server: ObjectServer, start_workers) -> Iterator[Client]:
    """Workers that reach the server: they may be forked off a process that began before its settings were there."""

    def take_over(settings: dict[str, str]) -> None:
        os.environ.update(settings)
        dask.config.set({"dask_odm.object-store-patience": "2s"})

    with start_workers(2) as client:
        client.run(take_over, server.environment)
        yield client


def put_store(place: str) -> Store:
    return store_of(f"{place}/train.zarr", X, Y)  # type: ignore[arg-type]


def same(one: ODMClassifier, other: ODMClassifier) -> bool:
    return one.coef_.tobytes() == other.coef_.tobytes() and one.intercept_.tobytes() == other.intercept_.tobytes()


def test_a_fit_has_the_bits_of_one_on_disk_and_its_model_goes_to_the_store(place, server, tmp_path):
    local = ODMClassifier(kernel="linear").fit(store_of(tmp_path / "a.zarr", X, Y).path)
    put_store(place)
    remote = ODMClassifier(kernel="linear").fit(open_store(f"{place}/train.zarr"))
    assert same(remote, local)
    remote.save(f"{place}/model.zarr")
    with pytest.raises(InputError, match="exists; pass overwrite=True"):
        remote.save(f"{place}/model.zarr")
    remote.save(f"{place}/model.zarr", overwrite=True)
    loaded = load_model(f"{place}/model.zarr")
    assert same(loaded, local)
    assert loaded.score(f"{place}/train.zarr") == local.score(X, Y)
    loaded.save(tmp_path / "model.zarr")
    assert same(load_model(tmp_path / "model.zarr"), local)
    stored = b"".join(server.get(key) for key in server.keys(place.removeprefix(f"s3://{BUCKET}/")))
    assert not [secret for secret in (KEY, SECRET) if secret.encode() in stored]


def test_workers_read_it(place, client, tmp_path):
    local = store_of(tmp_path / "a.zarr", X, Y, chunk_rows=50)
    remote = store_of(f"{place}/a.zarr", X, Y, chunk_rows=50)  # type: ignore[arg-type]
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        fits = [ODMClassifier(kernel="linear").fit(store.path) for store in (local, remote)]
    assert same(*fits)
    np.testing.assert_array_equal(fits[0].predict(remote.path).compute(), fits[0].predict(X))


def test_a_fit_goes_on_from_its_checkpoint(place, server, tmp_path):
    put_store(place)
    whole = ODMClassifier(**STEPS).fit(store_of(tmp_path / "a.zarr", X, Y).path)
    asked = {**STEPS, "checkpoint": f"{place}/fit.zarr"}
    with pytest.raises(StoppedError):
        ODMClassifier(**asked, callbacks=[stop_at(3, IterationFinished)]).fit(f"{place}/train.zarr")
    assert 1 < len(read_record(f"{place}/fit.zarr", "checkpoint").attributes["history"]) < 6
    server.fail("status", status=500, match="PUT .*current", times=2)
    resumed = ODMClassifier(**asked, resume=True).fit(f"{place}/train.zarr")
    assert same(resumed, whole)
    with pytest.raises(StoreError, match="is of another fit"):
        ODMClassifier(**asked | {"lam": 7.0}, resume=True).fit(f"{place}/train.zarr")


def test_of_two_fits_with_one_checkpoint_one_ends(place):
    put_store(place)
    asked = {**STEPS, "checkpoint": f"{place}/fit.zarr"}

    def meddle(event: object) -> None:
        """Write it as a process elsewhere would, that knows nothing of what this one claims."""
        if isinstance(event, IterationFinished) and event.iteration == 2:
            from dask_odm.data.storage import objects
            from dask_odm.learning.training.checkpoints import save_checkpoint

            claims = dict(objects._CLAIMED)
            objects._CLAIMED.clear()
            save_checkpoint(f"{place}/fit.zarr", {"w": np.zeros((1, 2))}, {})
            objects._CLAIMED.update(claims)

    with pytest.raises(StoreError, match="was written by another process meanwhile"):
        ODMClassifier(**asked, callbacks=[meddle]).fit(f"{place}/train.zarr")
    assert list(read_record(f"{place}/fit.zarr", "checkpoint").arrays) == ["w"], "what the other wrote stays"


def test_a_store_that_goes_away_in_mid_fit_is_one_error(place, server, client):
    put_store(place)
    fitted = ODMClassifier(kernel="linear", callbacks=[lambda event: server.fail("status", status=503)])
    with (
        dask.config.set({"dask_odm.read-into-memory": 0}),
        pytest.raises(ObjectStoreError, match=r"answers 503 .*tried for 2 s.*run this again"),
    ):
        fitted.fit(f"{place}/train.zarr")
    assert not hasattr(fitted, "coef_")


# Sources -------------------------------------------------------------------------------------------------------


def test_files_are_ingested_where_they_are(place, server, tmp_path):
    frame = pd.DataFrame(X.astype("float64"), columns=list("abcde")).assign(kind=Y)
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=100)
    lines = (f"{int(label == 'yes')} " + " ".join(f"{i + 1}:{x}" for i, x in enumerate(row))
             for row, label in zip(X, Y, strict=True))  # fmt: skip
    (tmp_path / "rows.libsvm").write_text("\n".join(lines))
    for path in sorted(tmp_path.iterdir()):
        server.put(f"{place.removeprefix(f's3://{BUCKET}/')}/{path.name}", path.read_bytes())
        label = {} if path.suffix == ".libsvm" else {"label": "kind"}
        local = ingest(path, tmp_path / "out.zarr", overwrite=True, **label)
        remote = ingest(f"{place}/{path.name}", f"{place}-out.zarr", overwrite=True, **label)
        assert (remote.rows, remote.classes, remote.feature_names) == (local.rows, local.classes, local.feature_names)
        np.testing.assert_array_equal(remote.read(0).X, local.read(0).X)
        assert remote.source == f"{place}/{path.name}"


def test_several_objects_are_a_folder(place, server):
    name = place.removeprefix(f"s3://{BUCKET}/")
    for i in (10, 2, 1):
        server.put(f"{name}/part-{i}.csv", b"a,y\n" + b"%d,%d\n" % (i, i % 2))
    server.put(f"{name}/_SUCCESS", b"x")
    assert ingest(place, f"{place}-out.zarr", label="y").read(0).X.ravel().tolist() == [1, 2, 10]
    for source, said in (
        (f"{place}/none.csv", "there is no such object"),
        (f"{place}/part-*.csv", "patterns are of this machine's files only"),
        (f"{place}/a.npy", "there is no such object"),
        ("https://example.com/a.csv", "cannot be read or written"),
    ):
        with pytest.raises(InputError, match=said):
            ingest(source, f"{place}-other.zarr")
    server.put(f"{name}/rows.npy", b"\x93NUMPY")
    with pytest.raises(InputError, match="from this machine only"):
        ingest(f"{place}/rows.npy", f"{place}-other.zarr")


def test_columns_in_names_of_objects(place, server):
    name = place.removeprefix(f"s3://{BUCKET}/")
    for day in (10, 9):
        for kind in ("no%20way", "yes"):
            server.put(f"{name}/data/day={day}/kind={kind}/part-0.csv", b"a,b\n1,%d\n" % day)
    server.put(f"{name}/data/other/rows.csv", b"no data")
    store = ingest(f"{place}/data", f"{place}-out.zarr", label="kind")
    assert store.feature_names == ("a", "b", "day")
    assert store.classes == ("no way", "yes")
    assert store.read(0).X.tolist() == [[1, 9, 9], [1, 9, 9], [1, 10, 10], [1, 10, 10]]


# The command line ----------------------------------------------------------------------------------------------


def run(*words: str, status: int = 0) -> dict:
    done = CliRunner().invoke(main, [*words, "--json"])
    assert done.exit_code == status, done.stderr
    assert not [secret for secret in (KEY, SECRET) if secret in done.output + done.stderr]
    return json.loads(done.stdout) if status == 0 else {"error": done.stderr}


def test_commands_take_addresses(place, server, tmp_path):
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(f"{a:.3f},{b:.3f},{int(a > 0)}\n" for a, b in X[:200, :2]))
    train, model, out = (f"{place}/{name}.zarr" for name in ("train", "model", "out"))
    assert (
        run("ingest", str(tmp_path / "rows.csv"), train, "--label", "y", "--test-size", "0.25")["store"]["rows"] == 150
    )
    assert run("info", f"{place}/train-test.zarr")["rows"] == 50
    assert run("verify", train)["bytes"] > 0
    fitted = run("fit", train, model, "--kernel", "linear", "--solver", "svrg", "--checkpoint", f"{place}/fit.zarr")
    assert fitted["path"] == model
    assert run("info", model)["kind"] == "model"
    assert run("predict", model, train, out)["path"] == out
    assert read_record(out, "prediction").array("y").shape == (150,)
    assert f"{tmp_path}/none.zarr" in run("evaluate", model, f"file://{tmp_path}/none.zarr", status=2)["error"]
    server.put(f"{place.removeprefix(f's3://{BUCKET}/')}/rows.csv", (tmp_path / "rows.csv").read_bytes())
    assert run("evaluate", model, f"{place}/rows.csv")["accuracy"] > 0.9
    assert run("evaluate", model, f"{place}/train-test.zarr")["accuracy"] > 0.9
    assert "in that format only" in run("predict", model, train, f"{place}/o.csv", status=2)["error"]
    assert "exists; pass --overwrite" in run("predict", model, train, out, status=2)["error"]
    server.fail("status", status=403)
    assert "refuses access (403" in run("info", train, status=2)["error"]
