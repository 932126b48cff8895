"""Every word of a registry is in the lists beside it: who adds a kernel or a solver is told which list lacks it."""

import re
from collections.abc import Collection
from dataclasses import fields, replace
from inspect import getdoc, getsource
from pathlib import Path

import landmarks
import numpy as np
import pytest
from sklearn.utils._param_validation import StrOptions
from tries import certificates
from tries.things import ALL_FAMILIES

import dask_odm
from contracts.cases import CASES, CHECKED
from contracts.test_sources import CASES as SOURCES
from dask_odm import InputError, ODMClassifier, ingest, load_model
from dask_odm.cli import main, warmup
from dask_odm.data.readers.file_formats import FORMATS
from dask_odm.data.rows.scaling import SCALINGS
from dask_odm.data.store import schemas
from dask_odm.estimators.registry import ESTIMATORS, ODM_SOLVERS, SOLVERS, solver_class
from dask_odm.kernels import KERNELS
from dask_odm.kernels.named import Polynomial
from dask_odm.kernels.pivots import RACES, UniformRace
from dask_odm.learning.parameters import solver_word
from dask_odm.learning.training.run import KernelChoice
from dask_odm.methods.recipes import PAPERS, RECIPES
from dask_odm.solvers import Landmark
from kernels.test_base import ALL as TRIED_KERNELS

DOCS = Path(__file__).parent.parent / "docs"
OWN = [entry.load() for entry in ESTIMATORS.values() if entry.module.startswith("dask_odm.")]
ESTIMATOR_NAMES = [kind.__name__ for kind in OWN]
SOLVER_WORDS = [name.lower() for name in ODM_SOLVERS]
WITH_KERNEL = [kind for kind in OWN if "kernel" in kind._parameter_constraints]
WITH_CHOICE = [name for name in SOLVERS if "choice" in solver_class(name)._parameter_constraints]


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def lacking(text: str, words: Collection[str], quoted: str = "") -> list[str]:
    """Return the words that a text lacks."""
    return [word for word in words if not re.search(rf"(?<!\w){re.escape(f'{quoted}{word}{quoted}')}(?!\w)", text)]


@pytest.mark.parametrize("kind", WITH_KERNEL, ids=lambda kind: kind.__name__)
def test_estimators_take_and_describe_every_kernel(kind: type) -> None:
    (words,) = [each.options for each in kind._parameter_constraints["kernel"] if isinstance(each, StrOptions)]
    assert set(KERNELS) - words == set()
    assert lacking(getdoc(kind) or "", KERNELS, '"') == []


@pytest.mark.parametrize("kernel", KERNELS)
def test_parameters_of_a_kernel_come_from_every_estimator_and_are_saved(kernel: str) -> None:
    own = {each.name for each in fields(KERNELS[kernel])} - {"bias"}
    for kind in WITH_KERNEL:
        assert own - {*kind._get_param_names()} <= ({"gamma"} if kind.__name__.endswith("CV") else set()), kind
    given = dict.fromkeys(own, 7)
    chosen = vars(KernelChoice.of(ODMClassifier(kernel, **given)))
    assert {name: chosen.get(name) for name in own} == given
    schemas.KERNEL(KERNELS[kernel]().parameters(), "kernel")


def test_every_kernel_is_compared_with_its_formula() -> None:
    assert set(KERNELS) - {kernel.name for kernel in TRIED_KERNELS} == set()
    assert set(KERNELS) - set(certificates.KERNELS) == set()


def test_registries_are_asked_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A kernel, a way of drawing landmarks, a scaling and a format of one's own are taken once they are registered."""
    X = np.random.default_rng(0).standard_normal((60, 2))
    model = ODMClassifier("squared", gamma=0.5, scale="halved", solver=Landmark(10, choice="last"))
    with pytest.raises(InputError, match=r"'kernel' parameter of .* must be a str among \{'precomputed', 'rbf'"):
        model.fit(X, X[:, 0] > 0)
    monkeypatch.setitem(KERNELS, "squared", type("Squared", (Polynomial,), {"name": "squared"}))
    monkeypatch.setitem(SCALINGS, "halved", lambda statistics: (statistics.mean, np.full(2, 2.0)))
    monkeypatch.setitem(RACES, "last", type("LastRace", (UniformRace,), {"word": "last"}))
    fitted = model.fit(X, X[:, 0] > 0)
    assert len(fitted.support_) == 10
    fitted.save(tmp_path / "model.zarr")
    assert load_model(tmp_path / "model.zarr").score(X, X[:, 0] > 0) == fitted.score(X, X[:, 0] > 0)
    own = replace(FORMATS["csv"], word="numbers", suffixes=(".numbers",))
    monkeypatch.setitem(FORMATS, "numbers", own)
    (tmp_path / "rows.numbers").write_text("a,y\n1,0\n2,1\n")
    assert ingest(tmp_path / "rows.numbers", tmp_path / "rows.zarr").rows == 2


