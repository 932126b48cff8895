"""Clients that are killed and go on in another process, and schedulers that are killed under a client."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tries.base import Kind, parts
from tries.outcomes import BREAK, NAMED, Outcome, judge, left_in, with_leftovers
from tries.processes import Answer, Process, SeparateCluster, answer_of, run
from tries.things import FAMILIES, ON_WORKERS, SECONDS, Family, Things, fitted, fresh

TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
LOST_SECONDS = 120.0  # within which a fit ends that has lost its scheduler


class Touches:
    """Kills this process the n-th time it touches a path that contains a word."""

    def __init__(self, word: str, moment: int) -> None:
        self.word, self.moment, self.count = word, moment, 0

    def __call__(self, event: str, found: tuple[Any, ...]) -> None:
        if event in TOUCHES and found and self.word in str(found[0]):
            self.count += 1
            if self.count == self.moment:
                os.kill(os.getpid(), signal.SIGKILL)


class Clients:
    """Fits with a checkpoint that are killed, here or on workers, and go on in a fresh process."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self._cluster: SeparateCluster | None = None
        self._writes: dict[str, int] = {}
        self._usual: dict[tuple[str, bool], float] = {}

    def _place(self, function: Callable[[], str], on_workers: bool) -> Callable[[], str]:
        if not on_workers:
            return function
        if self._cluster is None or not self._cluster.sound():
            if self._cluster is not None:
                self._cluster.end()
            self._cluster = SeparateCluster(self.folder, 2)
        return self._cluster.connected(function)

    def _fit(self, family: Family, work: Path, **more: Any) -> str:
        paths = {"checkpoint": str(work / "c.zarr"), "scratch": str(work / "scratch")}
        return fitted(family, self.things.store_of(family), self.folder / "out", **paths, **more)

    def _calm(self, family: Family, on_workers: bool) -> float:
        """Seconds of a fit that nobody kills; touches of its checkpoint are counted too."""
        if (family.name, on_workers) not in self._usual:
            work, count = _work_folder(self.folder), self.folder / "count"

            def counted() -> str:
                touches = Touches("c.zarr", -1)
                sys.addaudithook(touches)
                digest = self._fit(family, work)
                count.write_text(str(touches.count))
                return digest

            began = time.monotonic()
            answer = run(self._place(counted, on_workers), self.folder, SECONDS)
            expected = {"digest": self.things.model_digest(family)}
            if answer != expected:
                raise RuntimeError(f"{family.name} with a checkpoint, undisturbed: {answer}")
            self._usual[family.name, on_workers] = time.monotonic() - began
            self._writes[family.name] = int(count.read_text())
        return self._usual[family.name, on_workers]

    def kill(self, number: int, rng: np.random.Generator) -> Outcome:
        """One try: killed at a moment, or at a touch of its checkpoint; then gone on with."""
        family, at_write, where = parts(number, FAMILIES, (False, True), (False, True))
        on_workers = where and not family.in_memory
        usual = self._calm(family, on_workers)
        for _ in range(6):
            work = _work_folder(self.folder)
            moment = int(rng.integers(1, self._writes[family.name] + 1)) if at_write else 0
            after = float(rng.uniform(0, usual))
            killed = self._kill_once(family, work, moment, after, on_workers)
            when = f"at touch {moment} of its checkpoint" if at_write else f"after {after:.2f} s"
            fault = f"client killed {when}, {family.name}{', on workers' if on_workers else ''}"
            if killed:
                break
            usual /= 2
        else:
            return Outcome(BREAK, fault, "the fit was always over before it was killed")
        resumed = run(self._place(partial(self._fit, family, work, resume=True), on_workers), self.folder, SECONDS)
        left = left_in(work, "c.zarr", "scratch") + left_in(work / "scratch")
        outcome = with_leftovers(judge(resumed, self.things.model_digest(family), fault), left)
        if outcome.what == NAMED:  # the checkpoint of a killed fit has to be one
            return Outcome(BREAK, fault, f"does not go on: {outcome.detail}")
        return outcome

    def _kill_once(self, family: Family, work: Path, moment: int, after: float, on_workers: bool) -> bool:
        """Whether the fit was killed before its end."""

        def fit() -> str:
            if moment:
                sys.addaudithook(Touches("c.zarr", moment))
            return self._fit(family, work)

        place = self._place(fit, on_workers)
        process = Process(lambda tell: tell(answer_of(place)), self.folder / "killed.txt")
        try:
            if not moment:
                time.sleep(after)
                process.kill()
            found = process.answer(SECONDS)
            return "digest" not in found and "named" not in found
        finally:
            process.end()


def _work_folder(folder: Path) -> Path:
    work = fresh(folder / "work")
    (work / "scratch").mkdir()
    return work


def kill_clients(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of the process that fits."""
    return Clients(folder).kill


class Schedulers:
    """Fits whose scheduler is killed: a named error within the time that is promised."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self._usual: dict[str, float] = {}

    def _fit(self, family: Family, work: Path, after: float | None) -> tuple[Answer, float, bool]:
        """The answer, seconds from the connection to it, and whether the scheduler was killed before."""
        cluster = SeparateCluster(self.folder, 2)

        def fit(tell: Callable[[Answer], None]) -> str:
            tell({"connected": True})
            return fitted(family, self.things.store_of(family), self.folder / "out", scratch=str(work / "scratch"))

        try:
            client = Process(
                lambda tell: tell(answer_of(cluster.connected(partial(fit, tell)))), self.folder / "client.txt"
            )
            client.answer(SECONDS)
            began, killed = time.monotonic(), False
            if after is not None:
                time.sleep(after)
                killed = client.running()
                cluster.scheduler.kill()
            answer = client.answer(LOST_SECONDS)
            seconds = time.monotonic() - began
            client.end()
            return answer, seconds, killed
        finally:
            cluster.end()

    def kill(self, number: int, rng: np.random.Generator) -> Outcome:
        """One try: again, and earlier, where the fit was over before."""
        (family,) = parts(number, ON_WORKERS)
        expected = self.things.model_digest(family)
        if family.name not in self._usual:
            self._usual[family.name] = self._fit(family, _work_folder(self.folder), None)[1]
        usual = self._usual[family.name]
        for _ in range(6):
            work, after = _work_folder(self.folder), float(rng.uniform(0, usual))
            answer, _, killed = self._fit(family, work, after)
            outcome = judge(answer, expected, f"scheduler killed after {after:.2f} s, {family.name}")
            outcome = with_leftovers(outcome, left_in(work / "scratch"))
            if killed or outcome.what == BREAK:
                return outcome
            usual /= 2
        return outcome


def kill_schedulers(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Kills of the scheduler while a client fits."""
    return Schedulers(folder).kill


KINDS = [
    Kind("client kills", 400.0, kill_clients),
    Kind("scheduler kills", 400.0, kill_schedulers),
]
