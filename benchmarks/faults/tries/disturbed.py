"""Clients whose futures are cancelled, or that are closed, restarted, or lose retired workers, at any call of a fit."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial, wraps
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client, Future

from tries.base import Kind, parts
from tries.kept_workers import KILLS, KeptWorkers, OnWorkers, Tell
from tries.outcomes import BREAK, NAMED, Outcome, judge, with_leftovers
from tries.processes import Answer, Process, SeparateCluster, answer_of
from tries.things import ON_WORKERS, Family, fitted

HANG_SECONDS = 60.0  # of a fit whose client was disturbed, on a machine that other work keeps busy
# Calls into `distributed` that a fit makes; those that run on the client's own loop among them.
CALLS = ("submit", "compute", "persist", "gather", "run", "run_on_scheduler", "cancel", "get_versions", "sync")
Disturb = Callable[[Client], object]


class DisturbedClient(Client):
    """A client to which something is done at one of the calls into it.

    Parameters
    ----------
    at : int
        Number of the call, from 1.
    disturb : callable
        Given the client, does it.
    before : bool
        The call begins when that is done; else at the same time.
    """

    def __init__(self, *arguments: Any, at: int, disturb: Disturb, before: bool, **options: Any) -> None:
        self.calls: list[str] = []  # names of those that were counted
        self.struck, self._at, self._before = "", at, before
        self._disturb, self._counting, self._lock = disturb, False, threading.Lock()
        super().__init__(*arguments, **options)

    def begin(self) -> None:
        """Count calls from now on."""
        self._counting = True

    def end(self) -> None:
        """Count no more."""
        self._counting = False

    def meet(self, name: str) -> None:
        """Count a call, and disturb it if it is the one."""
        with self._lock:
            if not self._counting:
                return
            self.calls.append(name)
            if len(self.calls) != self._at:
                return
            self._counting, self.struck = False, name  # what it takes are no calls of the fit
        thread = threading.Thread(target=self._do, daemon=True)
        thread.start()
        if self._before and not _on_a_loop():
            thread.join()

    def _do(self) -> None:
        with suppress(Exception):  # workers without nannies do not come back by themselves
            self._disturb(self)


def _on_a_loop() -> bool:
    """Whether this thread runs a loop, which what is done to the client needs."""
    with suppress(RuntimeError):
        return asyncio.get_running_loop() is not None
    return False


def _met(name: str) -> Callable[..., Any]:
    method = getattr(Client, name)

    @wraps(method)
    def call(self: DisturbedClient, *arguments: Any, **options: Any) -> Any:
        self.meet(name)
        return method(self, *arguments, **options)

    return call


for _name in CALLS:
    setattr(DisturbedClient, _name, _met(_name))


def cancel(client: Client) -> None:
    """Cancel all that the client waits for."""
    client.cancel([Future(key, client) for key in list(client.futures)])


def restart(client: Client) -> None:
    """Restart the cluster; workers without nannies end, and a supervisor starts others."""
    client.restart(wait_for_workers=False)


def retire(client: Client, count: int = 1) -> None:
    """Retire some of the workers, which end."""
    client.retire_workers(sorted(client.scheduler_info(n_workers=-1)["workers"])[:count])


class Disturbed(OnWorkers):
    """Tries on workers that are forked, by clients that something is done to."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster: SeparateCluster | None = None
        self._calls: dict[str, int] = {}
        self._stale = False

    def cluster(self) -> SeparateCluster:
        """The workers that tries share, all of them there."""
        if self._cluster is None:
            self._cluster = SeparateCluster(self.folder, 2)
        if self._stale:  # workers that were restarted or retired take a while to end
            for worker in self._cluster.workers:
                worker.kill()
                worker.wait()
        self._stale = False
        self._cluster.wait()
        return self._cluster

    def run(self, family: Family, at: int, disturb: Disturb, *, before: bool, away: float) -> tuple[Answer, Answer]:
        """What a fit answers whose client is disturbed at a call, and how many calls it made and which was struck."""
        cluster, self._stale = self.cluster(), at > 0 and disturb not in (cancel, Client.close)

        def fit(tell: Tell) -> None:
            faulthandler.dump_traceback_later(HANG_SECONDS - 20)  # in fit.txt: where a fit hangs
            with DisturbedClient(cluster.address, at=at, disturb=disturb, before=before, timeout=30) as client:
                client.begin()
                paths = {"scratch": str(self.scratch)}
                answer = answer_of(partial(fitted, family, self.things.store_of(family), self.folder / "out", **paths))
                client.end()
                tell({"calls": len(client.calls), "struck": client.struck})
                tell(answer)

        process, began, found = Process(fit, self.folder / "fit.txt"), time.monotonic(), []
        try:
            while len(found) < 2 and time.monotonic() < began + HANG_SECONDS:
                if process.ready(0.01):
                    found.append(process.answer(1))
                    if "broken" in found[-1]:
                        break
                cluster.revive(away)
        finally:
            process.end()
        told = found[0] if found and "calls" in found[0] else {"calls": 0, "struck": "?"}
        hang = {"broken": f"hang: no end within {HANG_SECONDS:g} s"}
        return (found[-1] if found and "calls" not in found[-1] else hang), told

    def calls(self, family: Family) -> int:
        """Calls of a fit that nothing disturbs, whose bits are looked at too."""
        if family.name not in self._calls:
            answer, told = self.run(family, 0, cancel, before=True, away=0.0)
            if answer != {"digest": self.expected(family)}:
                raise RuntimeError(f"{family.name} undisturbed: {answer}")
            self._calls[family.name] = told["calls"]
        return self._calls[family.name]

    def disturb(self, how: str, family: Family, disturb: Disturb, rng: np.random.Generator, *, named: bool) -> Outcome:
        """One try: the same bits, or where ``named`` one line that names what was done."""
        at = int(rng.integers(1, self.calls(family) + 1))
        before, away = bool(rng.integers(2)), float(rng.uniform(0, 1))
        answer, told = self.run(family, at, disturb, before=before, away=away)
        when = "before" if before else "at"
        fault = f"{how} {when} call {at}, {told['struck']}, {family.name}, workers {away:.2f} s away"
        outcome = with_leftovers(judge(answer, self.expected(family), fault), self.left())
        if outcome.what == NAMED and not (named and _is_one_line(outcome.detail)):
            return Outcome(BREAK, fault, outcome.detail)
        return outcome


