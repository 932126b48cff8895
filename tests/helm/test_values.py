"""Values the chart refuses, and pages that say what it has: values.yaml, its schema and both READMEs keep together."""

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from charts import CHART, ROOT, VALUE_SETS, VERSIONS, Document, pod_specs, render, run_helm
from values_table import PAGE, page, values_of

from dask_odm.cli import main as dask_odm

VALUES = (CHART / "values.yaml").read_text("utf-8")
SCHEMA = json.loads((CHART / "values.schema.json").read_text("utf-8"))
GUIDE = (ROOT / "helm" / "README.md").read_text("utf-8")
TUTORIAL = (ROOT / "tutorials" / "kubernetes.py").read_text("utf-8")
FREE = {"dask.config"}  # what others define

REFUSED: list[tuple[str, Document]] = [
    ("schedular", {"schedular": {}}),
    ("replica is not allowed", {"workers": {"default": {"replica": 2}}}),
    ("workers.default.replicas", {"workers": {"default": {"replicas": -1}}}),
    ("workers.default.threads", {"workers": {"default": {"threads": "500m"}}}),
    ("workers.default.threads", {"workers": {"default": {"threads": 0.5}}}),
    ("workers.Spot", {"workers": {"Spot": {}}}),
    ("memory", {"workers": {"default": {"resources": {"limits": {"memory": "two"}}}}}),
    ("memory", {"workers": {"default": {"resources": {"limits": {"memory": None}}}}}),
    ("timeoutSeconds", {"scheduler": {"livenessProbe": {"enabled": True, "timeoutSeconds": 1}}}),
    ("terminationGracePeriodSeconds", {"workers": {"default": {"terminationGracePeriodSeconds": 30}}}),
    ("image.tag", {"image": {"tag": "latest"}}),
    ("image.digest", {"image": {"digest": "sha256:abc"}}),
    ("env", {"env": {"DASK_CONFIG": "/data"}}),
    ("train.store", {"train": {"enabled": True, "model": "/data/m.zarr"}}),
    ("train.model", {"train": {"enabled": True, "store": "/data/t.zarr"}}),
    ("train.store", {"train": {"enabled": True, "store": "http://bucket/t.zarr", "model": "/data/m.zarr"}}),
    ("train.store", {"train": {"enabled": True, "store": "s3://key:secret@bucket/t.zarr", "model": "/data/m.zarr"}}),
    ("train.checkpoints", {"train": {"checkpoints": "checkpoints"}}),
    ("train.args", {"train": {"args": "--gamma 4"}}),
    ("train.args", {"train": {"args": ["--gamma", 4]}}),
    ("train.wait", {"train": {"wait": "soon"}}),
    ("train.backoffLimit", {"train": {"backoffLimit": -1}}),
    ("storage.mountPath", {"storage": {"mountPath": "/var/lib/dask-odm"}}),
    ("storage.mountPath", {"storage": {"mountPath": "data"}}),
    ("storage.accessModes", {"storage": {"accessModes": ["Any"]}}),
    ("tls.existingSecret", {"tls": {"enabled": True}}),
    ("tls.issuerRef.name", {"tls": {"enabled": True, "source": "certManager"}}),
    ("tls.source", {"tls": {"source": "none"}}),
    ("runAsUser", {"runAsUser": 0}),
]


@pytest.mark.parametrize(("said", "values"), REFUSED, ids=[json.dumps(values) for _, values in REFUSED])
def test_values_that_are_refused(said, values):
    done = run_helm("template", "odm", str(CHART), "--kube-version", VERSIONS[1], values=values)
    assert done.returncode != 0, done.stdout
    assert "values don't meet the specifications of the schema" in done.stderr
    assert said.split(".")[-1] in done.stderr


# What is written about values ----------------------------------------------------------------------------------


def described(schema: Document) -> set[str]:
    """Dotted paths of all values a schema has properties for."""
    found = set()
    for name, each in schema["properties"].items():
        inner = SCHEMA["definitions"][each["$ref"].split("/")[-1]] if "$ref" in each else each
        if inner.get("properties"):
            found |= {f"{name}.{path}" for path in described(inner)}
        else:
            found.add(name)
    return found


def leaves(tree: Any, path: str = "") -> set[str]:
    """Dotted paths of all values, those in braces too."""
    if not isinstance(tree, dict) or not tree or path in FREE:
        return {path}
    return {leaf for key, value in tree.items() for leaf in leaves(value, f"{path}.{key}".lstrip("."))}


