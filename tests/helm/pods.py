"""Runs what the chart renders on this machine: every container's command, arguments and environment as a process.

A stand-in for the parts of Kubernetes that the chart relies on. Every pod has an address of the loopback range, and a
Service has that of the pod it selects. ConfigMaps, Secrets, emptyDirs and claims are folders, and what names a path
that is mounted names the folder instead. Containers of Deployments are started again when they end, pods of a Job as
often as it allows. Probes are asked as they are rendered, and pods are stopped as Kubernetes does it: the preStop hook,
SIGTERM, and SIGKILL after the grace period. What Numba compiles pods share here, and do not in a cluster.

A machine can confine its pods where the system allows it: they then run without rights, with a read-only root, and
share nothing; as the chart's user, where that one may read this machine's Python.
"""

import base64
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from charts import ROOT, Document, image_environment

HOSTS = Path("tests/helm/hosts")
# Mounts that one process and its children see: this repository, and the machine's folder; all else is read-only. The
# folders they are mounted at are empty on any Linux.
CONFINE = """
mount --bind "$1" /srv && mount --bind "$2" /mnt && mount -o remount,bind,ro / && cd /mnt
user=$3; shift 3
exec setpriv --reuid "$user" --regid "$user" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all "$@"
"""
TICK = 0.05
READY_SECONDS = 200.0  # on a machine that has other work