def test_pages_have_every_kernel_and_estimator() -> None:
    assert lacking(page("guide.md"), KERNELS, '"') == []
    assert lacking(page("solvers.md"), ESTIMATOR_NAMES, "`") == []


def test_formats_are_told_in_python_in_the_shell_and_on_the_page_and_have_the_tests_of_all() -> None:
    assert lacking(getdoc(ingest) or "", FORMATS, "``") == []
    (option,) = [each for each in main.commands["ingest"].params if each.name == "format"]
    assert set(option.type.choices) == set(FORMATS)
    assert lacking(page("data.md"), [each.title for each in FORMATS.values()]) == []
    assert {word for word, each in FORMATS.items() if any(case.file.endswith(each.suffixes) for case in SOURCES)} == {
        *FORMATS
    }


@pytest.mark.parametrize("name", WITH_CHOICE)
def test_solver_objects_describe_every_way_of_drawing_landmarks(name: str) -> None:
    assert lacking(getdoc(solver_class(name)) or "", RACES, '"') == []


def test_the_benchmark_draws_landmarks_in_every_way() -> None:
    assert set(landmarks.METHODS) == {"support", *RACES}


def test_every_solver_has_a_recipe_a_line_on_pages_and_the_tests_of_all() -> None:
    assert {*RECIPES, *PAPERS} == set(SOLVER_WORDS)
    for name in ("solvers.md", "clusters.md"):
        assert lacking(page(name), SOLVER_WORDS, '"') == [], name
    assert lacking(page("reference.rst"), SOLVERS) == []
    for made in ([case.settings for case in CASES], [family.parameters for family in ALL_FAMILIES]):
        assert set(SOLVER_WORDS) - {solver_word(each.get("solver", "auto")) for each in made} == set()


def test_the_recipes_name_files_that_exist() -> None:
    named = re.findall(r"`((?:[a-z_]+/)+[a-z_]*(?:\.[a-z]+)?)`", page("developers.md"))
    assert len(named) > 40
    roots = (DOCS.parent, DOCS.parent / "dask_odm")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
    tests = {path.name for path in Path(__file__).parent.rglob("test_*.py")}
    assert set(re.findall(r"`(test_\w+\.py)`", page("developers.md"))) - tests == set()


def test_the_recipes_name_what_is_in_the_files() -> None:
    told = re.findall(r"((?:`[\w.]+`(?:, | and )?)+)\s+\(`((?:[a-z_]+/)+[a-z_]+\.py)`", page("developers.md"))
    assert len(told) > 30
    for words, file in told:
        path = next(root / file for root in (DOCS.parent, DOCS.parent / "dask_odm") if (root / file).exists())
        names = [name.rpartition(".")[2] for name in re.findall(r"`([\w.]+)`", words)]
        assert lacking(path.read_text(encoding="utf-8"), names) == [], file


def test_every_estimator_is_compiled_for_and_in_the_tests_of_all() -> None:
    assert lacking(page("reference.rst"), ESTIMATOR_NAMES) == []
    assert lacking(dask_odm._STUB, ESTIMATOR_NAMES) == []
    assert lacking(getsource(warmup._fits), ESTIMATOR_NAMES) == []
    assert set(OWN) - {case.kind for case in CASES} == set()
    assert set(OWN) - {type(made) for made, _ in CHECKED} == set()
    assert set(OWN) - {family.make for family in ALL_FAMILIES} <= {
        ESTIMATORS[name].load() for name in ("ODMClassifierCV", "ODMRegressorCV")
    }
