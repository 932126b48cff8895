"""Who may import whom: reads the imports of every module of dask_odm and holds them to the project's rules.

The rules are functions of ``{module name: source}``, so the last tests feed them small forbidden sources and
see them complain: a checker that cannot fail is worse than none.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

PACKAGE = Path(__file__).parent.parent / "dask_odm"

# typing, errors, events, jit → kernels | data → problems → solvers | partition → models → persistence → engine →
# strategies → estimators → diagnostics → cli. Side by side means never each other; problems and solvers see no data
# (rule 1).
BASE = {"typing", "errors", "events", "jit"}
MAY_IMPORT: dict[str, set[str]] = {"typing": set(), "errors": set(), "events": set(), "jit": {"typing"}}
MAY_IMPORT |= {"kernels": BASE, "data": BASE}
MAY_IMPORT["datasets"] = BASE | {"data"}  # the public face of the built-in data
MAY_IMPORT["problems"] = BASE | {"kernels"}
MAY_IMPORT["solvers"] = MAY_IMPORT["problems"] | {"problems"}
MAY_IMPORT["partition"] = BASE | {"kernels", "data", "problems"}
MAY_IMPORT["models"] = MAY_IMPORT["solvers"] | MAY_IMPORT["partition"] | {"solvers", "partition"}
MAY_IMPORT["persistence"] = MAY_IMPORT["models"] | {"models"}
MAY_IMPORT["engine"] = MAY_IMPORT["persistence"] | {"persistence"}
MAY_IMPORT["strategies"] = MAY_IMPORT["engine"] | {"engine"}
MAY_IMPORT["estimators"] = MAY_IMPORT["strategies"] | {"strategies"}
MAY_IMPORT["diagnostics"] = MAY_IMPORT["estimators"] | {"estimators"}
MAY_IMPORT["demo"] = MAY_IMPORT["diagnostics"] | {"diagnostics", "datasets", ""}  # "": dask_odm itself
MAY_IMPORT["cli_options"] = MAY_IMPORT["diagnostics"] | {"cli_words"}
MAY_IMPORT["cli_output"] = BASE | {"diagnostics"}
MAY_IMPORT["cli_bench"] = MAY_IMPORT["cli_options"] | {"diagnostics", "cli_output"}
MAY_IMPORT["cli_cluster"] = BASE | {"engine", "diagnostics", "cli_output"}
MAY_IMPORT["warmup"] = MAY_IMPORT["estimators"] | {"estimators"}
MAY_IMPORT["cli_words"] = set()
MAY_IMPORT["cli_rows"] = BASE | {"data", "estimators"}
MAY_IMPORT["cli_resume"] = BASE | {"data", "persistence"}
MAY_IMPORT["cli_group"] = BASE | {"cli_words", "estimators"}
_PARTS = {f"cli_{part}" for part in ("bench", "cluster", "group", "options", "output", "resume", "rows", "words")}
MAY_IMPORT["cli"] = MAY_IMPORT["demo"] | {"demo", "warmup"} | _PARTS
REGISTRY = "dask_odm.estimators.registry"  # names and homes of estimators and solver objects
PUBLIC = ("dask_odm", "dask_odm.solvers")  # public faces, which may import it

SHARED_BY_FAMILIES = ("base", "registry", "inputs", "fitting")
MAY_REPEAT = {"base", "store", "odm", "datasets"}  # the base of a package, and a module named as its package is
MAY_REPEAT |= {"solver_objects", "SVRG", "Newton"}  # what all families have, and objects named as their algorithm is
NUMERIC_UNITS = {"kernels", "problems", "solvers"}
NUMERIC_LIBRARIES = {"numpy", "scipy", "numba", "llvmlite", "threadpoolctl"}

LEAN = (
    "dask_odm.typing",
    "dask_odm.errors",
    "dask_odm.events",
    "dask_odm.linalg.jit",
    "dask_odm.data.store",
    "dask_odm.data.rows",
    "dask_odm.kernels",
    "dask_odm.problems",
    "dask_odm.solvers",
    "dask_odm.partition",
    "dask_odm.models",
    "dask_odm.learning.solution_records",
    "dask_odm.engine",
    "dask_odm.strategies",
)
NOT_LEAN = ("dask_odm.data.store.interchange",)  # the store's face to xarray
# dask.array and dask.dataframe load pandas and, where installed, xarray and pyarrow.
HEAVY = ("sklearn", "pandas", "xarray", "pyarrow", "dask.array", "dask.dataframe", "matplotlib")
CLIENTS = ("distributed", "dask.distributed")
CLIENT_MODULES = ("dask_odm.engine.cluster", "dask_odm.engine.watch")
# Libraries that talk to a person, and the parts that may.
FACES = {
    "click": {"cli", "cli_bench", "cli_cluster", "cli_group", "cli_options", "cli_output", "cli_rows", "cli_words"},
    "tqdm": {"cli", "diagnostics"},
    "matplotlib": {"cli", "diagnostics"},
}


@dataclass(frozen=True)
class Import:
    """One imported name, dotted from the top (``from a import b`` is ``a.b``)."""

    target: str
    line: int
    type_only: bool


def is_within(target: str, *modules: str) -> bool:
    """Whether ``target`` is one of ``modules`` or lies inside one."""
    return any(target == module or target.startswith(module + ".") for module in modules)


def unit(module: str) -> str:
    """The part of the package a module belongs to: ``kernels`` for ``dask_odm.kernels.base``."""
    return module.split(".")[1] if "." in module else ""


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


def _nodes(tree: ast.AST, type_only: bool = False) -> Iterator[tuple[ast.AST, bool]]:
    """Every node below ``tree`` and whether only a type checker runs it."""
    for child in ast.iter_child_nodes(tree):
        inside = type_only or (_is_type_checking(tree) and child in getattr(tree, "body", ()))
        yield child, inside
        yield from _nodes(child, inside)


def _targets(node: ast.AST, package: str) -> list[str]:
    """The dotted names that a node imports, if it is an import."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        parents = package.split(".")
        base = ".".join(parents[: len(parents) - node.level + 1]) if node.level else ""
        prefix = ".".join(part for part in (base, node.module) if part)
        return [f"{prefix}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
        return [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
    return []


def imports_of(module: str, sources: Mapping[str, str]) -> list[Import]:
    """All imports of a module, at its top or inside a function."""
    is_package = any(other.startswith(module + ".") for other in sources)
    return _imports_in(sources[module], module if is_package else module.rpartition(".")[0])


@cache
def _imports_in(source: str, package: str) -> list[Import]:
    return [
        Import(target, getattr(node, "lineno", 0), type_only)
        for node, type_only in _nodes(parsed(source))
        for target in _targets(node, package)
    ]


@cache
def parsed(source: str) -> ast.Module:
    """The syntax tree of a source, which many rules ask for."""
    return ast.parse(source)


def home(target: str, sources: Mapping[str, str]) -> str:
    """The module of dask_odm that an internal import loads: ``dask_odm.errors`` for ``dask_odm.errors.InputError``."""
    while target not in sources and "." in target:
        target = target.rpartition(".")[0]
    return target


def layer_violations(sources: Mapping[str, str]) -> list[str]:
    """Imports against the order of the layers, or of one strategy or family by another (rule 2)."""
    found = []
    for module in sources:
        for each in imports_of(module, sources):
            if not is_within(each.target, "dask_odm") or each.target == "dask_odm.__version__":
                continue
            mine, theirs = unit(module), unit(each.target) if each.target.count(".") else ""
            if (mine == "" and each.type_only) or (module in PUBLIC and is_within(each.target, REGISTRY)):
                continue
            if home(each.target, sources) == "dask_odm" and theirs not in MAY_IMPORT:
                theirs = ""  # a name of the public face, not a module
            if mine != theirs and theirs not in MAY_IMPORT.get(mine, set()):
                found.append(f"{module}, line {each.line}: {mine or 'dask_odm'} may not import {each.target}")
            if mine == theirs == "strategies" and not is_within(each.target, module):
                found.append(f"{module}, line {each.line}: a strategy may not import another, {each.target}")
            if mine == theirs == "estimators" and not {family(module), family(each.target), ""} >= {
                family(module),
                family(each.target),
            }:
                found.append(f"{module}, line {each.line}: a family may not import another, {each.target}")
    return found


def family(target: str) -> str:
    """The family that a name of `dask_odm.estimators` belongs to, or "" where all share it."""
    parts = target.split(".")
    return "" if len(parts) < 4 or parts[2] in SHARED_BY_FAMILIES else parts[2]


def cycles(sources: Mapping[str, str]) -> list[str]:
    """Circles of imports, at the top or inside functions; a type checker's do not count."""
    following = {
        module: sorted({home(i.target, sources) for i in imports_of(module, sources) if not i.type_only} - {module})
        for module in sources
    }
    found, done = [], set()
    for start in sources:
        way: list[str] = []

        def visit(module: str, way: list[str] = way) -> None:
            if module in way:
                found.append(" → ".join([*way[way.index(module) :], module]))
            if module in way or module in done or module not in following or module == "dask_odm":
                return
            way.append(module)
            for each in following[module]:
                visit(each)
            done.add(way.pop())

        visit(start)
    return found


def shared_names(sources: Mapping[str, str]) -> list[str]:
    """Modules, and classes, that have the name of another."""
    names: dict[str, list[str]] = {}
    for module, source in sources.items():
        names.setdefault(module.rpartition(".")[2], []).append(module)
        for node in parsed(source).body:
            if isinstance(node, ast.ClassDef):
                names.setdefault(node.name, []).append(f"{module}.{node.name}")
    return [" and ".join(homes) for name, homes in names.items() if len(homes) > 1 and name not in MAY_REPEAT]


def library_violations(sources: Mapping[str, str]) -> list[str]:
    """Libraries where they do not belong: rule 1, the Client, and what talks to a person."""
    found = []
    for module in sources:
        for each in imports_of(module, sources):
            top, mine = each.target.split(".")[0], unit(module)
            external = top not in sys.stdlib_module_names and top != "dask_odm"
            if mine in NUMERIC_UNITS and external and top not in NUMERIC_LIBRARIES:
                found.append(f"{module}, line {each.line}: {mine} may not import {each.target}")
            if is_within(each.target, *CLIENTS) and module not in CLIENT_MODULES:
                found.append(
                    f"{module}, line {each.line}: only {' and '.join(CLIENT_MODULES)} meet a Client, not {each.target}"
                )
            if mine not in FACES.get(top, {mine}):
                found.append(f"{module}, line {each.line}: {each.target} belongs to {' and '.join(sorted(FACES[top]))}")
            light = each.type_only or top in sys.stdlib_module_names or is_within(each.target, REGISTRY)
            if mine == "" and not light:
                found.append(f"{module}, line {each.line}: import dask_odm must load nothing, not {each.target}")
    return found


def undeclared_libraries(sources: Mapping[str, str], project: Mapping[str, Any]) -> list[str]:
    """Libraries that are imported at all but not among the dependencies or extras of pyproject.toml."""
    extras = project.get("optional-dependencies", {}).values()
    declared = {re.match(r"[\w.-]+", d)[0] for group in (project["dependencies"], *extras) for d in group}
    imported = {each.target.split(".")[0] for module in sources for each in imports_of(module, sources)}
    external = imported - set(sys.stdlib_module_names) - {"dask_odm"}
    return sorted(external - {"sklearn" if d == "scikit-learn" else d.replace("-", "_") for d in declared})


def print_violations(sources: Mapping[str, str]) -> list[str]:
    """Calls of print outside the command line (rule 4)."""
    return [
        f"{module}, line {node.lineno}: report(event) or a logger, not print"
        for module, source in sources.items()
        for node in ast.walk(parsed(source))
        if unit(module) != "cli" and isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]


def lean_modules(sources: Mapping[str, str]) -> list[str]:
    """The modules a worker may import, other than the packages' own files above them."""
    return sorted(m for m in sources if is_within(m, *LEAN) and not is_within(m, *NOT_LEAN))


def lean_violations(sources: Mapping[str, str]) -> list[str]:
    """Heavy libraries that a lean module imports, itself or through others (rule 7)."""
    found = []
    for start in lean_modules(sources):
        ways: dict[str, str] = {start: start}
        queue = [start]
        while queue:
            module = queue.pop()
            parents = [Import(p, 0, False) for p in _parents(module) if p in sources]
            for each in imports_of(module, sources) + parents:
                if each.type_only:
                    continue
                if is_within(each.target, *HEAVY):
                    found.append(f"{ways[module]}, line {each.line}: a lean worker must not import {each.target}")
                following = home(each.target, sources)
                if following in sources and following not in ways:
                    ways[following] = f"{ways[module]} → {following}"
                    queue.append(following)
    return found


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts))]


