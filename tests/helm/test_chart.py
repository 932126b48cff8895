"""What the chart renders, for every value set and version of Kubernetes: valid, safe, and whole."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import lru_cache
from inspect import signature
from pathlib import Path

import click
import jsonschema
import kubernetes_validate
import pytest
import yaml
from charts import CHART, VALUE_SETS, VERSIONS, Document, documents_of, image_environment, pod_specs, run_helm, template
from distributed.cli.dask_scheduler import main as dask_scheduler
from distributed.cli.dask_worker import main as dask_worker
from kubernetes_validate import utils as schemas

from dask_odm.cli import main as dask_odm
from dask_odm.estimators.registry import ESTIMATORS

# Kinds that Kubernetes itself does not have, with what the chart may say of them.
TEXT, TEXTS = {"type": "string", "minLength": 1}, {"type": "array", "items": {"type": "string"}, "minItems": 1}
ISSUER = {"type": "object", "required": ["name", "kind", "group"], "additionalProperties": TEXT}
CERTIFICATE = {"secretName": TEXT, "commonName": TEXT, "dnsNames": TEXTS, "usages": TEXTS, "issuerRef": ISSUER}
OTHERS = {
    ("cert-manager.io/v1", "Certificate"): {
        "type": "object",
        "additionalProperties": False,
        "required": ["secretName", "issuerRef", "dnsNames"],
        "properties": CERTIFICATE,
    }
}
EXISTING = {
    "everything": {"Secret/bucket", "Secret/registry"},
    "objects": {"Secret/bucket"},
    "plain": {"PersistentVolumeClaim/rows", "ServiceAccount/default"},
    "tls-existing": {"Secret/dask-tls"},
}


@pytest.fixture(scope="module", autouse=True)
def schemas_read_once() -> Iterator[None]:
    """Reading them takes most of the time otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schemas, "schema_contents", lru_cache(schemas.schema_contents))
        yield


@lru_cache
def rendered(value_set: str, version: str = VERSIONS[1]) -> list[Document]:
    return documents_of(template(value_set, version=version))


def validate(document: Document, version: str) -> None:
    """Raise where a document is not valid, or of an unknown kind."""
    kind = document["apiVersion"], document["kind"]
    if kind in OTHERS:
        jsonschema.validate(document["spec"], OTHERS[kind])
        assert document.keys() == {"apiVersion", "kind", "metadata", "spec"}
    else:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_lint(value_set):
    done = run_helm("lint", "--strict", str(CHART), "--values", str(CHART / "ci" / f"{value_set}.yaml"))
    assert done.returncode == 0, done.stdout
    assert "[WARNING]" not in done.stdout


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_every_document_is_valid(value_set):
    for document in rendered(value_set):
        assert document["metadata"]["namespace"] == "lab"
        for version in VERSIONS:
            validate(document, version)


def test_the_version_of_kubernetes_changes_no_document():
    assert all(rendered("everything", version) == rendered("everything") for version in VERSIONS)


def test_what_is_not_valid_is_found():
    (service,) = [each for each in rendered("default") if each["kind"] == "Service"]
    for version in VERSIONS:
        for wrong in ({"kind": "Servise"}, {"apiVersion": "v9"}):
            with pytest.raises(schemas.SchemaNotFoundError):
                validate(service | wrong, version)
        for wrong in ({"spec": service["spec"] | {"sort": 1}}, {"spec": service["spec"] | {"ports": 1}}):
            with pytest.raises(kubernetes_validate.ValidationError):
                validate(service | wrong, version)


def test_an_older_kubernetes_is_refused():
    done = run_helm("template", "odm", str(CHART), "--kube-version", "1.26.9")
    assert "incompatible with Kubernetes v1.26.9" in done.stderr


# What belongs together ---------------------------------------------------------------------------------------


