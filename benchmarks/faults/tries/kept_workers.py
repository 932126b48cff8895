"""Workers that are killed under a supervisor, which forks another after a while: at any time, or at any event of a fit.

Nannies take ten seconds to bring a worker back on a busy machine, and give some up for good (`worker_faults` kills
under them); here workers are there again within a second, so that most of a try is the fit.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
from distributed.scheduler import KilledWorker, NoWorkerError

from dask_odm.errors import ClusterError
from dask_odm.estimators.saving import load_model
from tries.base import Kind, parts
from tries.outcomes import BREAK, Outcome, digest_arrays, judge, left_in, with_leftovers
from tries.processes import Answer, Process, SeparateCluster, answer_of
from tries.things import RUNS, Family, Things, fitted, fresh

KILLS = ("one", "both at once", "the only worker", "two within a second")
MOMENTS = ("time", "event")
HANG_SECONDS = 240.0  # of a fit that lost workers, on a machine that other work keeps busy
Tell = Callable[[Answer], None]
Hits = list[tuple[float, int]]


def hits_of(how: str, rng: np.random.Generator) -> Hits:
    """Seconds after the first kill, and which worker."""
    first, apart = int(rng.integers(2)), float(rng.uniform(0, 1))
    second = {"both at once": [(0.0, 1 - first)], "two within a second": [(apart, 1 - first)]}.get(how, [])
    return [(0.0, first), *second]


def count_of(how: str) -> int:
    """Workers that there are to begin with."""
    return 1 if how == "the only worker" else 2


class Moment:
    """Listens to a fit, and kills at one of its events."""

    def __init__(self, at: int, pids: list[int], tell: Tell) -> None:
        self._at, self._pids, self._tell, self.count = at, pids, tell, 0

    def __call__(self, event: object) -> None:
        self.count += 1
        if self.count == self._at:
            for pid in self._pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._tell({"struck": True})


class OnWorkers:
    """What tries over all families that use workers, and over predictions, share."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self.scratch = fresh(folder / "scratch")

    def expected(self, family: Family | None) -> str:
        """The digest of an undisturbed fit, or prediction, found by a fork of this process when first asked for."""
        return self.things.undisturbed("predict", self.predict) if family is None else self.things.model_digest(family)

    def predict(self) -> str:
        """Predict of a store, and the digest of what was predicted."""
        model = load_model(self.things.path("model.zarr"))
        scores = model.decision_function(str(self.things.store))
        try:
            return digest_arrays({"f": scores.compute()})
        except (KilledWorker, NoWorkerError) as error:  # what is lazy fails as Dask does
            raise ClusterError(str(error)) from error

    def left(self) -> list[str]:
        """What stays in scratch, once tasks that outlive their fit have had time to end."""
        deadline = time.monotonic() + 5
        while left_in(self.scratch) and time.monotonic() < deadline:
            time.sleep(0.1)
        left = left_in(self.scratch)
        fresh(self.scratch)
        return left


class KeptWorkers(OnWorkers):
    """Tries on workers that are forked."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._clusters: dict[int, SeparateCluster] = {}
        self._usual: dict[tuple[str, int], tuple[float, int]] = {}

    def _cluster(self, count: int) -> SeparateCluster:
        """Workers that tries share, all of them there."""
        if count not in self._clusters:
            place = self.folder / f"cluster-{count}"
            place.mkdir(exist_ok=True)
            self._clusters[count] = SeparateCluster(place, count)
        self._clusters[count].wait()
        return self._clusters[count]

    def _begin(self, family: Family | None, cluster: SeparateCluster, at: int, pids: list[int]) -> Process:
        """A process that fits or predicts, and tells that it has begun, what it kills, and how it ended."""

        def fit(tell: Tell) -> str:
            tell({"begun": True})
            if family is None:
                return self.predict()
            moment = Moment(at, pids, tell)
            paths = {"scratch": str(self.scratch), "callbacks": [moment]}
            digest = fitted(family, self.things.store_of(family), self.folder / "out", **paths)
            tell({"events": moment.count})
            return digest

        process = Process(lambda tell: tell(answer_of(cluster.connected(partial(fit, tell)))), self.folder / "fit.txt")
        process.answer(60)
        return process

    def _calm(self, family: Family | None, count: int) -> tuple[float, int]:
        """Seconds and events of a run that nothing disturbs; its bits are looked at too."""
        name = "predict" if family is None else family.name
        if (name, count) not in self._usual:
            process = self._begin(family, self._cluster(count), 0, [])
            began, events = time.monotonic(), 0
            try:
                answer = process.answer(HANG_SECONDS)
                if "events" in answer:
                    events, answer = answer["events"], process.answer(HANG_SECONDS)
            finally:
                process.end()
            if answer != {"digest": self.expected(family)}:
                raise RuntimeError(f"{name} on {count} undisturbed workers: {answer}")
            self._usual[name, count] = time.monotonic() - began, events
        return self._usual[name, count]

    def kill(self, family: Family | None, how: str, rng: np.random.Generator, *, at_event: bool) -> Outcome:
        """One try: again, and earlier, where the fit was over before the first kill."""
        name, count, hits = "predict" if family is None else family.name, count_of(how), hits_of(how, rng)
        usual, events = self._calm(family, count)
        for _ in range(6):
            at = int(rng.integers(1, events + 1)) if at_event and events else 0
            after, away = float(rng.uniform(0, usual)), float(rng.uniform(0, 1))
            answer, struck = self._run(family, self._cluster(count), hits, at, after, away)
            fault = f"killed {how}, {name}, {f'at event {at}' if at else f'after {after:.2f} s'}, {away:.2f} s away"
            outcome = with_leftovers(judge(answer, self.expected(family), fault), self.left())
            if struck or outcome.what == BREAK:
                return outcome
            usual, events = usual / 2, (events + 1) // 2
        return Outcome(BREAK, fault, "the fit was always over before anything was killed")

    def _run(
        self, family: Family | None, cluster: SeparateCluster, hits: Hits, at: int, after: float, away: float
    ) -> tuple[Answer, bool]:
        """What the fit answers, and whether anything was killed before: at event ``at``, or if 0 ``after`` seconds."""
        workers = [cluster.workers[i % len(cluster.workers)] for _, i in hits]
        at_once = [worker.pid for worker, (later, _) in zip(workers, hits, strict=True) if not later]
        process = self._begin(family, cluster, at, at_once)
        began = time.monotonic()
        due = [] if at else [(began + after + later, worker) for worker, (later, _) in zip(workers, hits, strict=True)]
        struck = False
        try:
            while time.monotonic() < began + HANG_SECONDS:
                if process.ready(0.01):
                    answer = process.answer(1)
                    if "struck" not in answer and "events" not in answer:
                        return answer, struck
                    if "struck" in answer:
                        struck, now = True, time.monotonic()
                        due = [(now + later, worker) for worker, (later, _) in zip(workers, hits, strict=True) if later]
                for moment, worker in due:
                    if time.monotonic() >= moment and worker.running():
                        worker.kill()
                        struck = True
                cluster.revive(away)
            return {"broken": f"hang: no end within {HANG_SECONDS:g} s"}, struck
        finally:
            process.end()


def kill_kept_workers(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of one worker, of both at once, of the only one, of two within a second."""
    bench = KeptWorkers(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        how, family, moment = parts(number, KILLS, RUNS, MOMENTS)
        return bench.kill(family, how, rng, at_event=moment == "event")

    return try_once


KINDS = [Kind("worker kills, supervised", 400.0, kill_kept_workers)]