def read_package() -> dict[str, str]:
    """The sources of dask_odm by module name."""
    sources = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        sources[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path.read_text("utf-8")
    return sources


SOURCES = read_package()


def _modules_loaded_by(*imports: str) -> set[str]:
    code = "".join(f"import {name}\n" for name in imports) + "import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_layers_import_only_what_lies_below_them() -> None:
    assert layer_violations(SOURCES) == []


def test_no_circle_of_imports() -> None:
    assert cycles(SOURCES) == []


def test_modules_and_classes_have_names_of_their_own() -> None:
    assert shared_names(SOURCES) == []


def test_every_name_of_the_rules_exists() -> None:
    named = {REGISTRY, *LEAN, *NOT_LEAN, *CLIENT_MODULES, *(f"dask_odm.{part}" for part in MAY_IMPORT if part)}
    assert named - set(SOURCES) == set()


def test_libraries_stay_where_they_belong() -> None:
    assert library_violations(SOURCES) == []


def test_libraries_are_declared() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    assert undeclared_libraries(SOURCES, project) == []


def test_algorithms_do_not_print() -> None:
    assert print_violations(SOURCES) == []


def test_lean_modules_name_no_heavy_library() -> None:
    assert lean_violations(SOURCES) == []


def test_lean_modules_load_no_heavy_library() -> None:
    loaded = _modules_loaded_by(*lean_modules(SOURCES))
    assert loaded & {"sklearn", "pandas", "xarray", "pyarrow", "matplotlib"} == set()


def test_importing_the_package_loads_nothing() -> None:
    heavy = {"sklearn", "pandas", "xarray", "dask", "distributed", "zarr", "numba", "scipy", "numpy"}
    assert _modules_loaded_by("dask_odm") & heavy == set()


@pytest.mark.parametrize("module", SOURCES)
def test_module_opens_with_what_it_is_for(module: str) -> None:
    assert ast.get_docstring(parsed(SOURCES[module])), f"{module} has no docstring"


FORBIDDEN_LAYERS = [
    ("dask_odm.kernels.base", "from dask_odm.learning.problem.odm import ODM"),
    ("dask_odm.kernels.base", "from dask_odm.data import store"),
    ("dask_odm.data.ingest", "import dask_odm.kernels.base"),
    ("dask_odm.learning.problem.odm", "from ..data.store import Store"),
    ("dask_odm.methods.exact.dual_cd", "def f():\n    from dask_odm.partition import strata"),
    ("dask_odm.engine.partition.strata", "from dask_odm.learning.solution import Solution"),
    ("dask_odm.methods.tree.workers", "from dask_odm.estimators import odm"),
    ("dask_odm.methods.tree.workers", "from dask_odm.methods.svrg.workers import run"),
    ("dask_odm.methods.tree.workers", "from . import ring"),
    ("dask_odm.engine.cluster", "from dask_odm.methods.tree.workers import run"),
    ("dask_odm.estimators.odm_classifier", "from dask_odm import open_store"),
    (
        "dask_odm.estimators.odm_classifier",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import dask_odm.cli",
    ),
    ("dask_odm.errors", "import importlib\nimportlib.import_module('dask_odm.events')"),
    ("dask_odm", "from dask_odm.estimators.odm_classifier import ODMClassifier"),
]
FORBIDDEN_LIBRARIES = [
    ("dask_odm.kernels.base", "import dask"),
    ("dask_odm.methods.exact.active_set", "def f():\n    import zarr"),
    ("dask_odm.learning.problem.odm", "from sklearn.utils import check_array"),
    ("dask_odm.methods.tree.workers", "from distributed import Client"),
    ("dask_odm.estimators.odm_classifier", "from dask.distributed import get_client"),
    ("dask_odm.estimators.odm_classifier", "from dask import distributed"),
    ("dask_odm.estimators.odm_classifier", "from tqdm.auto import tqdm"),
    ("dask_odm", "import numpy"),
]
FORBIDDEN_LEAN = [
    {"dask_odm.data.store.store": "import pandas as pd"},
    {"dask_odm.methods.tree.workers": "import dask.array as da"},
    {"dask_odm.methods.tree.workers": "def f():\n    from dask import array"},
    {"dask_odm.data.store.store": "", "dask_odm.data": "from dask_odm.data.store.interchange import open_store"},
    {"dask_odm.data.rows.memory": "from dask_odm.data.readers.formats import read"},
]
HELPERS = {
    "dask_odm.data.store.interchange": "import xarray",
    "dask_odm.data.readers.formats": "from sklearn.datasets import load_svmlight_file",
    **dict.fromkeys(["dask_odm.data.store.store", "dask_odm.methods.svrg.workers", "dask_odm.engine.cluster"], ""),
}
TYPES_ONLY = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    "
ALLOWED = {
    "dask_odm": "from dask_odm.estimators.registry import ESTIMATORS\n"
    + TYPES_ONLY
    + "from dask_odm.estimators.odm_classifier import ODMClassifier",
    "dask_odm.data": "",
    "dask_odm.data.rows.stored": "from dask_odm.events import report\nfrom .store import Store",
    "dask_odm.solvers": "",
    "dask_odm.learning.newton": "import threading\nimport numpy\nfrom scipy import linalg\nfrom ..problems import odm",
    "dask_odm.strategies": "",
    "dask_odm.methods.tree.workers": "from dask import delayed\nfrom dask_odm.engine.cluster import run",
    "dask_odm.methods.svrg.workers": "from ..engine import cluster",
    "dask_odm.engine.watch": "from distributed import as_completed",
    "dask_odm.engine.cluster": "from distributed import Client\nfrom dask_odm.learning.solution_records import save",
    "dask_odm.learning.solution_records": TYPES_ONLY
    + "import xarray\nelse:\n    import zarr\nfrom dask_odm import __version__",
    "dask_odm.cli": "import click\nimport dask_odm\nfrom dask_odm import open_store\nprint('a')",
}


@pytest.mark.parametrize(("module", "source"), FORBIDDEN_LAYERS)
def test_checker_flags_an_import_against_the_layers(module: str, source: str) -> None:
    assert len(layer_violations({**dict.fromkeys(_parents(module), ""), **HELPERS, module: source})) == 1


@pytest.mark.parametrize(("module", "source"), FORBIDDEN_LIBRARIES)
def test_checker_flags_a_library_out_of_place(module: str, source: str) -> None:
    assert len(library_violations({module: source})) == 1


@pytest.mark.parametrize("sources", FORBIDDEN_LEAN)
def test_checker_flags_a_heavy_import_of_a_lean_module(sources: dict[str, str]) -> None:
    assert lean_violations(HELPERS | sources)


def test_checker_flags_an_undeclared_library() -> None:
    project = {
        "dependencies": ["scikit-learn>=1.6", "google-crc32c"],
        "optional-dependencies": {"plot": ["matplotlib"]},
    }
    source = "import os, google_crc32c, matplotlib.figure, numcodecs\nfrom sklearn.base import clone"
    assert undeclared_libraries({"dask_odm.data.store.writer": source}, project) == ["numcodecs"]


def test_checker_flags_print() -> None:
    assert len(print_violations({"dask_odm.methods.exact.active_set": "def f():\n    print('gap')"})) == 1


@pytest.mark.parametrize("rule", [layer_violations, library_violations, print_violations, lean_violations])
def test_checker_passes_what_is_allowed(rule: object) -> None:
    assert callable(rule)
    assert rule(HELPERS | ALLOWED) == []