def labels_match(selector: dict[str, str], template: Document) -> bool:
    return selector.items() <= template["metadata"]["labels"].items()


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_selectors_find_the_pods_they_mean(value_set):
    documents = rendered(value_set)
    pods = dict(pod_specs(documents))
    for each in documents:
        name, spec = f"{each['kind']} {each['metadata']['name']}", each.get("spec", {})
        if each["kind"] in ("Deployment", "PodDisruptionBudget"):
            selector = spec["selector"]["matchLabels"]
            found = [pod for pod, template in pods.items() if labels_match(selector, template)]
            assert found == [f"Deployment {each['metadata']['name']}"]
        elif each["kind"] == "Service":
            (found,) = [template for template in pods.values() if labels_match(spec["selector"], template)]
            ports = {port["name"]: port["containerPort"] for port in found["spec"]["containers"][0]["ports"]}
            assert {port["targetPort"]: port["port"] for port in spec["ports"]} == ports
        elif each["kind"] == "NetworkPolicy" and not name.endswith("-clients"):
            assert all(labels_match(spec["podSelector"]["matchLabels"], template) for template in pods.values())


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_names_of_ports_secrets_claims_and_accounts_exist(value_set):
    documents = rendered(value_set)
    there = {f"{each['kind']}/{each['metadata']['name']}" for each in documents} | EXISTING.get(value_set, set())
    there |= {f"Secret/{each['spec']['secretName']}" for each in documents if each["kind"] == "Certificate"}
    for name, pod in pod_specs(documents):
        spec, container = pod["spec"], pod["spec"]["containers"][0]
        ports = {port["name"] for port in container.get("ports", ())}
        asked = {value["httpGet"]["port"] for key, value in container.items() if key.endswith("Probe")}
        assert asked <= ports, name
        assert {each["name"] for each in container["volumeMounts"]} == {each["name"] for each in spec["volumes"]}
        assert set(needed(spec)) <= there, name


def needed(spec: Document) -> Iterator[str]:
    """What a pod needs that is an object of its own."""
    yield f"ServiceAccount/{spec['serviceAccountName']}"
    for volume in spec["volumes"]:
        if "configMap" in volume:
            yield f"ConfigMap/{volume['configMap']['name']}"
        if "secret" in volume:
            yield f"Secret/{volume['secret']['secretName']}"
        if "persistentVolumeClaim" in volume:
            yield f"PersistentVolumeClaim/{volume['persistentVolumeClaim']['claimName']}"
    yield from (f"Secret/{each['name']}" for each in spec.get("imagePullSecrets", ()))
    for each in spec["containers"][0].get("envFrom", ()):
        yield from (f"Secret/{value['name']}" for key, value in each.items() if key == "secretRef")


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_every_command_is_one_that_its_program_understands(value_set):
    for name, pod in pod_specs(rendered(value_set)):
        (container,) = pod["spec"]["containers"]
        parse([*container["command"], *container["args"]], name)
        if "lifecycle" in container:
            hook = container["lifecycle"]["preStop"]["exec"]["command"]
            assert not any("$" in word for word in hook), "Kubernetes expands nothing in a hook"
            parse([*hook, "--name", "of the environment"], name)