def test_values_and_their_schema_name_the_same():
    worker = {f"workers.default.{path}" for path in described(SCHEMA["definitions"]["workers"])}
    known = (described(SCHEMA) - {"global", "workers"}) | worker
    # what a resource may have besides
    optional = {path for path in known if re.search(r"(ephemeral-storage|limits\.cpu)$", path)}
    assert leaves(yaml.safe_load(VALUES)) == known - optional


def test_every_value_is_explained_and_the_page_is_up_to_date():
    assert [each.path for each in values_of(VALUES) if len(each.text) < 8] == []
    assert PAGE.read_text("utf-8") == page(), "run python tests/helm/values_table.py"


def test_all_values_are_set_in_one_of_the_sets():
    """A part of a template that nothing renders may be wrong."""
    given = [yaml.safe_load((CHART / "ci" / f"{name}.yaml").read_text()) for name in VALUE_SETS]
    used = {re.sub(r"workers\.\w+", "workers.default", leaf) for each in given for leaf in leaves(each)}
    values = {each.path for each in values_of(VALUES)}
    assert {path for path in values if not any(f"{leaf}.".startswith(f"{path}.") for leaf in used)} == set()


# The user's page, and the tutorial ---------------------------------------------------------------------------


def commands(program: str) -> list[list[str]]:
    """Words of the shell commands of both that begin with a program, or have it after ``--``."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    told = re.findall(r"^# \.\. code-block:: sh\n#\n((?:#    .*\n)+)", TUTORIAL, re.MULTILINE)
    blocks += [re.sub(r"^#    ", "", each, flags=re.MULTILINE) for each in told]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    words, begins = [shlex.split(line, comments=True) for line in lines], ([], ["--"], ["|"])
    return [each[i:] for each in words for i in range(len(each)) if each[i] == program and each[i - 1 : i] in begins]


def test_the_page_s_helm_commands_render(tmp_path, monkeypatch):
    (spot,) = re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    (train,) = re.findall(r'^VALUES = """$(.*?)^"""$', TUTORIAL, re.MULTILINE | re.DOTALL)
    files = {"spot.yaml": spot, "train.yaml": train}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(ROOT)
    found = [each for each in commands("helm") if each[1] in ("install", "upgrade")]
    assert len(found) == 9
    for words in found:
        rest = [str(tmp_path / word) if word in files else word for word in words[2:] if word[2:] not in
                ("create-namespace", "reuse-values")]  # fmt: skip
        done = run_helm("template", *rest, "--kube-version", VERSIONS[1])
        assert done.returncode == 0, done.stderr


def test_the_page_names_what_there_is():
    documents = render(values={"fullnameOverride": "dask-odm"})
    there = {f"{each['kind'].lower()}/{each['metadata']['name']}" for each in documents}
    named = {word for each in commands("kubectl") for word in each if word.startswith("deploy/")}
    assert {word.replace("deploy/", "deployment/") for word in named} <= there
    assert "tcp://dask-odm-scheduler.learn.svc:8786" in GUIDE
    values = leaves(yaml.safe_load(VALUES))
    sections = "|".join(yaml.safe_load(VALUES))
    for path in re.findall(rf"`(?!tls\.(?:crt|key))((?:{sections})\.[\w.]+)", GUIDE):
        known = re.sub(r"^workers\.(?!default)", "workers.default.", path)
        assert known.endswith("limits.cpu") or any(f"{each}.".startswith(f"{known}.") for each in values), path


def test_the_page_s_commands_of_the_package_are_its_own():
    found = commands("dask-odm")
    assert {each[1] for each in found} == {"ingest", "info", "evaluate", "cluster"}
    for words in found:
        command = dask_odm.commands[words[1]]
        command.make_context(words[1], words[2:])


def test_the_image_is_the_one_the_chart_runs():
    dockerfile = (ROOT / "Dockerfile").read_text()
    values = yaml.safe_load(VALUES)
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert f"USER {values['runAsUser']}:{values['runAsUser']}" in dockerfile
    assert f"--tag {values['image']['repository']}:{chart['appVersion']}" in dockerfile
    assert f'version = "{chart["appVersion"]}"' in (ROOT / "pyproject.toml").read_text()
    assert re.search(r"^ARG PYTHON=\d+\.\d+\.\d+-slim-\w+$", dockerfile, re.MULTILINE)
    assert dockerfile.count("\nFROM ") == 2
    for _, pod in pod_specs(render()):
        assert pod["spec"]["containers"][0]["image"] == f"{values['image']['repository']}:{chart['appVersion']}"
