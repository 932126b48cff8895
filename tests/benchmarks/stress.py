"""Fits and predictions whose workers are killed or stopped at random moments: do they end, and with the same bits?

    python tests/benchmarks/stress.py [--kills 50] [--seed 0] [--workers 2] [--json]

The model of this process, which has no workers, is what every other must equal bit by bit. A run that takes longer
than ``--limit`` seconds is a hang: the stacks of all threads are printed, and the command ends. Status 1 after a
hang, wrong bits or an error other than that a task was given up because four of its workers had died.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np
from distributed.scheduler import KilledWorker

import dask_odm as odm
from dask_odm.data.store.writer import StoreWriter
from dask_odm.engine.workers import local_workers
from dask_odm.errors import ClusterError
from dask_odm.events import LevelFinished, Progress

PARAMETERS: dict[str, Any] = {"gamma": 0.5, "lam": 1e4, "fan_in": 2, "n_partitions": 16, "random_state": 0}
STOPPED_SECONDS = 3.0
STOPPED_SHARE = 0.2


PHASES = ("start", "landmarks", "strata", "shuffle", "seal", "leaves", "merges", "end", "predict")


class Phases:
    """Hears how far a run is, and how long each phase took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)
        self.enter("start")

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self.name, self.since = phase, time.monotonic()

    def hear(self, event: object) -> None:
        """Learn the phase from what a fit reports."""
        before, name = self.name, self.name
        if isinstance(event, Progress):
            name = "leaves" if event.phase == "seal" and event.done == event.total else event.phase
        elif isinstance(event, LevelFinished):
            name = "merges" if event.partitions > 1 else "end"
        if name != before:
            self.leave()
            self.enter(name)

    def leave(self) -> None:
        """End a phase."""
        self.seconds[self.name] += time.monotonic() - self.since


class Saboteur(Phases):
    """Kills, or stops for a while, a random worker of a `LocalCluster` at random moments of random phases.

    Attributes
    ----------
    killed, stopped : Counter
        By the phase they fell into.
    """

    def __init__(self, client: Any, seed: int, seconds: dict[str, float]) -> None:
        self._client, self._random, self._usual = client, random.Random(seed), seconds
        self._plan: dict[str, list[float]] = {}
        self.killed: Counter[str] = Counter()
        self.stopped: Counter[str] = Counter()
        super().__init__()

    def new_run(self) -> None:
        """Choose when to strike in the next run: up to three times, in a phase each, at any moment of it."""
        self._plan = {}
        for phase in self._random.choices(PHASES, k=self._random.randint(1, 3)):
            self._plan.setdefault(phase, []).append(self._random.uniform(0, self._usual[phase]))
        self.enter("start")

    def enter(self, phase: str) -> None:
        super().enter(phase)
        for delay in self._plan.pop(phase, []):
            timer = threading.Timer(delay, self._strike)
            timer.daemon = True
            timer.start()

    def _strike(self) -> None:
        pids = [nanny.pid for nanny in self._client.cluster.workers.values() if nanny.pid]
        if not pids:
            return
        pid, stop = self._random.choice(pids), self._random.random() < STOPPED_SHARE
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP if stop else signal.SIGKILL)
            (self.stopped if stop else self.killed)[self.name] += 1
            if stop:
                time.sleep(STOPPED_SECONDS)
                os.kill(pid, signal.SIGCONT)