def parse(words: list[str], where: str) -> None:
    """Raise unless the real command takes the words, all of them as its own."""
    command: click.Command = {"dask": click.Group(commands=[dask_scheduler, dask_worker]), "dask-odm": dask_odm}[
        words[0]
    ]
    chosen = command.get_command(click.Context(command), words[1])  # type: ignore[attr-defined]
    # certificates are not here to be looked at, and an unknown option would be handed on to a preload script
    context = chosen.make_context(where, list(words[2:]))
    assert not context.params.get("preload_argv"), where
    assert not context.args, where


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=lambda estimator: estimator.word)
def test_every_estimator_can_be_trained(estimator):
    values = {
        "args": ["--estimator", estimator.word],
        "checkpoint": "checkpoint" in signature(estimator.load()).parameters,
    }
    (job,) = [each for each in documents_of(template("train", {"train": values})) if each["kind"] == "Job"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    parse([*container["command"], *container["args"]], estimator.word)


def test_words_that_a_command_does_not_know_are_found():
    for words in (["dask", "worker", "tcp://a:1", "--nthread", "2"], ["dask-odm", "fit", "a", "b", "--resumed"]):
        with pytest.raises((AssertionError, click.ClickException)):
            parse(words, "here")


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_absolute_paths_are_mounted(value_set):
    """The root is read-only, and has none of the release's files."""
    for name, pod in pod_specs(rendered(value_set)):
        (container,) = pod["spec"]["containers"]
        mounted = tuple(each["mountPath"] for each in container["volumeMounts"])
        texts = [
            *container["command"],
            *container.get("args", ()),
            *(each.get("value", "") for each in container["env"]),
        ]
        texts += image_environment().values()
        paths = [path for text in texts for path in re.findall(r"(?:^|=)(/[^/].*)", text)]
        assert [path for path in paths if not f"{path}/".startswith(tuple(f"{each}/" for each in mounted))] == [], name


# What is safe ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_every_pod_is_confined(value_set):
    for name, pod in pod_specs(rendered(value_set)):
        spec, (container,) = pod["spec"], pod["spec"]["containers"]
        rights, bounds = spec["securityContext"], container["securityContext"]
        assert spec["automountServiceAccountToken"] is False, name
        assert (rights["runAsNonRoot"], rights["seccompProfile"]) == (True, {"type": "RuntimeDefault"}), name
        assert rights["runAsUser"] == rights["runAsGroup"] == rights["fsGroup"] >= 10000, name
        assert bounds["readOnlyRootFilesystem"] is True, name
        assert bounds["allowPrivilegeEscalation"] is False, name
        assert bounds["capabilities"] == {"drop": ["ALL"]}, name
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & spec.keys(), name
        resources = container["resources"]
        assert resources["requests"].keys() >= {"cpu", "memory"}, name
        assert "memory" in resources["limits"], name
        volumes = [set(each) - {"name"} for each in spec["volumes"]]
        assert all(kind <= {"emptyDir", "configMap", "secret", "persistentVolumeClaim"} for kind in volumes), name
        assert all("sizeLimit" in each["emptyDir"] for each in spec["volumes"] if "emptyDir" in each), name


@pytest.mark.parametrize("value_set", VALUE_SETS)
def test_nothing_listens_beyond_the_cluster_and_no_secret_is_rendered(value_set):
    documents = rendered(value_set)
    assert {each["spec"]["type"] for each in documents if each["kind"] == "Service"} == {"ClusterIP"}
    assert not {each["kind"] for each in documents} & {"Ingress", "Role", "ClusterRole", "RoleBinding"}
    # a key that helm makes has to be somewhere: only where that is asked for
    secrets = [each["metadata"]["name"] for each in documents if each["kind"] == "Secret"]
    assert secrets == (["odm-dask-odm-tls"] if value_set == "tls-self-signed" else [])


def test_only_pods_of_the_release_and_clients_are_let_in():
    policies = {p["metadata"]["name"]: p["spec"] for p in rendered("default") if p["kind"] == "NetworkPolicy"}
    release = {"app.kubernetes.io/name": "dask-odm", "app.kubernetes.io/instance": "odm"}
    everyone, clients = policies["odm-dask-odm"], policies["odm-dask-odm-clients"]
    assert everyone["policyTypes"] == ["Ingress", "Egress"]
    assert [each["from"] for each in everyone["ingress"]] == [[{"podSelector": {"matchLabels": release}}]]
    assert [each["from"] for each in clients["ingress"]] == [
        [{"podSelector": {"matchLabels": {"odm-dask-odm-client": "true"}}}]
    ]
    ports = {port["containerPort"] for _, pod in pod_specs(rendered("default"))
             for port in pod["spec"]["containers"][0].get("ports", ())}  # fmt: skip
    (let_in,) = everyone["ingress"][0]["ports"]
    assert let_in == {"protocol": "TCP", "port": min(ports), "endPort": max(ports)}


@pytest.mark.parametrize("value_set", ["tls-self-signed", "tls-cert-manager", "tls-existing"])
def test_encryption_is_required_of_all(value_set):
    documents = rendered(value_set)
    (config,) = [each["data"]["dask-odm.yaml"] for each in documents if each["kind"] == "ConfigMap"]
    comm = yaml.safe_load(config)["distributed"]["comm"]
    assert comm["require-encryption"] is True
    assert comm["tls"]["worker"] == comm["tls"]["client"] == comm["tls"]["scheduler"]
    text = json.dumps(documents)
    assert "tls://odm-dask-odm-scheduler.lab.svc:8786" in text
    assert "tcp://" not in text


# What users of such charts trip over ---------------------------------------------------------------------------


def container_of(documents: list[Document], kind: str, name: str) -> Document:
    (found,) = [pod for which, pod in pod_specs(documents) if which == f"{kind} {name}"]
    return found["spec"]["containers"][0]


def value_of(words: list[str], option: str) -> str:
    return words[words.index(option) + 1]


def test_a_group_takes_from_the_default_what_it_does_not_set():
    documents = rendered("everything")
    assert [each["spec"]["replicas"] for each in documents if each["kind"] == "Deployment"] == [1, 0, 8]
    spot, default = (container_of(documents, "Deployment", f"learn-worker-{name}") for name in ("spot", "default"))
    assert [value_of(each["args"], "--nthreads") for each in (spot, default)] == ["4", "1"]
    assert value_of(spot["args"], "--memory-limit") == spot["resources"]["limits"]["memory"] == "16Gi"
    assert ("livenessProbe" in spot, "livenessProbe" in default) == (True, False)
    assert spot["livenessProbe"]["timeoutSeconds"] == 30


def test_a_job_that_is_changed_is_another_and_its_tries_share_a_checkpoint():
    def job(**train: object) -> Document:
        text = template("train", {"train": train})
        return next(each for each in documents_of(text) if each["kind"] == "Job")

    one, same, other = job(), job(), job(args=["--lam", "7"])
    assert one["metadata"]["name"] == same["metadata"]["name"] != other["metadata"]["name"]
    spec, words = one["spec"], one["spec"]["template"]["spec"]["containers"][0]["args"]
    assert value_of(words, "--checkpoint") == "/data/$(JOB_NAME).checkpoint.zarr"
    remote = job(checkpoints="s3://rows/fits/")["spec"]["template"]["spec"]["containers"][0]["args"]
    assert value_of(remote, "--checkpoint") == "s3://rows/fits/$(JOB_NAME).checkpoint.zarr"
    assert "--resume" in words
    assert {"backoffLimit", "activeDeadlineSeconds", "ttlSecondsAfterFinished"} <= spec.keys()
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "Ignore"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"


def test_a_worker_that_is_stopped_has_time_to_hand_over():
    for name, pod in pod_specs(rendered("everything")):
        container = pod["spec"]["containers"][0]
        if "lifecycle" in container:
            finish = value_of(container["lifecycle"]["preStop"]["exec"]["command"], "--finish")
            assert int(finish.removesuffix("s")) <= pod["spec"]["terminationGracePeriodSeconds"] - 30, name


def notes(folder: Path, **values: object) -> str:
    """The notes helm shows after an install, which only a cluster gets to see: rendered as part of a document."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart, dirs_exist_ok=True)
    text = (chart / "templates" / "NOTES.txt").read_text()
    wrapped = '{{ define "notes" }}' + text + '{{ end }}\nkind: Notes\ntext: {{ include "notes" . | toJson }}\n'
    (chart / "templates" / "notes.yaml").write_text(wrapped)
    where = ("--namespace", "lab", "--kube-version", VERSIONS[1], "--show-only", "templates/notes.yaml")
    done = run_helm("template", "odm", str(chart), *where, values=values)
    assert done.returncode == 0, done.stderr
    (document,) = documents_of(done.stdout)
    return document["text"]


def test_notes_name_what_there_is(tmp_path):
    text, names = notes(tmp_path), {each["metadata"]["name"] for each in rendered("default")}
    assert set(re.findall(r"deploy/([\w-]+)", text)) <= names
    assert "odm-dask-odm-scheduler" in text
    for command in re.findall(r"dask-odm (\w+) - ", text):
        assert command in dask_odm.commands
    for setting in re.findall(r"--set ([\w.]+)=", text):
        assert setting.split(".")[1] in yaml.safe_load((CHART / "values.yaml").read_text())["train"]
    assert "not encrypted" in text
    assert "run code" not in text
    assert "run code" in notes(tmp_path, networkPolicy={"enabled": False})
