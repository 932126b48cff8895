"""Fixtures shared by all tests: real data where the machine has it, small made-up rows everywhere."""

import os

# NumPy and scikit-learn read them, here and in processes that tests start. Threads of BLAS and OpenMP spin while they
# wait, which takes more of the processors than small problems.
os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")

import gc
import lzma
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import dask
import hypothesis
import numpy as np
import pytest

from clusters import client, killer, scale_workers, start_workers, without_workers  # noqa: F401
from object_server import object_server, place, started_server  # noqa: F401
from quick_workers import quick_settings
from small_problems import blobs

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as shells have it for what they start in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)

# An example that compiles or waits for a busy machine is no failure; what hangs is ended from outside.
hypothesis.settings.register_profile("dask_odm", deadline=None)
hypothesis.settings.load_profile("dask_odm")

# Published feature counts: some files do not reach their last index.
N_FEATURES = {
    "a7a.test": 123,
    "a7a.train": 123,
    "cadata": 8,
    "cod-rna": 8,
    "covtype": 54,
    "cpusmall": 12,
    "ijcnn1.test": 22,
    "ijcnn1.train": 22,
    "iris": 4,
    "madelon.test": 500,
    "madelon.train": 500,
    "mushrooms": 112,
    "phishing": 68,
    "skin-nonskin": 3,
    "susy_sub30k": 18,
    "svmguide1.test": 4,
    "svmguide1.train": 4,
}

Rows = tuple[np.ndarray, np.ndarray]


LONG_FOLDERS = {"benchmarks", "faults", "helm"}  # nothing of them is about learning
LONG_FILES = {"test_demo.py", "test_examples.py", "test_objects.py", "test_object_stores.py"}
# Of a minute and more. All of a file is one process's, so that the others would wait for one that begins late.
BEGIN = ["test_memory.py", "test_site.py", "test_examples.py", "test_running.py", "test_pages.py", "test_clusters.py"]
BEGIN += ["test_scikit_learn.py", "test_inputs.py", "test_cluster.py", "test_faults.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is not about learning as slow; begin with the longest files."""
    items.sort(key=lambda item: BEGIN.index(item.path.name) if item.path.name in BEGIN else len(BEGIN))
    for item in items:
        if item.path.parent.name in LONG_FOLDERS or item.path.name in LONG_FILES:
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Collections of garbage need not look at what lives until the end: modules and thousands of tests."""
    gc.freeze()


@pytest.fixture
def over_passes() -> Iterator[None]:
    """No store is small enough to be read into memory."""
    with dask.config.set({"dask_odm.read-into-memory": 0}):
        yield


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """Do not wait for the disk in this process: only a power cut would show whether data got there.

    A fifth of the time of what writes stores is such waits. Processes that tests start do wait.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which, too, refuses what is no open file
        yield


@pytest.fixture
def quick_workers() -> Iterator[None]:
    """Workers start as `quick_settings` has it."""
    with dask.config.set(quick_settings()):
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder of real data sets that DASK_ODM_DATA names; skips the test where there is none."""
    named = os.environ.get("DASK_ODM_DATA")
    if not named:
        pytest.skip("DASK_ODM_DATA names no folder of data sets")
    folder = Path(named)
    if not folder.is_dir():
        pytest.fail(f"DASK_ODM_DATA names {folder}, which is no folder")
    return folder


@pytest.fixture(scope="session")
def load_svm(data_dir: Path) -> Callable[[str], Rows]:
    """``load_svm(name)``: dense float64 rows and labels of ``name.svm.xz``, as written in the file."""
    from sklearn.datasets import load_svmlight_file

    def load(name: str) -> Rows:
        path = data_dir / f"{name}.svm.xz"
        if not path.exists():
            pytest.skip(f"{data_dir} has no {path.name}")
        with lzma.open(path) as stream:
            X, y = load_svmlight_file(stream, n_features=N_FEATURES[name])
        return X.toarray(), y

    return load


@pytest.fixture(scope="session")
def make_rings() -> Callable[..., Rows]:
    """``make_rings(n, seed)``: a disc inside a ring in the plane, which no linear model separates."""

    def make(n: int = 200, seed: int = 0, *, noise: float = 0.1, dtype: str = "float64") -> Rows:
        rng = np.random.default_rng(seed)
        y = rng.permutation(np.where(np.arange(n) % 2, 1.0, -1.0))
        radius = np.where(y > 0, 0.4, 1.0) + noise * rng.standard_normal(n)
        angle = rng.uniform(0.0, 2.0 * np.pi, n)
        return (radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])).astype(dtype), y

    return make


@pytest.fixture(scope="session")
def rows() -> tuple[np.ndarray, np.ndarray]:
    """Ninety rows of three features and labels ±1, read-only."""
    X, y = blobs(90, 3, seed=5)
    X.flags.writeable = y.flags.writeable = False
    return X, y