class Trial:
    """Fit and predict on a store, once in this process and then again and again on workers."""

    def __init__(self, folder: str, rows: int) -> None:
        rng = np.random.default_rng(0)
        X = rng.normal(size=(rows, 6)).astype(np.float32)
        y = (X[:, 0] * X[:, 1] + 0.3 * rng.normal(size=rows) > 0).astype(int)
        self.scratch = os.path.join(folder, "scratch")
        os.mkdir(self.scratch)
        self.path = os.path.join(folder, "train.zarr")
        with StoreWriter(self.path, dtype="float32", chunk_rows=-(-rows // 24)) as writer:
            writer.append(X, y)
            writer.finish((0, 1), source="made up")
        self.expected = self.run(Phases())

    def run(self, phases: Phases) -> dict[str, bytes]:
        """All that must not depend on where the model was made."""
        model = odm.ODMClassifier(**PARAMETERS, scratch=self.scratch, callbacks=[phases.hear]).fit(self.path)
        phases.leave()
        phases.enter("predict")
        found = {"decision": model.decision_function(self.path).compute().tobytes()}
        phases.leave()
        names = ("dual_coef_", "support_", "support_vectors_", "intercept_")
        return found | {name: np.asarray(getattr(model, name)).tobytes() for name in names}

    def outcome(self, saboteur: Saboteur) -> str:
        """What became of one run: ``same bits``, ``wrong bits``, ``given up`` or the error."""
        try:
            found = self.run(saboteur)
        except (ClusterError, KilledWorker) as error:
            given_up = isinstance(error, KilledWorker) or isinstance(error.__cause__, KilledWorker)
            return "given up" if given_up else f"error: {error}"
        except Exception as error:
            return f"error: {type(error).__name__}: {error}"
        if os.listdir(self.scratch):
            return "error: scratch folder left behind"
        return "same bits" if found == self.expected else "wrong bits"


def measure(folder: str, *, kills: int, seed: int, workers: int, rows: int, limit: float) -> dict[str, Any]:
    """Run until enough workers were killed; figures as plain values."""
    trial, outcomes, usual = Trial(folder, rows), Counter[str](), Phases()
    with local_workers(workers, 1, "1GB") as client:
        trial.run(usual)
        usual.enter("start")
        trial.run(usual)  # once more, now that workers have compiled what they need
        saboteur, began = Saboteur(client, seed, usual.seconds), time.monotonic()
        while sum(saboteur.killed.values()) < kills:
            client.wait_for_workers(workers, timeout=120)  # all that die are started again
            saboteur.new_run()
            ended: list[str] = []
            run = threading.Thread(target=lambda ended=ended: ended.append(trial.outcome(saboteur)), daemon=True)
            run.start()
            run.join(limit)
            if not ended:
                outcomes["hang"] += 1
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                break
            outcomes[ended[0]] += 1
            print(f"{sum(saboteur.killed.values())} of {kills} kills: {dict(outcomes)}", file=sys.stderr, flush=True)
        seconds = time.monotonic() - began
    return {
        "seconds": seconds,
        "runs": sum(outcomes.values()),
        "outcomes": dict(outcomes),
        "killed": dict(saboteur.killed),
        "stopped": dict(saboteur.stopped),
    }


def table(found: dict[str, Any]) -> str:
    """The figures for people."""
    phases = [phase for phase in PHASES if phase in {**found["killed"], **found["stopped"]}]
    lines = [f"{'phase':<14}{'killed':>8}{'stopped':>9}"]
    lines += [f"{p:<14}{found['killed'].get(p, 0):>8}{found['stopped'].get(p, 0):>9}" for p in phases]
    lines.append(f"{'all':<14}{sum(found['killed'].values()):>8}{sum(found['stopped'].values()):>9}")
    lines.append(f"\n{found['runs']} fits and predictions in {found['seconds']:.0f} s")
    lines += [f"{count:>5}  {what}" for what, count in sorted(found["outcomes"].items())]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Print the figures, or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rows", type=int, default=12_000)
    parser.add_argument("--limit", type=float, default=300.0, help="seconds after which a run counts as a hang")
    parser.add_argument("--folder", help="where the data go; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    figures = {name: value for name, value in vars(options).items() if name not in ("folder", "json")}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        found = measure(folder, **figures)
    print(json.dumps(found) if options.json else table(found))
    return 0 if set(found["outcomes"]) <= {"same bits", "given up"} else 1


if __name__ == "__main__":
    sys.exit(main())
