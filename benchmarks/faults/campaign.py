"""Breaks whatever a fit, an ingestion, a prediction or a model on disk stands on, thousands of times, and keeps count.

    python benchmarks/faults/campaign.py [--tries 20] [--kinds "worker kills; stops"] [--minutes 10] [--out FILE]
    python benchmarks/faults/campaign.py --families "cells; newton of sparse rows" --kinds "client kills"
    python benchmarks/faults/campaign.py --table --out FILE       # what was tried so far, as Markdown
    python benchmarks/faults/campaign.py --again "corruptions" 17 # one try once more

A try ends with the bits of the run that nothing disturbed, with one named error within its time, or it is a break:
wrong bits, a hang, a raw exception, something half-written or left behind. Tries are told by kind, number, seed and
families; those that are in FILE, a line of JSON each, are not made again, so that a campaign may be cut and go on. The
status is 1 if anything broke.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "tests")]  # rows and stores are made as the tests make them

from tries import (  # noqa: E402
    certificates,
    client_faults,
    damage,
    disturbed,
    fuzzing,
    generations,
    kept_workers,
    limits,
    system_calls,
    worker_faults,
    writer_faults,
)
from tries.base import Kind, chosen, generator  # noqa: E402
from tries.outcomes import ACCEPTED, BREAK, NAMED, SAME  # noqa: E402
from tries.things import NAMES  # noqa: E402

MODULES = (
    worker_faults,
    kept_workers,
    disturbed,
    client_faults,
    writer_faults,
    limits,
    damage,
    generations,
    system_calls,
    fuzzing,
    certificates,
)
KINDS: dict[str, Kind] = {kind.name: kind for module in MODULES for kind in module.KINDS}
PREPARATION_SECONDS = 300.0


class Bench:
    """A process that makes tries of one kind, and that is killed with all it started where one does not end."""

    def __init__(self, kind: Kind, folder: Path, seed: int, families: str = "") -> None:
        self.kind, self.folder, self.seed, self.families = kind, folder, seed, families
        self._process: subprocess.Popen[str] | None = None

    def _begin(self) -> subprocess.Popen[str]:
        environment = os.environ | {"CAMPAIGN_FAMILIES": self.families}
        if self.kind.preload:
            environment["LD_PRELOAD"] = str(system_calls.build(self.folder))
        command = [sys.executable, str(HERE / "campaign.py"), "--bench", self.kind.name, "--seed", str(self.seed)]
        with (self.folder / "bench.txt").open("a") as said:
            process = subprocess.Popen(
                [*command, "--folder", str(self.folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                stderr=said, env=environment, start_new_session=True,
            )  # fmt: skip
        if not self._answer(process, PREPARATION_SECONDS):
            self._kill(process)
            raise SystemExit(f"{self.kind.name}: the bench does not start; see {self.folder / 'bench.txt'}")
        return process

    def _answer(self, process: subprocess.Popen[str], seconds: float) -> dict[str, Any] | None:
        """What it says next; None where that takes too long, nothing where it died."""
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], seconds)[0]:
            return None
        line = process.stdout.readline()
        return json.loads(line) if line else {}

    def try_once(self, number: int) -> dict[str, Any]:
        """The record of one try."""
        if self._process is None:
            self._process = self._begin()
        assert self._process.stdin is not None
        began = time.monotonic()
        self._process.stdin.write(f"{number}\n")
        self._process.stdin.flush()
        found = self._answer(self._process, self.kind.seconds)
        if not found:
            why = "hang" if found is None else f"the bench died: {self._said()}"
            found = {"outcome": BREAK, "fault": "", "detail": why}
            self.end()
        seconds = round(time.monotonic() - began, 2)
        told = {"kind": self.kind.name, "number": number, "seed": self.seed, "families": self.families}
        return {**told, **found, "seconds": seconds}

    def _said(self) -> str:
        return (self.folder / "bench.txt").read_text()[-600:]

    def end(self) -> None:
        """End the process, and its cluster."""
        if self._process is not None:
            self._kill(self._process)
        self._process = None

    @staticmethod
    def _kill(process: subprocess.Popen[str]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # of a number that nobody took
                pipe.close()


def be_bench(kind: Kind, folder: Path, seed: int) -> None:
    """Make the tries whose numbers come on standard input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try_once = kind.prepare(folder)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        outcome = try_once(int(line), generator(seed, kind.name, int(line)))
        found = {"outcome": outcome.what, "fault": outcome.fault, "detail": outcome.detail}
        print(json.dumps(found), file=answers, flush=True)