@dataclass
class Pod:
    """One pod with its one container.

    Parameters
    ----------
    machine : Machine
    name, address : str
    template : dict
    restarts : bool
        The container is started again when it ends.
    """

    machine: "Machine"
    name: str
    address: str
    template: Document
    restarts: bool
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    stopping: bool = False
    folders: dict[str, Path] = field(default_factory=dict)

    @property
    def container(self) -> Document:
        (only,) = self.template["spec"]["containers"]
        return only

    @property
    def home(self) -> Path:
        return self.machine.folder / "pods" / self.name

    @property
    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def mount(self) -> None:
        """Make the folders of its volumes."""
        self.home.mkdir(parents=True)
        (self.home / "root").mkdir()  # all that is not mounted: stays empty, as a read-only root would
        volumes = {each["name"]: each for each in self.template["spec"]["volumes"]}
        order = sorted(self.container["volumeMounts"], key=lambda each: len(each["mountPath"]), reverse=True)
        for each in order:
            self.folders[each["mountPath"]] = self.machine.volume(self, volumes[each["name"]])
        self.machine.hand_over()
        for each in order:
            if "configMap" in volumes[each["name"]]:
                for file in self.folders[each["mountPath"]].iterdir():
                    file.write_text(self.here(file.read_text()))

    def here(self, text: str) -> str:
        """A text with folders in place of the paths they are mounted at."""
        paths = "|".join(map(re.escape, sorted(self.folders, key=len, reverse=True)))
        # in one pass: a folder's own path may begin with one that is mounted, such as /data
        pattern = rf"(?<![\w./-])({paths})(?=/|$|[^\w./-])"
        return re.sub(pattern, lambda found: self.seen(found[1]), text, flags=re.M)

    def seen(self, path: str) -> str:
        """Where its processes find what is mounted at a path."""
        folder = self.folders[path]
        if not self.machine.confined:
            return str(folder)
        return f"/mnt/{folder.relative_to(self.machine.folder)}"

    def confined(self, words: list[str]) -> list[str]:
        """A command, confined if the machine's pods are."""
        if not self.machine.confined:
            return words
        return confine(self.machine.folder, self.machine.user, words)

    def environment(self) -> dict[str, str]:
        """What the container's processes see: the image's variables, the rendered ones, and where this test runs."""
        facts = {"metadata.name": self.name, "status.podIP": self.address}
        facts |= {f"metadata.labels['{key}']": value for key, value in self.template["metadata"]["labels"].items()}
        found = image_environment()
        for each in self.container.get("envFrom", ()):
            found |= self.machine.secrets[each["secretRef"]["name"]]
        for each in self.container["env"]:
            if "valueFrom" in each:
                found[each["name"]] = facts[each["valueFrom"]["fieldRef"]["fieldPath"]]
            else:
                found[each["name"]] = expanded(each["value"], found)
        found = {name: self.here(value) for name, value in found.items()}
        root = Path("/srv") if self.machine.confined else ROOT
        path = os.pathsep.join(map(str, [root / HOSTS, root]))
        tools = os.pathsep.join([str(Path(sys.executable).parent), "/usr/bin", "/bin"])
        hosts = ",".join(f"{name}={address}" for name, address in self.machine.hosts.items())
        if not self.machine.confined:
            del found["NUMBA_CACHE_DIR"]  # beside the sources, where this machine's other tests have it
        return found | {"PATH": tools, "PYTHONPATH": path, "DASK_ODM_TEST_HOSTS": hosts}

    def start(self) -> None:
        environment = self.environment()
        words = [expanded(each, environment) for each in [*self.container["command"], *self.container.get("args", [])]]
        self.starts += 1
        with open(self.home / "log", "ab") as log:
            self.process = subprocess.Popen(
                self.confined([self.here(word) for word in words]),
                env=environment, cwd=self.home / "root", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def run(self, command: list[str], without: Sequence[str] = (), **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as an exec hook does: nothing in it is expanded.

        Variables of the environment that it is to be ``without`` are left out.
        """
        words = self.confined([self.here(word) for word in command])
        environment = {name: value for name, value in self.environment().items() if name not in without}
        return subprocess.run(
            words, env=environment, cwd=self.home / "root", capture_output=True, text=True, timeout=120,
            check=False, **options,
        )  # fmt: skip

    def kill(self) -> None:
        """SIGKILL to all processes of the container."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self) -> subprocess.CompletedProcess[str] | None:
        """Stop it as Kubernetes does; returns what the preStop hook left."""
        assert self.process is not None
        self.stopping = True
        grace = self.template["spec"].get("terminationGracePeriodSeconds", 30)
        deadline, hook = time.monotonic() + grace, self.container.get("lifecycle", {}).get("preStop")
        done = None if hook is None else self.run(hook["exec"]["command"])
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(max(0.1, deadline - time.monotonic()))
        finally:
            self.end()
        return done

    def end(self) -> None:
        """Leave no process of it behind."""
        self.stopping = True
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def ask(self, probe: str) -> bool:
        """Whether a rendered probe succeeds now."""
        rendered = self.container[probe]
        asked, ports = rendered["httpGet"], {each["name"]: each["containerPort"] for each in self.container["ports"]}
        url = f"http://{self.address}:{ports[asked['port']]}{asked['path']}"
        try:
            with urllib.request.urlopen(url, timeout=rendered["timeoutSeconds"]) as answer:
                return 200 <= answer.status < 400
        except OSError:
            return False

    def await_ready(self) -> None:
        """Ask the startup probe until it succeeds, then the readiness probe."""
        until(lambda: self.ask("startupProbe"), f"{self.name} to start", lambda: self.log)
        until(lambda: self.ask("readinessProbe"), f"{self.name} to be ready", lambda: self.log)


@dataclass
class Job:
    """A Job: a pod at a time, and another when one fails, as often as it allows."""

    machine: "Machine"
    document: Document
    pods: list[Pod] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.document["metadata"]["name"]

    @property
    def limit(self) -> int:
        return 1 + self.document["spec"]["backoffLimit"]

    def try_again(self) -> None:
        labels = {"batch.kubernetes.io/job-name": self.name}
        self.pods.append(
            self.machine.make_pod(f"{self.name}-{len(self.pods)}", self.document["spec"]["template"], labels)
        )

    def codes(self) -> list[int | None]:
        return [pod.process.poll() for pod in self.pods if pod.process is not None]

    def tend(self) -> None:
        last = self.codes()[-1]
        if last not in (None, 0) and len(self.pods) < self.limit and not self.pods[-1].stopping:
            self.try_again()

    def is_running(self) -> bool:
        return self.codes()[-1] is None

    def await_end(self) -> None:
        """Wait until it succeeded; its log is shown where it failed for good."""
        until(lambda: self.codes()[-1] == 0 or (len(self.codes()) == self.limit and not self.is_running()),
              f"{self.name} to end", lambda: self.pods[-1].log)  # fmt: skip
        assert self.codes()[-1] == 0, self.pods[-1].log


class Machine:
    """Pods of a release on this machine.

    Parameters
    ----------
    folder : Path
        Where all files go.
    documents : list of dict
        What helm renders; Jobs are started by `start_job`.
    user : int, optional
        Pods are confined, and run as this user; see `confining_user`.
    secrets : dict, optional
        Names and values of Secrets that the release does not make.
    """

    def __init__(
        self,
        folder: Path,
        documents: list[Document],
        user: int | None = None,
        secrets: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self.secrets = secrets or {}
        self.folder, self.documents, self.user, self.confined = folder, documents, user or 0, user is not None
        self.network = f"127.{random.SystemRandom().randrange(1, 255)}.{random.SystemRandom().randrange(255)}"
        self.pods: list[Pod] = []
        self.jobs: list[Job] = []
        self.hosts: dict[str, str] = {}
        self._lock, self._ended = threading.RLock(), threading.Event()

    def of_kind(self, kind: str) -> list[Document]:
        return [each for each in self.documents if each["kind"] == kind]

    def start(self) -> None:
        """Make the pods of all Deployments, then start them: their Services have addresses by then."""
        for deployment in self.of_kind("Deployment"):
            for i in range(deployment["spec"]["replicas"]):
                self._add(f"{deployment['metadata']['name']}-{i}", deployment["spec"]["template"], restarts=True)
        for service in self.of_kind("Service"):
            self._name(service)
        for pod in self.pods:
            pod.start()

    def _name(self, service: Document) -> None:
        wanted = service["spec"]["selector"].items()
        (pod,) = [each for each in self.pods if wanted <= each.template["metadata"]["labels"].items()]
        ports = {each["name"]: each["containerPort"] for each in pod.container["ports"]}
        assert all(ports[each["targetPort"]] == each["port"] for each in service["spec"]["ports"])
        name, namespace = service["metadata"]["name"], service["metadata"]["namespace"]
        for suffix in ("", f".{namespace}", f".{namespace}.svc", f".{namespace}.svc.cluster.local"):
            self.hosts[f"{name}{suffix}"] = pod.address

    def _add(self, name: str, template: Document, *, restarts: bool) -> Pod:
        with self._lock:
            pod = Pod(self, name, f"{self.network}.{len(self.pods) + 1}", template, restarts)
            pod.mount()
            self.pods.append(pod)
            return pod

    def make_pod(self, name: str, template: Document, labels: dict[str, str]) -> Pod:
        """A started pod that runs once."""
        metadata = template["metadata"]
        labelled = template | {"metadata": metadata | {"labels": metadata["labels"] | labels}}
        pod = self._add(name, labelled, restarts=False)
        pod.start()
        return pod

    def start_job(self, document: Document) -> Job:
        job = Job(self, document)
        job.try_again()
        with self._lock:
            self.jobs.append(job)
        return job

    def volume(self, pod: Pod, volume: Document) -> Path:
        """The folder of a volume: a pod's own, or a claim's, which all share."""
        if "persistentVolumeClaim" in volume:
            folder = self.folder / "claims" / volume["persistentVolumeClaim"]["claimName"]
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder = pod.home / volume["name"]
        folder.mkdir()
        if "configMap" in volume:
            (found,) = [e for e in self.of_kind("ConfigMap") if e["metadata"]["name"] == volume["configMap"]["name"]]
            for name, text in found["data"].items():
                (folder / name).write_text(text)
        elif "secret" in volume:
            (found,) = [e for e in self.of_kind("Secret") if e["metadata"]["name"] == volume["secret"]["secretName"]]
            for name, text in found["data"].items():
                (folder / name).write_bytes(base64.b64decode(text))
        else:
            assert "emptyDir" in volume
        return folder

    def hand_over(self) -> None:
        """Let the pods' user write to their folders, as an fsGroup does."""
        if self.confined:
            for each in [self.folder, *self.folder.rglob("*")]:
                os.chown(each, self.user, self.user)

    def component(self, name: str) -> list[Pod]:
        return [pod for pod in self.pods if pod.template["metadata"]["labels"]["app.kubernetes.io/component"] == name]

    def tend(self) -> None:
        """Start again what ended and should not have, until the end."""
        while not self._ended.wait(TICK):
            with self._lock:
                for pod in self.pods:
                    if pod.restarts and not pod.stopping and pod.process is not None and pod.process.poll() is not None:
                        pod.start()
                for job in self.jobs:
                    job.tend()

    @contextmanager
    def running(self) -> Iterator["Machine"]:
        """The release, ready; ended with all of its processes when the context is left."""
        keeper = threading.Thread(target=self.tend, daemon=True)
        try:
            self.start()
            keeper.start()
            for pod in self.pods:
                pod.await_ready()
            yield self
        finally:
            self._ended.set()
            if keeper.ident is not None:
                keeper.join()
            for pod in self.pods:
                pod.end()


def expanded(text: str, environment: dict[str, str]) -> str:
    """A text as Kubernetes expands it: ``$(NAME)`` where the name is known, ``$$`` for a ``$``."""
    return re.sub(
        r"\$\$|\$\(([A-Za-z_][\w.-]*)\)",
        lambda found: "$" if found[0] == "$$" else environment.get(found[1], found[0]),
        text,
    )


def until(condition: Callable[[], bool], what: str, log: Callable[[], str] = str, seconds: float = READY_SECONDS):
    """Wait for a condition; the failure shows a log."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}:\n{log()[-4000:]}"
        time.sleep(TICK)


def can_bind_loopback() -> bool:
    """Whether all of 127.0.0.0/8 is this machine's, as on Linux."""
    with socket.socket() as tried:
        try:
            tried.bind(("127.91.7.3", 0))
        except OSError:
            return False
    return True


def confine(folder: Path, user: int, words: list[str]) -> list[str]:
    """A command that runs another one as `CONFINE` says."""
    return ["unshare", "--mount", "sh", "-ec", CONFINE, "sh", str(ROOT), str(folder), str(user), *words]


def confining_user(folder: Path, wanted: int) -> int | None:
    """Whom confined processes can run as: the one wanted, this process's own, or None where none can be confined."""
    code = "import dask_odm, subprocess, sys; subprocess.run([sys.executable, '--version'], check=True)"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": "/srv", "NUMBA_CACHE_DIR": "/mnt"}
    for user in dict.fromkeys((wanted, os.getuid())):
        own = folder / str(user)
        own.mkdir()
        os.chown(own, user, user)
        command = confine(own, user, [sys.executable, "-B", "-c", code])
        with suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False).returncode == 0:
                return user
    return None
