"""Stores, models and checkpoints that are missing, unfinished, damaged or lie: named, never used."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pytest
import xarray as xr
from scipy.sparse import csr_array

from cli.running import run
from dask_odm import MixingClassifier, ODMClassifier, Store, ingest, load_model, permutation_importance
from dask_odm.data.store import records
from dask_odm.data.store.writer import StoreWriter
from dask_odm.learning.training.checkpoints import sole_writer
from dask_odm.solvers import SODM
from faults.table import Fault, check_fault, each_way, fit_in, raises, refused, tree
from small_stores import forge

ROWS = 40
X = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
Y = np.arange(ROWS) % 2
TREE = {"solver": SODM(4, fan_in=2), "random_state": 0}
FLAGS = ("--solver", "sodm", "--n-partitions", 4, "--fan-in", 2, "--random-state", 0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> Path:
    """Folder of two stores, a model and a checkpoint, each array of several chunks."""
    folder = tmp_path_factory.mktemp("sound")
    for name, compression in (("plain", None), ("zstd", "zstd")):
        with StoreWriter(folder / f"{name}.zarr", chunk_rows=10, compression=compression) as writer:
            writer.append(X, Y, np.random.default_rng(1).uniform(size=ROWS))
            writer.finish()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "STORE_CHUNK_BYTES", 120)
        model = ODMClassifier(**TREE, checkpoint=folder / "checkpoint.zarr").fit(str(folder / "plain.zarr"))
        model.save(folder / "model.zarr")
    return folder


@pytest.fixture
def folder(sound, tmp_path) -> Path:
    """A copy that the test may damage."""
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    return tmp_path


def damage(path: Path, how: str) -> None:
    data = bytearray(path.read_bytes())
    if how == "Missing chunk":
        path.unlink()
    elif how == "Truncated chunk":
        path.write_bytes(data[:-5])
    elif how == "Link in place of a file":
        path.rename(path.parents[2] / "elsewhere")
        path.symlink_to(path.parents[2] / "elsewhere")
    else:
        data[len(data) // 2] ^= 8
        path.write_bytes(data)


HOWS = ["Missing chunk", "Truncated chunk", "Flipped bit", "Link in place of a file"]


# One chunk of one array -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["X", "weight"])
def test_swapped_chunks_of_a_store(folder, name):
    path = folder / "plain.zarr"
    layout = Store.open(path).layout.of_rows()[name]
    first, second = (path / layout.chunk_key(i) for i in (1, 2))
    first.rename(path / "between")
    second.rename(first)
    (path / "between").rename(second)
    assert f"chunk {layout.chunk_label(1)}" in str(raises("Swapped chunk", lambda: Store.open(path).read(1)))
    refused("Swapped chunk", "verify", path)
    refused("Swapped chunk", "fit", path, folder / "new.zarr")


def test_a_store_that_was_replaced(folder):
    path = folder / "plain.zarr"
    opened = Store.open(path)
    shutil.rmtree(path)
    shutil.copytree(folder / "zstd.zarr", path)
    raises("Store replaced in the meantime", lambda: opened.read(1))
    raises("Store replaced in the meantime", opened.verify)


@pytest.mark.parametrize("name", ["model", "checkpoint"])
def test_a_record_that_was_replaced(folder, name):
    path = folder / f"{name}.zarr"
    opened = records.read_record(path, name)
    records.write_record(path, name, {"other": X}, {}, overwrite=True)
    raises("Model or checkpoint replaced in the meantime", opened.verify)


def test_a_checkpoint_that_another_fit_writes(folder):
    path = folder / "checkpoint.zarr"
    command = ("fit", folder / "plain.zarr", folder / "new.zarr", *FLAGS, "--checkpoint", path, "--resume")
    with sole_writer(path):
        before = tree(folder)
        second = ODMClassifier(**TREE, checkpoint=path, resume=True)
        raises("Checkpoint of a running fit", lambda: second.fit(str(folder / "plain.zarr")))
        refused("Checkpoint of a running fit", *command)
        assert tree(folder) == before
    run(*command)


def test_what_a_shell_does_not_guess(folder, tmp_path):
    """A fit that would replace a checkpoint unasked, probabilities that there are none of, columns of what?"""
    command = ("fit", folder / "plain.zarr", folder / "new.zarr", *FLAGS, "--checkpoint", folder / "checkpoint.zarr")
    refused("Checkpoint that would be replaced", *command)
    refused("No probabilities", "predict", folder / "model.zarr", folder / "plain.zarr", tmp_path / "p.csv", "--proba")
    (tmp_path / "a.csv").write_text("a,b,c,label\n1,2,3,x\n2,1,3,y\n")
    run("ingest", tmp_path / "a.csv", tmp_path / "a.zarr")
    run("fit", tmp_path / "a.zarr", tmp_path / "m.zarr")
    (tmp_path / "a.csv").write_text("a,b,c,id,kind\n1,2,3,0,x\n2,1,3,1,y\n")
    refused("Columns that are no features", "evaluate", tmp_path / "m.zarr", tmp_path / "a.csv")


def test_real_targets_are_no_classes(tmp_path):
    with StoreWriter(tmp_path / "a.zarr") as writer:
        writer.append(X, np.linspace(0, 1, ROWS))
        writer.finish()
    raises("Real targets", lambda: ODMClassifier().fit(str(tmp_path / "a.zarr")))
    refused("Real targets", "fit", tmp_path / "a.zarr", tmp_path / "m.zarr")


@pytest.mark.parametrize(("how", "kind"), list(zip(HOWS, ["plain", "zstd", "zstd", "plain"], strict=True)))
def test_commands_on_a_damaged_store(folder, how, kind):
    path = folder / f"{kind}.zarr"
    commands = [
        ("fit", path, folder / "new.zarr", *FLAGS, "--scratch", folder),
        ("predict", folder / "model.zarr", path, folder / "p.csv"),
        ("predict", folder / "model.zarr", path, folder / "p.zarr"),
        ("evaluate", folder / "model.zarr", path),
    ]
    whole = (path / "X/c/1/0").read_bytes()
    damage(path / "X/c/1/0", how)
    before = tree(folder)
    assert "array 'X', chunk 1/0: " in str(raises(how, lambda: Store.open(path).verify()))
    for command in [("verify", path), *commands]:
        refused(how, *command)
    assert tree(folder) == before
    (path / "X/c/1/0").unlink(missing_ok=True)
    (path / "X/c/1/0").write_bytes(whole)
    for command in commands:
        run(*command)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("model", "support_vectors"), ("model", "coefficients"), ("checkpoint", "dual"), ("checkpoint", "figures")],
)
@pytest.mark.parametrize("how", HOWS)
def test_a_damaged_chunk_of_a_record(folder, how, kind, name):
    path, store, new = (folder / each for each in (f"{kind}.zarr", "plain.zarr", "new.zarr"))
    layout = records.read_record(path, kind).arrays[name]
    chunk = path / layout.chunk_key(layout.n_chunks - 1)
    whole = chunk.read_bytes()
    if kind == "model":
        command = ("predict", path, store, new)
    else:
        command = ("fit", store, new, *FLAGS, "--checkpoint", path, "--resume", "--scratch", folder)
    damage(chunk, how)
    before = tree(folder)
    resumed = ODMClassifier(**TREE, checkpoint=path, resume=True)
    error = raises(how, lambda: load_model(path) if kind == "model" else fit_in(folder, resumed, store))
    assert f"array '{name}', chunk {layout.chunk_label(layout.n_chunks - 1)}: " in str(error)
    refused(how, "verify", path)
    refused(how, *command)
    assert tree(folder) == before
    chunk.unlink(missing_ok=True)
    chunk.write_bytes(whole)
    run(*command)
    if kind == "checkpoint":
        found, expected = (load_model(folder / each).decision_function(X) for each in ("new.zarr", "model.zarr"))
        np.testing.assert_array_equal(found, expected)


# What is read, as a whole -----------------------------------------------------------------------------------


def of(name: str, spoil: Callable[[Path], Any], note: str = "") -> dict[str, Any]:
    """A store or model, spoilt; the cure is to put the sound one there."""
    reads = {
        "plain.zarr": (lambda f: Store.open(f / name).verify(), lambda f: ["info", f / name]),
        "model.zarr": (lambda f: load_model(f / name), lambda f: ["evaluate", f / name, f / "plain.zarr"]),
    }

    def cause(folder: Path) -> None:
        (folder / name).rename(folder / "aside")
        shutil.copytree(folder / "aside", folder / name)
        spoil(folder / name)

    def cure(folder: Path) -> None:
        shutil.rmtree(folder / name) if (folder / name).is_dir() else (folder / name).unlink(missing_ok=True)
        (folder / "aside").rename(folder / name)

    python, command = reads[name]
    return {"cause": cause, "cure": cure, "python": python, "command": command, "note": note or name.split(".")[0]}


def replace(other: str) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        shutil.rmtree(path)
        shutil.copytree(path.parent / other, path)

    return spoil


def a_file(path: Path) -> None:
    shutil.rmtree(path)
    path.write_text("1,2,3\n")


def of_another_program(path: Path) -> None:
    shutil.rmtree(path)
    xr.Dataset({"X": (("sample", "feature"), X), "y": ("sample", Y)}).to_zarr(path, zarr_format=3, consolidated=False)


def flip(key: str) -> Callable[[Path], None]:
    return lambda path: damage(path / key, "Flipped bit")


def version(manifest: Any) -> None:
    manifest.update(format_version=2)


def lies(part: str, **said: Any) -> Callable[[Path], None]:
    return lambda path: forge(path, lambda manifest: manifest[part].update(said))


FAULTS = [
    Fault("No such store", **of("plain.zarr", shutil.rmtree)),
    Fault("Unfinished store", **of("plain.zarr", lambda path: (path / "manifest.json").unlink())),
    Fault("A file, not a store", **of("plain.zarr", a_file)),
    Fault("zarr data of another program", **of("plain.zarr", of_another_program)),
    Fault(
        "Store, model or checkpoint mixed up",
        **of("plain.zarr", replace("checkpoint.zarr"))
        | {"command": lambda f: ["evaluate", f / "model.zarr", f / "plain.zarr"]},
    ),
    Fault("Store, model or checkpoint mixed up", **of("model.zarr", replace("zstd.zarr"))),
    Fault("Another format version", **of("plain.zarr", lambda path: forge(path, version))),
    Fault("Another format version", **of("model.zarr", lambda path: forge(path, version))),
    Fault("No such model", **of("model.zarr", shutil.rmtree)),
    Fault("Unfinished model", **of("model.zarr", lambda path: (path / "manifest.json").unlink())),
    Fault("Damaged document", **of("plain.zarr", flip("X/zarr.json"))),
    Fault("Damaged document", **of("plain.zarr", flip("zarr.json"), "group")),
    Fault("Damaged document", **of("model.zarr", flip("zarr.json"))),
    Fault("Damaged or false manifest", **of("plain.zarr", flip("manifest.json"))),
    Fault("Damaged or false manifest", **of("model.zarr", flip("manifest.json"))),
    Fault("Damaged or false manifest", **of("plain.zarr", lies("layout", rows=10**12), "rows")),
    Fault("Damaged or false manifest", **of("model.zarr", lies("arrays", x={"shape": [1]}), "array")),
]  # fmt: skip


@each_way(FAULTS)
def test_what_is_read(fault, way, folder):
    check_fault(fault, folder, way)


def test_a_checkpoint_of_another_fit(folder):
    before = tree(folder)
    flags = ("--checkpoint", folder / "checkpoint.zarr", "--resume", "--scratch", folder)
    command = ("fit", folder / "plain.zarr", folder / "new.zarr", *FLAGS, *flags)
    refused("Checkpoint of another fit", *command, "--lam", 3)
    assert tree(folder) == before
    run(*command)


def test_what_reads_a_prediction_is_said(folder):
    run("predict", folder / "model.zarr", folder / "plain.zarr", folder / "p.zarr")
    refused("Store, model or checkpoint mixed up", "info", folder / "p.zarr")
    assert "is a prediction, not a store" in run("info", folder / "p.zarr", status=2).stderr
    assert "sound" in run("verify", folder / "p.zarr").stdout
    damage(folder / "p.zarr/y/c/0", "Flipped bit")
    refused("Flipped bit", "verify", folder / "p.zarr")


def test_chunks_that_are_too_large(folder):
    source = folder / "plain.zarr"
    wide = (csr_array(np.ones((2, 2_000_000), np.float32)), [0, 1])
    raises("Chunks that are too large", lambda: ingest(wide, folder / "new.zarr", chunk_rows=2, sparse=True))
    refused("Chunks that are too large", "ingest", source, folder / "new.zarr", "--chunk-rows", 10_000_000)
    assert not (folder / "new.zarr").exists()
    run("ingest", source, folder / "new.zarr", "--chunk-rows", 100)


def test_what_a_sparse_store_is_not_for(folder):
    path = folder / "sparse.zarr"
    ingest((csr_array(X), Y), path, sparse=True)
    model = ODMClassifier("linear", random_state=0).fit(str(path))
    raises("Sparse store for importance", lambda: permutation_importance(model, str(path)))
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        raises("Sparse store that is too large", lambda: fit_in(folder, ODMClassifier(**TREE), path))
        refused("Sparse store that is too large", "fit", path, folder / "new.zarr", *FLAGS)
        mixing = MixingClassifier(scale="standard", n_shards=2)
        raises("Scaling that fills sparse rows", lambda: fit_in(folder, mixing, path))
    run("fit", path, folder / "new.zarr", *FLAGS)