def records_of(path: Path) -> list[dict[str, Any]]:
    """What was tried so far; a last line that was cut off is none."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        with suppress(ValueError):
            found.append(json.loads(line))
    return found


def table(records: list[dict[str, Any]]) -> str:
    """What was tried, as Markdown."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    longest: dict[str, float] = defaultdict(float)
    for each in records:
        counts[each["kind"]][each["outcome"]] += 1
        longest[each["kind"]] = max(longest[each["kind"]], each["seconds"])
    columns = [SAME, NAMED, ACCEPTED, BREAK]
    lines = ["| fault | tried | " + " | ".join(columns) + " | longest |", "|---|" + "---:|" * 6]
    for name in KINDS:
        cells = [counts[name].total(), *(counts[name][each] for each in columns)]
        lines.append(f"| {name} | {' | '.join(map(str, cells))} | {longest[name]:.0f} s |")
    return "\n".join(lines)


def breaks(records: list[dict[str, Any]]) -> str:
    """Every break, a line each."""
    broken = [each for each in records if each["outcome"] == BREAK]
    return "\n".join(f"{e['kind']} {e['number']}: {e['fault']}: {' '.join(e['detail'].split())[:300]}" for e in broken)


@contextmanager
def folder_of(path: str | None) -> Iterator[Path]:
    """The folder that was named, or one for the time being."""
    if path is not None:
        Path(path).mkdir(parents=True, exist_ok=True)
        yield Path(path).resolve()
        return
    with tempfile.TemporaryDirectory(prefix="campaign-", ignore_cleanup_errors=True) as made:
        yield Path(made).resolve()


def run(options: argparse.Namespace, chosen: list[Kind]) -> None:
    """Make what is not in the file yet, kind by kind."""
    path = Path(options.out)
    done = {(each["kind"], each["number"], each["seed"], each.get("families", "")) for each in records_of(path)}
    end = time.monotonic() + 60 * options.minutes
    with folder_of(options.folder) as folder, path.open("a") as file:
        for kind in chosen:
            place = folder / kind.name.replace(" ", "-").replace(",", "")
            place.mkdir(exist_ok=True)
            bench = Bench(kind, place, options.seed, options.families)
            try:
                for number in range(options.piece[0], options.tries, options.piece[1]):
                    if (kind.name, number, options.seed, options.families) in done:
                        continue
                    if time.monotonic() > end:
                        return
                    found = bench.try_once(number)
                    print(json.dumps(found), file=file, flush=True)
                    if found["outcome"] == BREAK:
                        print(breaks([found]), file=sys.stderr, flush=True)
            finally:
                bench.end()


def again(name: str, number: int, options: argparse.Namespace) -> int:
    """Make one try, and print what becomes of it."""
    with folder_of(options.folder) as place:
        bench = Bench(KINDS[name], place, options.seed, options.families)
        try:
            found = bench.try_once(number)
        finally:
            bench.end()
    print(json.dumps(found, indent=1))
    return int(found["outcome"] == BREAK)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign, or a part of it, and print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="campaign.jsonl", help="finished tries, a line each")
    parser.add_argument("--tries", type=int, default=300, help="of each kind; the first few have every way of a fault")
    parser.add_argument("--kinds", help=f"some of, with semicolons between: {'; '.join(KINDS)}")
    parser.add_argument("--families", default="", help=f"some of, with semicolons between: {'; '.join(NAMES)}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--piece", type=_piece, default=(0, 1), metavar="I/N", help="one of N pieces, I from 0")
    parser.add_argument("--minutes", type=float, default=math.inf, help="begin no try after so many")
    parser.add_argument("--folder", help="where everything is made; default: the system's temporary folder")
    parser.add_argument("--table", action="store_true", help="only print what is in FILE")
    parser.add_argument("--again", nargs=2, metavar=("KIND", "NUMBER"), help="one try once more")
    parser.add_argument("--bench", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if not chosen(NAMES, options.families):
        parser.error(f"--families: none is called {options.families!r}")
    if options.bench:
        be_bench(KINDS[options.bench], Path(options.folder), options.seed)
        return 0
    if options.again:
        return again(options.again[0], int(options.again[1]), options)
    if not options.table:
        run(options, _wanted(options.kinds))
    found = records_of(Path(options.out))
    print(table(found))
    print(breaks(found))
    return int(any(each["outcome"] == BREAK for each in found))


def _piece(text: str) -> tuple[int, int]:
    i, n = map(int, text.split("/"))
    if not 0 <= i < n:
        raise ValueError(text)
    return i, n


def _wanted(names: str | None) -> list[Kind]:
    """The kinds that are named, or whose names begin with what is none's name; all that can be tried here."""
    found = [KINDS[name] for name in chosen(KINDS, names)]
    return [kind for kind in found if not kind.preload or system_calls.build(Path(tempfile.mkdtemp()))]


if __name__ == "__main__":
    sys.exit(main())
