"""System calls that fail: the n-th of its kind on what an operation writes or reads, by a preloaded library."""

from __future__ import annotations

import ctypes
import errno
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tries.base import Kind, parts
from tries.limits import checked
from tries.outcomes import SAME, Outcome, digest_of, judge
from tries.processes import Answer, run, shell
from tries.things import OPERATIONS, SECONDS, Operation, Things, fresh

SOURCE = Path(__file__).with_name("failing_calls.c")
CALLS = ("open", "read", "write", "fsync", "rename", "mkdir", "unlink", "posix_fallocate", "opendir")
REMOVING = ("open", "unlink", "opendir")  # what removing a folder is made of
HALF = 0
FAILURES = {"EIO": errno.EIO, "EINTR": errno.EINTR, "short": HALF, "EAGAIN": errno.EAGAIN, "EIO for good": errno.EIO}


def build(folder: Path) -> Path | None:
    """The library that is to be preloaded; None where there is no C compiler."""
    compiler, library = shutil.which("cc") or shutil.which("gcc"), folder / "failing_calls.so"
    if compiler is None:
        return None
    if not library.exists():
        subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library


class Failing:
    """Operations of which a system call fails."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self.library = ctypes.CDLL(str(build(folder)))
        self.library.faults_count.restype = ctypes.c_long
        self._counts: dict[tuple[str, str], dict[str, int]] = {}

    def _arm(self, call: str, nth: int, failure: str, prefix: Path) -> None:
        self.library.faults_arm(
            CALLS.index(call), ctypes.c_long(nth), FAILURES[failure], failure.endswith("good"), str(prefix).encode()
        )

    def _counted(self, operation: Operation, where: str, prefix: Path) -> dict[str, int]:
        """How often an operation that nothing disturbs makes each call."""
        if (operation.name, where) not in self._counts:
            disk, plain = fresh(self.folder / "disk"), fresh(self.folder / "plain")

            def counted() -> str:
                self._arm(CALLS[0], -1, "EIO", prefix)
                operation.run(self.things, disk, plain)
                return json.dumps({call: self.library.faults_count(i) for i, call in enumerate(CALLS)})

            found = json.loads(run(counted, self.folder, SECONDS)["digest"])
            self._counts[operation.name, where] = {call: count for call, count in found.items() if count}
        return self._counts[operation.name, where]

    def try_once(self, number: int, rng: np.random.Generator) -> Outcome:
        """Fail one call of those that there are."""
        operation, where, by_shell = parts(number, OPERATIONS, ("written", "written", "read"), (False, False, True))
        expected = operation.expected(self.things)
        prefix = self.folder / "disk" if where == "written" else self.things.folder
        counts = self._counted(operation, where, prefix)
        if not counts:  # rows in memory write no scratch
            return Outcome(SAME, f"{operation.name}: makes no calls there")
        call, failure = (each[int(rng.integers(len(each)))] for each in (list(counts), list(FAILURES)))
        if failure == "short" and call not in ("read", "write"):
            failure = "EIO"
        nth = int(rng.integers(1, counts[call] + 1))
        disk, plain = fresh(self.folder / "disk"), fresh(self.folder / "plain")
        answer = self._run(operation, disk, plain, lambda: self._arm(call, nth, failure, prefix), by_shell)
        fault = f"{operation.name}{', shell' if by_shell else ''}: {failure} of {call} {nth} of what is {where}"
        stuck = failure.endswith("good") or call in REMOVING
        return checked(judge(answer, expected, fault), operation, disk, plain, expected, stuck=stuck)

    def _run(self, operation: Operation, disk: Path, plain: Path, arm: Callable[[], None], by_shell: bool) -> Answer:
        if by_shell and operation.command is not None:
            arguments = operation.command(self.things, disk, plain)
            return shell(arguments, operation.output(disk, plain), self.folder, SECONDS, arm)
        done = run(lambda: str(operation.python(self.things, disk, plain)), self.folder, SECONDS, arm)
        if "digest" in done:  # what it made is read where nothing fails
            return run(lambda: digest_of(operation.output(disk, plain)), self.folder, SECONDS)
        return done


def fail_calls(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """System calls that fail, once or from then on."""
    return Failing(folder).try_once


KINDS = [Kind("failing system calls", 300.0, fail_calls, preload=True)]
