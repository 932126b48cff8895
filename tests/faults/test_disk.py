"""Outputs that exist, disks that are full, files that may not be touched."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dask
import numpy as np
import pytest

from cli.running import run
from dask_odm import ODMClassifier, Store, ingest, load_model
from dask_odm.solvers import SODM
from faults.table import fit_in, raises, refused, tree
from small_stores import store_of

SMALL = np.random.default_rng(0).normal(size=(40, 3))
LARGE = np.random.default_rng(0).normal(size=(3000, 40))
TREE = {"solver": SODM(4, fan_in=2, stop_at=4), "random_state": 0}
FLAGS = ("--solver", "sodm", "--n-partitions", 4, "--fan-in", 2, "--random-state", 0, "--stop-at", 4)
EXACT = {"solver": "exact", "gamma": 0.01, "lam": 10.0}
EXACT_FLAGS = ("--solver", "exact", "--gamma", 0.01, "--lam", 10.0)


def labels(X: np.ndarray) -> np.ndarray:
    return np.arange(len(X)) % 2


def make(folder: Path, X: np.ndarray) -> None:
    """A file of text, its store and a model."""
    np.savetxt(folder / "a.csv", np.column_stack([X, labels(X)]), fmt="%g", delimiter=",")
    store_of(folder / "s.zarr", X, labels(X))
    ODMClassifier(random_state=0).fit(X[:40], labels(X[:40])).save(folder / "m.zarr")


# Outputs that exist -----------------------------------------------------------------------------------------


def outputs(folder: Path, out: Path) -> list[tuple[object, ...]]:
    return [
        ("ingest", folder / "a.csv", out),
        ("fit", folder / "s.zarr", out),
        ("predict", folder / "m.zarr", folder / "s.zarr", out),
    ]


@pytest.mark.parametrize("command", [0, 1, 2], ids=["ingest", "fit", "predict"])
def test_an_output_that_exists_is_replaced_only_when_asked(command, tmp_path):
    make(tmp_path, SMALL)
    out = tmp_path / "out.zarr"
    arguments = outputs(tmp_path, out)[command]
    run(*arguments)
    before = tree(tmp_path)
    refused("Output that exists", *arguments)
    assert tree(tmp_path) == before
    run(*arguments, "--overwrite")
    out = tmp_path / "thesis.zarr"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    before = tree(tmp_path)
    refused("Output that is something else", *outputs(tmp_path, out)[command], "--overwrite")
    assert tree(tmp_path) == before
    refused("No folder for the output", *outputs(tmp_path, tmp_path / "no/x.zarr")[command])
    assert tree(tmp_path) == before


def test_an_output_that_exists_in_python(tmp_path):
    make(tmp_path, SMALL)
    model = load_model(tmp_path / "m.zarr")
    before = tree(tmp_path)
    raises("Output that exists", lambda: ingest(tmp_path / "a.csv", tmp_path / "s.zarr"))
    raises("Output that exists", lambda: model.save(tmp_path / "m.zarr"))
    raises("Output that is something else", lambda: model.save(tmp_path / "s.zarr", overwrite=True))
    raises("No folder for the output", lambda: model.save(tmp_path / "no" / "m.zarr"))
    assert tree(tmp_path) == before


# No space left ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("large")
    make(folder, LARGE)
    ODMClassifier(**TREE).fit(str(folder / "s.zarr")).save(folder / "large.zarr")
    return folder


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[None]:
    """Mount a file system of ``size`` over a folder, or skip."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None or not hasattr(os, "geteuid") or os.geteuid() != 0:
        pytest.skip("needs root on Linux, to mount a small tmpfs")
    done = subprocess.run([mount, "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run([umount, folder], check=True)


def grow(folder: Path) -> None:
    """Give the small disk the space that was missing."""
    subprocess.run([shutil.which("mount") or "mount", "-o", "remount,size=64m", folder], check=True)


def writers(large: Path, disk: Path) -> dict[str, tuple]:
    """What fills the disk: size of it, in Python, as a command."""
    store, model = large / "s.zarr", large / "large.zarr"
    return {
        "ingest": (
            "500k",
            lambda: ingest(large / "a.csv", disk / "x.zarr"),
            ("ingest", large / "a.csv", disk / "x.zarr"),
        ),
        "ingest, the end": (  # rows fit, labels do not
            "960k",
            lambda: ingest(large / "a.csv", disk / "x.zarr", dtype="float64"),
            ("ingest", large / "a.csv", disk / "x.zarr", "--dtype", "float64"),
        ),
        "shuffle": (
            "500k",
            lambda: fit_in(disk, ODMClassifier(**TREE), store),
            ("fit", store, large / "new.zarr", *FLAGS, "--scratch", disk),
        ),
        "strata": (
            "12k",
            lambda: fit_in(disk, ODMClassifier(**TREE), store),
            ("fit", store, large / "new.zarr", *FLAGS, "--scratch", disk),
        ),
        "rows": (
            "300k",
            lambda: fit_in(disk, ODMClassifier(**EXACT), store),
            ("fit", store, large / "new.zarr", *EXACT_FLAGS, "--scratch", disk),
        ),
        "checkpoint": (
            "16k",
            lambda: ODMClassifier(**TREE, checkpoint=disk / "c.zarr").fit(str(store)),
            ("fit", store, large / "new.zarr", *FLAGS, "--checkpoint", disk / "c.zarr"),
        ),
        "save": (
            "100k",
            lambda: load_model(model).save(disk / "m.zarr"),
            ("fit", store, disk / "m.zarr", *FLAGS),
        ),
        "predict": ("8k", None, ("predict", large / "m.zarr", store, disk / "p.zarr")),
        "predict, csv": ("8k", None, ("predict", large / "m.zarr", store, disk / "p.csv", "--decision-function")),
    }  # fmt: skip


@pytest.mark.parametrize("what", list(writers(Path(), Path())))
def test_no_space_left(what, large, tmp_path, monkeypatch):
    monkeypatch.setitem(dask.config.config, "dask_odm", {"read-into-memory": 0})
    shutil.rmtree(large / "new.zarr", ignore_errors=True)
    size, python, command = writers(large, tmp_path)[what]
    row = "No space left for scratch" if "--scratch" in command else "No space left"
    before = tree(large)
    with small_disk(tmp_path, size):
        if python is not None:
            raises(row, python)
            assert os.listdir(tmp_path) == []
        result = run(*command, status=2)
        refused(row, *command)
        assert "Traceback" not in result.stderr
        assert os.listdir(tmp_path) == []
        assert tree(large) == before
        grow(tmp_path)
        run(*command)


# No permission ----------------------------------------------------------------------------------------------


@contextmanager
def nobody() -> Iterator[None]:
    """Be a user whom permissions stop: root, whom they do not, becomes another for a while."""
    if not hasattr(os, "geteuid"):
        pytest.skip("needs POSIX permissions")
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that anybody can reach and write to, with a sound store, model and source."""
    folder = Path(tempfile.mkdtemp(prefix="dask-odm-test-"))
    try:
        make(folder, SMALL)
        folder.chmod(0o777)
        with nobody(), suppress(OSError):
            (folder / "probe").touch()
        if not (folder / "probe").exists():
            pytest.skip(f"others cannot reach {folder.parent}")
        (folder / "probe").unlink()
        (folder / "locked").mkdir()
        yield folder
    finally:
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700)
        shutil.rmtree(folder)


def lock(path: Path) -> int:
    mode = path.stat().st_mode
    path.chmod(0o555 if path.name == "locked" else 0)
    return mode


READS = {
    "source": ("a.csv", lambda f: ("ingest", f / "a.csv", f / "x.zarr")),
    "store": ("s.zarr", lambda f: ("fit", f / "s.zarr", f / "x.zarr")),
    "manifest": ("s.zarr/manifest.json", lambda f: ("verify", f / "s.zarr")),
    "array": ("s.zarr/X/c", lambda f: ("verify", f / "s.zarr")),
    "chunk": ("s.zarr/X/c/0/0", lambda f: ("fit", f / "s.zarr", f / "x.zarr")),
    "document": ("s.zarr/X/zarr.json", lambda f: ("info", f / "s.zarr")),
    "model": ("m.zarr", lambda f: ("predict", f / "m.zarr", f / "s.zarr", f / "p.csv")),
    "chunk of a model": ("m.zarr/intercept/c/0", lambda f: ("predict", f / "m.zarr", f / "s.zarr", f / "p.csv")),
    "ingest into": ("locked", lambda f: ("ingest", f / "a.csv", f / "locked/x.zarr")),
    "fit into": ("locked", lambda f: ("fit", f / "s.zarr", f / "locked/x.zarr")),
    "predict into": ("locked", lambda f: ("predict", f / "m.zarr", f / "s.zarr", f / "locked/p.csv")),
    "scratch in": ("locked", lambda f: ("fit", f / "s.zarr", f / "x.zarr", *FLAGS, "--scratch", f / "locked")),
}


@pytest.fixture(scope="module")
def all_loaded(tmp_path_factory) -> None:
    """Every command ran once: who gave up root's rights may not read Python's own library any more."""
    folder = tmp_path_factory.mktemp("loaded")
    make(folder, SMALL)
    (folder / "locked").mkdir()
    for _, command in READS.values():
        run(*command(folder))
        shutil.rmtree(folder / "x.zarr", ignore_errors=True)
        (folder / "p.csv").unlink(missing_ok=True)
        shutil.rmtree(folder / "locked")
        (folder / "locked").mkdir()


@pytest.mark.parametrize("what", READS)
@pytest.mark.usefixtures("all_loaded")
def test_no_permission(what, shared):
    name, command = READS[what]
    mode = lock(shared / name)
    before = sorted(os.listdir(shared))
    with nobody():
        refused("No permission", *command(shared))
    assert sorted(os.listdir(shared)) == before
    (shared / name).chmod(0o777 if name == "locked" else mode | 0o055)
    with nobody():
        run(*command(shared))


def test_no_permission_in_python(shared):
    lock(shared / "locked")
    mode = lock(shared / "s.zarr")
    model = load_model(shared / "m.zarr")
    with nobody():
        raises("No permission", lambda: Store.open(shared / "s.zarr"))
        raises("No permission", lambda: model.save(shared / "locked/m.zarr"))
        raises("No permission", lambda: ingest((SMALL, labels(SMALL)), shared / "locked/x.zarr"))
    (shared / "s.zarr").chmod(mode)
    assert os.listdir(shared / "locked") == []
