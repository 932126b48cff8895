"""Disks that are full and memory that is short."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tries.base import Kind, parts
from tries.outcomes import BREAK, NAMED, Outcome, digest_of, judge, left_in, with_leftovers
from tries.processes import Answer, SeparateCluster, answer_of, run, shell
from tries.things import ON_WORKERS, OPERATIONS, SECONDS, Operation, Things, fitted, fresh

PAGE = 4096


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator[None]:
    """A file system of its own at ``folder``, of ``size`` bytes."""
    fresh(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def sizes_below(folder: Path) -> list[int]:
    """Bytes of all files."""
    return [path.stat().st_size for path in folder.rglob("*") if path.is_file()]


class Disks:
    """Operations on a disk of its own, or under a limit of the size of files."""

    def __init__(self, folder: Path) -> None:
        self.things, self.folder = Things(folder), folder
        self.ways = ("file size", "disk", "disk, shell", "file size, shell", "disk, workers")
        if os.geteuid() != 0:
            self.ways = ("file size", "file size, shell")  # only root mounts
        self._cluster: SeparateCluster | None = None

    def try_once(self, number: int, rng: np.random.Generator) -> Outcome:
        operation, way = parts(number, OPERATIONS, self.ways)
        expected = operation.expected(self.things)
        disk, plain = self.folder / "disk", fresh(self.folder / "plain")
        if way.startswith("disk"):
            size = PAGE * int(2 ** rng.uniform(0, 6))
            with tmpfs(disk, size):
                answer = self._run(operation, way, disk, plain, None)
                outcome = judge(answer, expected, f"{operation.name} on {size} bytes ({way})")
                return checked(outcome, operation, disk, plain, expected)
        fresh(disk)
        size = int(2 ** rng.uniform(4, 14))
        limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))  # noqa: E731
        answer = self._run(operation, way, disk, plain, limit)
        outcome = judge(answer, expected, f"{operation.name}, files up to {size} bytes ({way})")
        return checked(outcome, operation, disk, plain, expected)

    def _run(self, operation: Operation, way: str, disk: Path, plain: Path, limit: Callable[[], None] | None) -> Answer:
        if way.endswith("shell") and operation.command is not None:
            arguments = operation.command(self.things, disk, plain)
            return shell(arguments, operation.output(disk, plain), self.folder, SECONDS, limit)
        function = lambda: operation.run(self.things, disk, plain)  # noqa: E731
        if way.endswith("workers") and operation.in_workers:
            function = self._workers().connected(function)
        return run(function, self.folder, SECONDS, limit)

    def _workers(self) -> SeparateCluster:
        if self._cluster is None or not self._cluster.sound():
            if self._cluster is not None:
                self._cluster.end()
            self._cluster = SeparateCluster(self.folder, 2)
        return self._cluster


def checked(
    outcome: Outcome, operation: Operation, disk: Path, plain: Path, expected: str, *, stuck: bool = False
) -> Outcome:
    """The outcome, or a break where something is half-written or left behind.

    An error may come once the output is there, as it has to be; and a checkpoint stays, whole. ``stuck``: removing
    does not work either, so what is written aside may stay.
    """
    output = operation.output(disk, plain)
    for folder in (disk, plain):
        names = left_in(folder, *operation.may_stay, *([] if outcome.what == NAMED else [output.name]))
        if output.name in names and answer_of(lambda: digest_of(output)) == {"digest": expected}:
            names.remove(output.name)
        left = [name for name in names if not (stuck and name.startswith("."))]
        outcome = with_leftovers(outcome, left)
        for name in set(os.listdir(folder)) & set(operation.may_stay):
            found = answer_of(lambda path=folder / name: digest_of(path))
            if "digest" not in found:
                return Outcome(BREAK, outcome.fault, f"half-written: {found}")
    return outcome


def fill_disks(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Full disks and limits of files' sizes."""
    return Disks(folder).try_once


def limit_memory(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """``memory_limit`` of any size: one error, or the same bits on workers as without."""
    things = Things(folder)
    clusters: list[SeparateCluster] = []

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        (family,), limit = parts(number, ON_WORKERS), f"{int(2 ** rng.uniform(10, 31))}B"
        fit = lambda: fitted(family, things.store_of(family), folder / "out", memory_limit=limit)  # noqa: E731
        here = run(fit, folder, SECONDS)
        fault = f"{family.name}, memory_limit={limit}"
        if "digest" not in here:
            return judge(here, None, fault)
        if not clusters:
            clusters.append(SeparateCluster(folder, 2))
        return judge(run(clusters[0].connected(fit), folder, SECONDS), here["digest"], f"{fault}, on workers")

    return try_once


KINDS = [
    Kind("full disks", 400.0, fill_disks),
    Kind("memory limits", 400.0, limit_memory),
]