def _is_one_line(text: str) -> bool:
    return text.startswith("ClusterError: ") and "\n" not in text and len(text) < 200


def _kind(name: str, ways: dict[str, Disturb], *, named: bool) -> Kind:
    def prepare(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
        bench = Disturbed(folder)

        def try_once(number: int, rng: np.random.Generator) -> Outcome:
            how, family = parts(number, list(ways), ON_WORKERS)
            return bench.disturb(how, family, ways[how], rng, named=named)

        return try_once

    return Kind(name, 200.0, prepare)


def _spin(tell: Tell) -> None:
    """Keep a core busy."""
    while True:
        pass


def compete(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of workers and closed clients while a process that only computes runs on every core."""
    for i in range(os.cpu_count() or 1):  # they end with the bench
        Process(_spin, folder / f"spin-{i}.txt")
    for name in ("kills", "closes"):
        (folder / name).mkdir(exist_ok=True)
    kills, closes = KeptWorkers(folder / "kills"), Disturbed(folder / "closes")

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        what, how, family = parts(number, ("kill", "close"), KILLS, ON_WORKERS)
        if what == "kill":
            return kills.kill(family, how, rng, at_event=bool(rng.integers(2)))
        return closes.disturb("closed", family, Client.close, rng, named=True)

    return try_once


KINDS = [
    Kind("competing load", 400.0, compete),
    _kind("cancellations", {"cancelled": cancel}, named=True),
    _kind("closed clients", {"closed": Client.close}, named=True),
    _kind("restarts", {"restarted": restart}, named=True),
    _kind("retired workers", {"retired one": retire, "retired both": partial(retire, count=2)}, named=False),
]
