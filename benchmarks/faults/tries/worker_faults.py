"""Workers under nannies that are killed or stopped while a fit, or a prediction, waits for them."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import dask
import numpy as np
from distributed import Client, LocalCluster

from quick_workers import quick_settings
from tries.base import Kind, parts
from tries.kept_workers import KILLS, OnWorkers, count_of, hits_of
from tries.outcomes import BREAK, Outcome, judge, with_leftovers
from tries.processes import SETTINGS, answer_of
from tries.things import ON_WORKERS, RUNS, Family, fitted

RETURN_SECONDS = 8.0  # that nannies have to bring workers back between two tries
STOPPED_SECONDS = 3.0
# As `local_workers` sets it. For 15 s after a death, Dask's default, a worker that just then dies again, as those of
# tries do, is closed with its nanny for good.
AS_LOCAL_WORKERS = {
    "distributed.deploy.lost-worker-timeout": "1 day",
    "distributed.admin.large-graph-warning-threshold": "1GB",
}


class NannyCluster:
    """Workers of this process under nannies, as `Client(n_workers=2)` starts them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._begin()

    def _begin(self) -> None:
        options = {"threads_per_worker": 1, "memory_limit": "1GB", "dashboard_address": ":0"}
        self.cluster = LocalCluster(n_workers=self.count, silence_logs=logging.CRITICAL, **options)
        self.client = Client(self.cluster, set_as_default=False)

    def pids(self) -> list[int]:
        """Processes of the workers that are there."""
        return [nanny.pid for nanny in self.cluster.workers.values() if nanny.pid]

    def renew(self) -> None:
        """Wait until all workers are there, of which the scheduler knows; begin anew where they do not come back."""
        deadline = time.monotonic() + RETURN_SECONDS
        try:
            self.client.wait_for_workers(self.count, timeout=RETURN_SECONDS)
            while sorted(self.client.run(os.getpid, on_error="ignore").values()) != sorted(self.pids()):
                if time.monotonic() > deadline:
                    raise TimeoutError
                time.sleep(0.1)
        except Exception:
            with suppress(Exception):
                self.client.close(timeout=5)
            with suppress(Exception):
                self.cluster.close(timeout=20)
            self._begin()


class Strike(threading.Thread):
    """Sends signals to workers at moments after its start; ``struck`` counts those that were there to be hit."""

    def __init__(self, cluster: NannyCluster, plan: Sequence[tuple[float, int, int]]) -> None:
        super().__init__(daemon=True)
        self._cluster, self._plan, self._over = cluster, sorted(plan), threading.Event()
        self.struck, self._stopped = 0, []

    def run(self) -> None:
        began = time.monotonic()
        for after, worker, by in self._plan:
            if self._over.wait(max(0.0, began + after - time.monotonic())):
                break
            pids = self._cluster.pids()
            if not pids:
                continue
            pid = self._stopped[-1] if by == signal.SIGCONT and self._stopped else pids[worker % len(pids)]
            with suppress(ProcessLookupError):
                os.kill(pid, by)
                self.struck += 1
            if by == signal.SIGSTOP:
                self._stopped.append(pid)

    def end(self) -> None:
        """Strike no more, and let what is stopped go on."""
        self._over.set()
        self.join()
        for pid in self._stopped:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


class UnderNannies(OnWorkers):
    """Tries on workers under nannies."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for family in RUNS:  # no fork once threads of a cluster run in this process
            self.expected(family)
        dask.config.set({**SETTINGS, **quick_settings(), **AS_LOCAL_WORKERS})
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self._clusters: dict[int, NannyCluster] = {}
        self._usual: dict[tuple[str, int], float] = {}

    def _run(self, family: Family | None, cluster: NannyCluster) -> dict[str, Any]:
        with cluster.client.as_current():
            if family is None:
                return answer_of(self.predict)
            return answer_of(
                lambda: fitted(family, self.things.store_of(family), self.folder / "out", scratch=str(self.scratch))
            )

    def cluster(self, count: int) -> NannyCluster:
        """Workers that tries share."""
        if count not in self._clusters:
            self._clusters[count] = NannyCluster(count)
        self._clusters[count].renew()
        return self._clusters[count]

    def usual(self, family: Family | None, cluster: NannyCluster) -> float:
        """Seconds of an undisturbed run, whose bits are looked at too."""
        name = "predict" if family is None else family.name
        if (name, cluster.count) not in self._usual:
            began = time.monotonic()
            answer = self._run(family, cluster)
            if answer != {"digest": self.expected(family)}:
                raise RuntimeError(f"{name} on {cluster.count} undisturbed workers: {answer}")
            self._usual[name, cluster.count] = time.monotonic() - began
        return self._usual[name, cluster.count]

    def strike(
        self, family: Family | None, count: int, plan: Callable[[float], list[tuple[float, int, int]]], fault: str
    ) -> Outcome:
        """One try: again, and earlier, where the fit was over before the first signal."""
        cluster, name = self.cluster(count), "predict" if family is None else family.name
        usual = self.usual(family, cluster)
        for _ in range(6):
            strikes = plan(usual)
            strike = Strike(cluster, strikes)
            strike.start()
            answer = self._run(family, cluster)
            strike.end()
            said = f"{fault}, {name}, after {', '.join(f'{at:.2f}' for at, _, _ in strikes)} s"
            outcome = with_leftovers(judge(answer, self.expected(family), said), self.left())
            if strike.struck or outcome.what == BREAK:
                return outcome
            usual /= 2
        return Outcome(BREAK, fault, "the fit was always over before anything was struck")


def kill_workers(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of one worker, of both at once, of the only one, of two within a second."""
    bench = UnderNannies(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        how, family = parts(number, KILLS, RUNS)
        hits = hits_of(how, rng)

        def plan(usual: float) -> list[tuple[float, int, int]]:
            at = float(rng.uniform(0, usual))
            return [(at + after, worker, signal.SIGKILL) for after, worker in hits]

        return bench.strike(family, count_of(how), plan, f"killed {how}")

    return try_once


def stop_workers(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Stops of a worker for three seconds; every fifth for good, so that its nanny has to restart it."""
    bench = UnderNannies(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        for_good, family = number % 5 == 4, ON_WORKERS[(number * 5 // 4) % len(ON_WORKERS)]

        def plan(usual: float) -> list[tuple[float, int, int]]:
            at, worker = float(rng.uniform(0, usual)), int(rng.integers(2))
            go_on = [] if for_good else [(at + STOPPED_SECONDS, worker, signal.SIGCONT)]
            return [(at, worker, signal.SIGSTOP), *go_on]

        return bench.strike(family, 2, plan, f"stopped {'for good' if for_good else 'for 3 s'}")

    return try_once


KINDS = [
    Kind("worker kills", 400.0, kill_workers),
    Kind("stops", 400.0, stop_workers),
]
