"""The public names: each is listed, found, and typed the way it is loaded."""

import ast
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

import dask_odm
from dask_odm.estimators.registry import ESTIMATORS


def test_every_public_name_is_listed_and_has_a_home() -> None:
    own = {name for name, entry in ESTIMATORS.items() if entry.module.startswith("dask_odm.")}  # no user's
    assert set(dask_odm.__all__) >= own | {"ingest", "open_store", "Store", "datasets", "solvers", "__version__"}
    assert dir(dask_odm) == sorted(dask_odm.__all__)


def test_type_checkers_see_the_same_homes() -> None:
    tree = ast.parse(Path(dask_odm.__file__).with_suffix(".pyi").read_text("utf-8"))
    found = [(node.module, each) for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names]
    assert {each.name: module for module, each in found} == dask_odm._HOME
    assert all(each.asname == each.name for _, each in found), "exported"


@pytest.mark.parametrize("name", sorted(dask_odm._HOME))
def test_public_name_resolves(name: str) -> None:
    value = getattr(dask_odm, name)
    if dask_odm._HOME[name] == "dask_odm":
        assert value is sys.modules[f"dask_odm.{name}"]
        return
    assert callable(value)
    assert value.__module__ == dask_odm._HOME[name]


def test_version_is_the_installed_one() -> None:
    try:
        installed = version("dask-odm")
    except ImportError:
        pytest.skip("dask-odm is not installed")
    assert dask_odm.__version__ == installed


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dask_odm' has no attribute 'ODMTransformer'"):
        _ = dask_odm.ODMTransformer


def test_what_a_fit_may_never_need_is_loaded_when_it_is_asked_for() -> None:
    """Dask's cluster, Numba, zarr and xarray take longer to load than a small fit."""
    heavy = {"distributed", "numba", "xarray", "zarr", "dask.array", "pyarrow.parquet", "matplotlib", "tqdm"}
    code = (
        "import sys, dask_odm as odm, dask_odm.solvers as solvers\n"
        "print(*dir(solvers)); print('sklearn' in sys.modules)\n"
        "from dask_odm import ODMClassifier; from dask_odm.engine.client import active_client\n"
        f"assert active_client() is None; print(*sorted({heavy!r} & set(sys.modules)))\n"
        "print(*(getattr(solvers, name).__name__ for name in dir(solvers)))\n"
        "print(odm.datasets.make_susy.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = " ".join(sorted(dask_odm.solvers.__all__))
    assert done.stdout.splitlines() == [names, "False", "", names, "make_susy"]
