"""Every reader with bytes that nobody meant: mutated files, bombs, and lines of 200 MB; text by `fuzz_readers`."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

import dask_odm as odm
from dask_odm.data.store.store import Store
from tries.base import Kind, parts, pick
from tries.damage import NAMES, Readings, files_of, limited
from tries.outcomes import BREAK, NAMED, Outcome, judge, left_in, with_leftovers
from tries.processes import run
from tries.things import fresh, made_up

TEXT_CASES = 100  # of a try of text
FUZZ_READERS = Path(__file__).parents[2] / "fuzz_readers.py"
LONG = 200 << 20  # bytes of a line, and of what a bomb unpacks to
BOMB_SECONDS = 120.0
MAKING_SECONDS = 400.0  # xz takes its time
SECONDS = 60.0


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """Bytes flipped, cut, doubled, moved and replaced by nasty ones."""
    found = bytearray(data)
    for _ in range(int(rng.integers(1, 8))):
        if not found:
            break
        at, size = int(rng.integers(len(found))), int(rng.integers(1, 64))
        how = int(rng.integers(6))
        if how == 0:
            found[at] ^= 1 << int(rng.integers(8))
        elif how == 1:
            del found[at : at + size]
        elif how == 2:
            found[at:at] = found[at : at + size]
        elif how == 3:
            found[at : at + 8] = pick(rng, [b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\0\0\0\x80", b"9" * 20])
        elif how == 4:
            del found[at:]
        else:
            found[at : at + size] = rng.bytes(size)
    return bytes(found)


def binary_files(folder: Path) -> list[Path]:
    """A file of each kind that holds numbers."""
    import pandas as pd

    X, y = made_up(0, 60)
    frame = pd.DataFrame(X, columns=list("abcde")).assign(label=y)
    paths = [folder / name for name in ("a.npy", "a.npz", "b.npz", "a.parquet", "a.feather")]
    np.save(paths[0], np.column_stack([X, y]))
    np.savez(paths[1], X=X, y=y)
    np.savez_compressed(paths[2], X=X, y=y)
    frame.to_parquet(paths[3])
    frame.to_feather(paths[4])
    return paths


def fuzz_binary(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Mutated NumPy, Parquet and Arrow files: ingested to a store that is sound, or refused by one error."""
    sources = binary_files(fresh(folder / "sources"))

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        (source,) = parts(number, sources)
        place = fresh(folder / "fuzzed")
        path = place / source.name
        path.write_bytes(mutated(source.read_bytes(), rng))
        return ingested(path, folder, f"{source.name}, mutated")

    return try_once


def ingested(path: Path, folder: Path, fault: str, seconds: float = SECONDS) -> Outcome:
    """What becomes of a file that is ingested beside itself."""

    def read() -> str:
        odm.ingest(str(path), str(path.parent / "o.zarr"))
        Store.open(path.parent / "o.zarr").verify()
        return "sound"

    outcome = judge(run(read, folder, seconds, limited), None, fault)
    made = () if outcome.what == NAMED else ("o.zarr",)
    return with_leftovers(outcome, left_in(path.parent, path.name, *made))


def fuzz_records(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Stores, models, checkpoints and predictions of which several files are mutated."""
    readings = Readings(folder)

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        (name,) = parts(number, NAMES)
        path = readings.copied(name)
        hits = [pick(rng, files_of(path)) for _ in range(int(rng.integers(1, 4)))]
        for hit in hits:
            hit.write_bytes(mutated(hit.read_bytes(), rng))
        fault = f"mutated {', '.join(str(hit.relative_to(path)) for hit in hits)}"
        return readings.outcome(name, path, fault, expected=True)

    return try_once


def fuzz_text(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """A hundred cases of `fuzz_readers` at a time."""

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        seed = int(rng.integers(1 << 20))
        arguments = ["--cases", str(TEXT_CASES), "--seed", str(seed), "--keep", str(folder / "failures")]
        command = [sys.executable, str(FUZZ_READERS), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1000)
        fault = f"{TEXT_CASES} cases of fuzz_readers --seed {seed}"
        return (
            Outcome(BREAK, fault, done.stdout[-1500:] + done.stderr[-500:])
            if done.returncode
            else Outcome("accepted", fault)
        )

    return try_once


# Bombs ------------------------------------------------------------------------------------------------------


def _gzip(data: bytes) -> bytes:
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1) as file:
        file.write(data)
    return packed.getvalue()


LINES: dict[str, Callable[[], bytes]] = {
    "zeros": lambda: bytes(LONG),
    "one number": lambda: b"1" * LONG,
    "one line of numbers": lambda: b"1," * (LONG // 2),
    "one line of pairs": lambda: b"1 1:1 " + b"2:1 " * (LONG // 4),
    "a quote without end": lambda: b'1,"' + b"x" * LONG,
    "spaces": lambda: b" " * LONG,
}
PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "": lambda data: data,
    ".gz": _gzip,
    ".bz2": lambda data: bz2.compress(data, 1),
    ".xz": lambda data: lzma.compress(data, preset=0),
}


def bombs(folder: Path) -> Callable[[int, np.random.Generator], Outcome]:
    """Lines of 200 MB, plain and packed into little, as CSV and as LIBSVM text."""

    def try_once(number: int, rng: np.random.Generator) -> Outcome:
        line, packer, kind = parts(number, list(LINES), list(PACKERS), ("csv", "libsvm"))
        packed = folder / f"{line}{packer}"

        def write() -> str:
            packed.write_bytes(PACKERS[packer](LINES[line]()))
            return ""

        if not packed.exists():  # packing takes longer than a try: the next one of these finds it
            made = run(write, folder, MAKING_SECONDS)  # elsewhere, for its memory
            assert "digest" in made, made
        path = fresh(folder / "fuzzed") / f"a.{kind}{packer}"
        path.hardlink_to(packed)
        outcome = ingested(path, folder, f"{path.name}, {line}, {path.stat().st_size} bytes of {LONG}", BOMB_SECONDS)
        if not packer:
            packed.unlink()
        return outcome

    return try_once


KINDS = [
    Kind("fuzzed text (100 cases each)", 1100.0, fuzz_text),
    Kind("fuzzed NumPy, Parquet, Arrow", 200.0, fuzz_binary),
    Kind("fuzzed stores and records", 200.0, fuzz_records),
    Kind("bombs and long lines", 600.0, bombs),
]
