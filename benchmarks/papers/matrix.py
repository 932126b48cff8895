"""The matrix of a benchmark: which cells there are, and running those that are not done, each in a fresh process.

Every record is a line of ``results.jsonl``, written when its cell is done. A bench that was interrupted is run again by
the same command and goes on where it stopped; a line that was cut short is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dask.system import CPU_COUNT

from benchmarks.papers.cell import Cell
from benchmarks.papers.machine import code_digest, describe_machine
from benchmarks.papers.methods import ALL_METHODS
from benchmarks.papers.sets import check_name, split_of
from dask_odm.diagnostics.summaries import plain
from dask_odm.errors import InputError

RESULTS = "results.jsonl"
ROOT = Path(__file__).resolve().parents[2]  # of the checkout, from which a cell's process imports this folder
Say = Callable[[str], None]


@dataclass(frozen=True)
class Matrix:
    """What a benchmark compares.

    Parameters
    ----------
    data, methods, kernels : sequence of str
    seeds : int
        Splits of every data set.
    rows : int or None
        Rows taken of every data set; None: all.
    cores : sequence of int
        Numbers of cores that SODM runs on besides, for its speed-up.
    timeout : float
        Seconds of a cell.
    source : str or None
        Folder of LIBSVM files.
    fetch : bool
        Fetch data sets that are not there.
    """

    data: Sequence[str]
    methods: Sequence[str]
    kernels: Sequence[str] = ("rbf", "linear")
    seeds: int = 1
    rows: int | None = None
    cores: Sequence[int] = ()
    timeout: float = 600.0
    source: str | None = None
    fetch: bool = False

    def check(self) -> None:
        """Raise InputError for what cannot be run."""
        for name in self.methods:
            if name not in ALL_METHODS:
                raise InputError(f"there is no method {name!r}; there are {', '.join(ALL_METHODS)}.")
        for name in self.data:
            check_name(name, self.source, fetch=self.fetch)
        if self.cores and not hasattr(os, "sched_setaffinity"):
            raise InputError("--cores: this system does not let a process choose its cores.")
        if any(not 1 <= count <= CPU_COUNT for count in self.cores):
            raise InputError(f"--cores: this machine has {CPU_COUNT}. Got {', '.join(map(str, self.cores))} instead.")

    def cells(self) -> Iterator[Cell]:
        """Cells in the order they are run: data set by data set, settings before what needs them."""
        for data in self.data:
            for seed in range(self.seeds):
                for kernel in self.kernels:
                    yield from self._cells_of(data, seed, kernel)

    def _cells_of(self, data: str, seed: int, kernel: str) -> Iterator[Cell]:
        methods = {name: ALL_METHODS[name] for name in self.methods if kernel in ALL_METHODS[name].kernels}
        for family in sorted({each.family for each in methods.values() if each.fixed is None}):
            yield Cell(data, seed, "tune", f"{family} {kernel}", self.rows)
        for name, method in methods.items():
            if method.installed:
                yield Cell(data, seed, name, kernel, self.rows)
        if "sodm" in methods:
            for count in self.cores:
                yield Cell(data, seed, "sodm", kernel, self.rows, count)


@dataclass
class Results:
    """The records of a folder, by cell.

    Attributes
    ----------
    path : Path
    machine : dict
        Of the last run.
    records : dict
        A record for every cell that is done, by its key.
    """

    path: Path
    machine: dict[str, Any] = field(default_factory=dict)
    records: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> Results:
        """What a folder holds; lines that are none are left out, and so run again."""
        found = cls(folder / RESULTS)
        text = found.path.read_bytes().decode("utf-8", "replace") if found.path.exists() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
                if "machine" in record:
                    found.machine = record["machine"]
                else:
                    found.records[Cell(**record["cell"]).key] = record
            except (ValueError, KeyError, TypeError):
                continue
        return found

    def add(self, record: dict[str, Any]) -> None:
        """Append a record to the file, on a line of its own whatever the file ends with."""
        if "machine" in record:
            self.machine = record["machine"]
        else:
            self.records[Cell(**record["cell"]).key] = record
        with open(self.path, "a+b") as file:
            cut = file.tell() > 0 and _last_byte(file) != b"\n"
            file.write(b"\n" * cut + json.dumps(plain(record), allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    @property
    def done(self) -> list[dict[str, Any]]:
        """Records of methods that ended well."""
        return [r for r in self.records.values() if "error" not in r and r["cell"]["method"] != "tune"]


def _last_byte(file: Any) -> bytes:
    file.seek(-1, os.SEEK_END)
    last: bytes = file.read(1)
    return last


def run_matrix(matrix: Matrix, folder: Path, say: Say) -> Results:
    """Run the cells of a matrix that ``folder`` has no record of.

    Raises
    ------
    InputError
        An unknown method, or a data set that cannot be had.
    """
    matrix.check()
    folder.mkdir(parents=True, exist_ok=True)
    results = Results.read(folder)
    missing = [cell for cell in matrix.cells() if cell.key not in results.records]
    if missing:
        results.add({"machine": describe_machine()})
    code = code_digest()
    for number, cell in enumerate(missing, 1):
        settings = _settings_of(cell, results)
        if settings is None:
            record: dict[str, Any] = {"error": "no settings were chosen for it"}
        else:
            split_of(cell.data, cell.seed, matrix.source, folder / "data", rows=cell.rows)
            record = run_process(cell, settings, matrix, folder)
        results.add({"cell": asdict(cell), **record, "code": code})
        say(f"[{number}/{len(missing)}] {describe(cell)}: {_outcome(record)}")
    return results


def _settings_of(cell: Cell, results: Results) -> Mapping[str, float] | None:
    """What was chosen for the family of a cell's method, or is fixed; None where choosing failed."""
    if cell.method == "tune":
        return {}
    method = ALL_METHODS[cell.method]
    if method.fixed is not None:
        return method.fixed
    chosen = Cell(cell.data, cell.seed, "tune", f"{method.family} {cell.kernel}", cell.rows)
    found: Mapping[str, float] | None = results.records[chosen.key].get("settings")
    return found


