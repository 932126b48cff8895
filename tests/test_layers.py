"""What import-linter cannot say by its contracts in pyproject.toml: circles, what is loaded, undeclared libraries."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# What tasks import on a worker. dask.array and dask.dataframe load pandas and, where installed, xarray and pyarrow.
TASKS = (
    "typing", "errors", "events", "linalg", "kernels", "data.cubes.blocks", "data.storage", "data.store", "data.rows",
    "models", "engine", "learning.problem", "learning.distributed_products",
)  # fmt: skip
NOT_TASKS = "dask_odm.data.store.interchange"  # the store as an xarray Dataset
HEAVY = {"sklearn", "pandas", "xarray", "pyarrow", "matplotlib", "dask.array", "dask.dataframe"}


def sources() -> dict[str, ast.Module]:
    """The modules of dask_odm, parsed, by name."""
    found = {}
    for path in sorted((ROOT / "dask_odm").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(path.read_text("utf-8"))
    return found


MODULES = sources()


def imported(tree: ast.AST) -> Iterator[str]:
    """Dotted names that a module imports, at its top or inside functions, but for those of a type checker."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node)


def home(name: str) -> str | None:
    """The module of dask_odm that an import of ``name`` loads."""
    while name not in MODULES and "." in name:
        name = name.rpartition(".")[0]
    return name if name in MODULES else None


def loaded_by(*modules: str) -> set[str]:
    """Modules that a new process has after importing ``modules``."""
    code = "".join(f"import {name}\n" for name in modules) + "import sys; print(*sys.modules)"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def task_modules() -> list[str]:
    """The modules that tasks import."""
    named = [f"dask_odm.{name}" for name in TASKS]
    within = [m for m in MODULES if any(m == name or m.startswith(f"{name}.") for name in named)]
    workers = [m for m in MODULES if m.startswith(("dask_odm.methods.", "dask_odm.papers.")) and m.endswith("workers")]
    return [m for m in within + workers if m != NOT_TASKS]


def test_no_circle_of_imports() -> None:
    graph = {m: {home(name) for name in imported(tree)} - {m, None, "dask_odm"} for m, tree in MODULES.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_tasks_load_no_heavy_library() -> None:
    assert len(task_modules()) > 60
    assert loaded_by(*task_modules()) & HEAVY == set()


def test_importing_the_package_loads_nothing() -> None:
    heavy = {"sklearn", "pandas", "xarray", "dask", "distributed", "zarr", "numba", "scipy", "numpy"}
    assert loaded_by("dask_odm") & heavy == set()


def test_libraries_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    groups = (project["dependencies"], *project["optional-dependencies"].values())
    declared = {re.match(r"[\w.-]+", each)[0].replace("-", "_") for group in groups for each in group}
    libraries = {name.split(".")[0] for tree in MODULES.values() for name in imported(tree)}
    assert libraries - set(sys.stdlib_module_names) - declared - {"dask_odm", "sklearn"} == set()
    assert "scikit_learn" in declared


def test_rows_and_states_are_read_by_open_whole() -> None:
    """Python's own files take a read that the system puts off for their end (tests/data/storage/test_files.py)."""
    readers = (
        "data.readers",
        "data.rows",
        "data.store",
        "engine.futures",
        "engine.rounds",
        "engine.shuffle",
        "learning",
    )
    others = {"np.load", "np.fromfile", "np.memmap", "os.open", "os.read", "io.open"}
    for module, tree in MODULES.items():
        if module.startswith(tuple(f"dask_odm.{reader}" for reader in readers)):
            for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
                name, mode = ast.unparse(call.func), "".join(map(ast.unparse, call.args[1:2]))
                assert name not in others, module
                assert not name.endswith((".read_bytes", ".read_text")), module
                assert name != "open" or not call.args or "w" in mode, f"{module} reads by open: {ast.unparse(call)}"
