"""What a release says in several files is the same in all of them, and its workflows are sound."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from minimum_versions import oldest_versions

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read_yaml(*parts: str) -> dict:
    return yaml.safe_load(ROOT.joinpath(*parts).read_text("utf-8"))


def test_the_version_is_one() -> None:
    assert read_yaml("CITATION.cff")["version"] == PROJECT["version"]
    assert read_yaml("helm", "dask-odm", "Chart.yaml")["appVersion"] == PROJECT["version"]
    assert read_yaml("packaging", "recipe.yaml")["context"]["version"] == PROJECT["version"]
    named = {
        tag
        for page in ("Dockerfile", "helm/README.md")
        for tag in re.findall(r"dask-odm:(\d[\w.]*)", (ROOT / page).read_text("utf-8"))
    }
    assert named == {PROJECT["version"]}


def test_the_conda_recipe_needs_what_the_package_needs() -> None:
    needed = read_yaml("packaging", "recipe.yaml")["requirements"]
    python = f"python{PROJECT['requires-python']}"
    build = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["build-system"]["requires"]
    assert [each.replace(" ", "") for each in needed["run"]] == [python, *PROJECT["dependencies"]]
    assert {each.replace(" ", "") for each in needed["host"]} >= {"pip", *build}


def test_every_dependency_has_a_lower_bound() -> None:
    found = oldest_versions()
    assert len(found) == len(set(found)) > len(PROJECT["dependencies"])
    assert all(re.fullmatch(r"[\w.-]+==\d[\d.]*", each) for each in found)


def test_the_addresses_of_source_and_site_are_one_everywhere() -> None:
    source, site = PROJECT["urls"]["Source"], PROJECT["urls"]["Documentation"]
    assert read_yaml("CITATION.cff")["repository-code"] == source
    about = read_yaml("packaging", "recipe.yaml")["about"]
    assert (about["homepage"], about["documentation"]) == (source, site)
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = re.findall(r"https://[^\s)]*dask-odm[^\s)]*", "\n".join(page.read_text("utf-8") for page in pages))
    assert source in named
    assert all(each.startswith((source, site)) for each in [*named, *PROJECT["urls"].values()])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_do_little_and_pin_what_they_use(path: Path) -> None:
    workflow = read_yaml(".github", "workflows", path.name)
    assert workflow["permissions"] == {"contents": "read"}, "more only for the jobs that need it"
    for job in workflow["jobs"].values():
        assert job.get("needs") in {None, *workflow["jobs"]}
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert "run" in step or re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), "tags can be moved"
            assert "${{" not in step.get("run", ""), "what an expression says would be run"


def test_each_action_has_one_pin_with_its_version() -> None:
    lines = "\n".join(path.read_text("utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"\buses: (.*)", lines))
    assert pins
    assert all(re.fullmatch(r"\S+@\S+ # v\d+\.\d+\.\d+", each) for each in pins), "Dependabot reads the comment"
    assert len(pins) == len({each.partition("@")[0] for each in pins})


def test_each_python_that_is_named_is_tested() -> None:
    classified = {each.rpartition(" ")[2] for each in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", each)}
    for workflow, job in (("tests.yml", "tests"), ("release.yml", "smoke")):
        matrix = read_yaml(".github", "workflows", workflow)["jobs"][job]["strategy"]["matrix"]
        assert set(matrix["python"]) == classified


def test_actionlint_finds_nothing() -> None:
    if not (actionlint := shutil.which("actionlint")):
        pytest.skip("actionlint is not installed")
    command = [actionlint, "-format", "{{json .}}", *WORKFLOWS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == []
