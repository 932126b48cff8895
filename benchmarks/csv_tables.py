"""Tables with words: CSV to a store beside `pandas.read_csv` alone, and a frame to features beside `get_dummies`.

    python benchmarks/csv_tables.py [--rows 1000000] [--runs 3] [--plain] [--keep FOLDER]
    python benchmarks/csv_tables.py --gigabytes 2 [--keep FOLDER]      # many files, more than memory, and a fit of them

Rows have 12 floats of 5 decimals, 3 integers, 5 words of 8 to 40 levels and a label; with ``--plain``, numbers alone.
Every run is a process of its own, and the ways take turns, since the machine may be busy: compare ratios. Peaks are
the resident memory of those processes; that of an empty one, which has imported all, is shown beside them. New pandas
reads a file by threads: it is also measured with one.

With ``--gigabytes``, rows also have gaps and a date. So many are in files of 64 MB; from 1 GB on, these are links to
those of the first. They are ingested, compressed since most features are 0, and learned by two workers of 1 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pandas as pd

LEVELS = (8, 12, 20, 30, 40)
STEP = 100_000  # rows written at a time
PART_BYTES = 64_000_000  # about those of a file of many
DIFFERENT_BYTES = 1_000_000_000


def made_up(rows: int, seed: int = 0, *, plain: bool = False) -> pd.DataFrame:
    """Return rows of the table, with words as strings."""
    rng = np.random.default_rng(seed)
    columns: dict[str, Any] = {f"x{j}": np.round(rng.normal(scale=10.0 ** (j % 4), size=rows), 5) for j in range(12)}
    columns |= {f"n{j}": rng.integers(0, 10 ** (j + 1), rows) for j in range(3)}
    for levels in () if plain else LEVELS:
        words = np.array([f"level {k:02d} of {levels}"[: 5 + k % 9 + 3] for k in range(levels)])
        share = 1.0 / np.arange(2, levels + 2)
        columns[f"w{levels}"] = words[rng.choice(levels, rows, p=share / share.sum())]
    columns["label"] = np.where(columns["x0"] + columns["x1"] > 0, "yes", "no")
    return pd.DataFrame(columns)


def with_gaps(rows: int, seed: int) -> pd.DataFrame:
    """Return rows with gaps in a fifth of the columns, and a date."""
    frame = made_up(rows, seed)
    rng = np.random.default_rng([seed, 1])
    for name in ("x3", "n1", "w12", "w40"):
        frame.loc[rng.random(rows) < 0.03, name] = np.nan
    hours = pd.to_timedelta(rng.integers(0, 3 * 365 * 24, rows), unit="h")
    frame.insert(0, "when", pd.Timestamp("2015-03-01") + hours)
    return frame


def write_table(path: Path, rows: int, *, plain: bool = False) -> None:
    """Write the table as CSV."""
    for start in range(0, rows, STEP):
        some = made_up(min(STEP, rows - start), start, plain=plain)
        some.to_csv(path, mode="a" if start else "w", header=start == 0, index=False)


def write_parts(folder: Path, nbytes: float) -> None:
    """Write files of ``nbytes`` together."""
    folder.mkdir(exist_ok=True)
    made: list[Path] = []
    size = 0
    while size < nbytes:
        path = folder / f"part-{size // PART_BYTES:05d}.csv"
        if size < DIFFERENT_BYTES:
            if not path.exists():
                with_gaps(PART_BYTES // 200, size).to_csv(path, index=False)
            made.append(path)
        elif not path.exists():
            path.symlink_to(made[size // PART_BYTES % len(made)])
        size += PART_BYTES


def _pandas(source: str, _: str) -> None:
    pd.read_csv(source)


def _one_thread(source: str, _: str) -> None:
    with open(source, "rb") as file:  # of a path, pandas 3.1 makes parts for its threads
        pd.read_csv(file)


def _ingest(source: str, store: str) -> None:
    import dask_odm as odm

    odm.ingest(source, store, label="label")


def _nothing(_: str, __: str) -> None:
    import dask_odm.data.ingest  # noqa: F401


WAYS = {"pandas.read_csv": _pandas, "in one thread": _one_thread, "ingest": _ingest, "imports": _nothing}


def run(way: str, source: str) -> None:
    """Print the seconds and the peak of this process, in bytes, for one way, as JSON."""
    from dask_odm.engine.workers import peak_bytes

    _nothing("", "")
    with tempfile.TemporaryDirectory(dir=os.path.dirname(source)) as folder:
        began, used = time.perf_counter(), time.process_time()
        WAYS[way](source, os.path.join(folder, "rows.zarr"))
        print(json.dumps([time.perf_counter() - began, time.process_time() - used, peak_bytes()]))


def read_files(folder: Path, rows: int, runs: int, *, plain: bool) -> None:
    """Print a line for each way to read a file, and the ratio."""
    source = folder / f"{'numbers' if plain else 'words'}-{rows}.csv"
    if not source.exists():
        write_table(source, rows, plain=plain)
    print(f"{source.name}: {rows:,} rows, {source.stat().st_size / 1e6:,.0f} MB", flush=True)
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    for _ in range(runs):
        for way, figures in found.items():
            command = [sys.executable, __file__, "--way", way, "--source", str(source)]
            figures.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    for way, figures in found.items():
        seconds, used, peak = (median(each) for each in zip(*figures, strict=True))
        speed = f"{rows / seconds:>10,.0f} rows/s" if way != "imports" else ""
        print(f"{way:<18} {seconds:>7.2f} s {used:>7.2f} s of processors {peak / 1e6:>7.0f} MB {speed}")
    for way in ("pandas.read_csv", "in one thread"):
        ratios = [theirs[0] / ours[0] for theirs, ours in zip(found[way], found["ingest"], strict=True)]
        spread = f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"rows per second of ingest to those of {way}: {spread}")


def out_of_core(folder: Path, gigabytes: float) -> None:
    """Print how long many files take to ingest and to learn, and the peak of every process."""
    import dask

    import dask_odm as odm
    from dask_odm.engine.workers import local_workers, peak_bytes

    parts = folder / "parts"
    write_parts(parts, gigabytes * 1e9)
    files = sorted(parts.iterdir())[: int(-(-gigabytes * 1e9 // PART_BYTES))]
    store = folder / "parts.zarr"
    dask.config.set({"temporary-directory": str(folder)})
    nbytes = sum(path.stat().st_size for path in files)
    print(f"{len(files)} files, {nbytes / 1e9:.2f} GB", flush=True)
    began = time.perf_counter()
    rows = odm.ingest(list(map(str, files)), store, label="label", compression="zstd", overwrite=True)
    taken = time.perf_counter() - began
    print(
        f"ingest {taken:.0f} s, {rows.rows:,} rows of {rows.features} features, {rows.rows / taken:,.0f} rows/s,",
        end=" ",
    )
    print(f"peak {peak_bytes() / 1e6:.0f} MB", flush=True)
    with local_workers(2, 1, "1GB") as client:
        began = time.perf_counter()
        model = odm.ODMClassifier(kernel="linear").fit(str(store))
        taken = time.perf_counter() - began
        peaks = [f"{peak / 1e6:.0f} MB" for peak in client.run(peak_bytes).values()]
    print(f"fit {taken:.0f} s, workers' peaks {', '.join(peaks)}, this process {peak_bytes() / 1e6:.0f} MB", flush=True)
    held = with_gaps(10_000, 1 << 40)
    print(f"accuracy of new rows {model.score(held.drop(columns='label'), held['label']):.4f}")


def encode_frames(rows: int, runs: int) -> None:
    """Print a line for each way to encode a frame, with words as strings and as categories."""
    from dask_odm.data.readers.frames import rows_by, surveyed_rows

    frame = made_up(rows).drop(columns="label")
    words = [f"w{levels}" for levels in LEVELS]
    for kind in ("str", "category"):
        held = frame.astype(dict.fromkeys(words, kind))
        found = surveyed_rows(held, "float32")
        assert found is not None
        recipe = found[1]
        ways = {
            "get_dummies": lambda held=held: pd.get_dummies(held, columns=words, dtype=np.float32),
            "get_dummies, bool": lambda held=held: pd.get_dummies(held, columns=words),
            "surveyed_rows": lambda held=held: surveyed_rows(held, "float32"),
            "rows_by": lambda held=held, recipe=recipe: rows_by(held, recipe),
        }
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(runs):
            for way, call in ways.items():
                began = time.perf_counter()
                call()
                seconds[way].append(time.perf_counter() - began)
        for way, taken in seconds.items():
            print(f"{kind:<9} {way:<18} {median(taken):>6.2f} s ({min(taken):.2f} to {max(taken):.2f})", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="numbers alone")
    parser.add_argument("--keep", type=Path, help="folder where the file stays for the next time")
    parser.add_argument("--gigabytes", type=float, help="of many files, which are ingested and learned out of core")
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--source", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.way:
        run(options.way, options.source)
        return
    with tempfile.TemporaryDirectory() as folder:
        if options.gigabytes:
            out_of_core(options.keep or Path(folder), options.gigabytes)
            return
        read_files(options.keep or Path(folder), options.rows, options.runs, plain=options.plain)
    if not options.plain:
        encode_frames(options.rows, options.runs)


if __name__ == "__main__":
    main()