def run_process(cell: Cell, settings: Mapping[str, float], matrix: Matrix, folder: Path) -> dict[str, Any]:
    """What a cell's process wrote before it ended, or why it wrote nothing."""
    asked = {
        "cell": asdict(cell),
        "settings": dict(settings),
        "folder": matrix.source,
        "cache": str(folder / "data"),
    }
    command = [sys.executable, "-m", "benchmarks.papers.cell"]
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    with _on_cores(cell.cores):
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
    try:
        out, errors = process.communicate(json.dumps(asked).encode(), timeout=matrix.timeout)
        late = False
    except subprocess.TimeoutExpired:
        process.kill()
        (out, errors), late = process.communicate(), True
    except BaseException:
        process.kill()
        process.communicate()
        raise
    return _told(out, errors, process.returncode, matrix.timeout if late else None)


@contextmanager
def _on_cores(count: int | None) -> Iterator[None]:
    """Processes that are started within the block may use so many cores."""
    if count is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _told(out: bytes, errors: bytes, status: int, timeout: float | None) -> dict[str, Any]:
    """The lines of a process as one record; its first is whole even if it ran out of time at the second."""
    found: dict[str, Any] = {}
    for line in out.splitlines():
        with suppress(ValueError):  # a line that was cut short
            found |= json.loads(line)
    if found:
        return found
    if timeout is not None:
        return {"error": f"not done after {timeout:g} s"}
    last = errors.decode("utf-8", "replace").strip().splitlines()
    return {"error": last[-1] if last else f"its process ended with status {status}"}


def describe(cell: Cell) -> str:
    """A cell in a few words."""
    cores = "" if cell.cores is None else f", {cell.cores} core{'s' * (cell.cores > 1)}"
    what = f"choosing settings, {cell.kernel}" if cell.method == "tune" else f"{cell.method}, {cell.kernel}"
    return f"{cell.data} split {cell.seed}: {what}{cores}"


def _outcome(record: Mapping[str, Any]) -> str:
    if "error" in record:
        return str(record["error"])
    if "fit" not in record:
        return ", ".join(f"{name} {value:g}" for name, value in record["settings"].items())
    gap = "" if record["gap"] is None else f", gap {record['gap']:.1e}"
    return f"accuracy {record['accuracy']:.4f}, fit {record['fit']:.2f} s{gap}"
