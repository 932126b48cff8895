"""The fuzzer of the readers sees what is wrong, and keeps it."""

from __future__ import annotations

import sys
from itertools import islice
from pathlib import Path

import fuzz_readers
import numpy as np
import pytest
from fuzz_cases import make_case

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits memory and time by /proc and SIGALRM")


@linux
def test_fuzzing_the_readers_finds_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status = fuzz_readers.main(["--cases", "40", "--seed", "5", "--keep", str(tmp_path / "kept")])
    assert "40 cases" in capsys.readouterr().out
    assert status == 0
    assert not (tmp_path / "kept").exists()


def _raise(error: BaseException) -> None:
    raise error


def _spin() -> None:
    while True:
        pass


@linux
@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        (lambda: _raise(ZeroDivisionError("oops")), "ZeroDivisionError: oops"),
        (lambda: _raise(fuzz_readers.DaskODMError("bad line")), "an error that does not name the file"),
        (lambda: _raise(MemoryError()), "more than 512 MiB"),
        (lambda: np.ones(80_000_000).sum(), "more than 512 MiB"),
        (_spin, "no end within"),
    ],
)
def test_fuzzing_sees_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault, complaint: str) -> None:
    opened = fuzz_readers.open_source

    def faulty(*args, **options):
        fault()
        return opened(*args, **options)

    monkeypatch.setattr(fuzz_readers, "open_source", faulty)
    monkeypatch.setattr(fuzz_readers, "SECONDS", 2.0 if fault is _spin else 60.0)
    assert complaint in (fuzz_readers.judge(make_case(2), str(tmp_path)) or "")


@linux
@pytest.mark.parametrize("kind", ["libsvm", "csv"])
def test_fuzzing_sees_wrong_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """Of valid texts, a reader that is off by one in one value is caught by the plain parser."""
    read = fuzz_readers.read

    def wrong(path, options):
        found = read(path, options)
        if isinstance(found, tuple) and found[0].size:
            found[0][0, 0] += 1
        return found

    cases = (make_case(number) for number in range(400))
    valid = list(islice((case for case in cases if case.kind == kind and _plain(case) is not None), 2))
    assert len(valid) == 2
    assert [fuzz_readers.judge(case, str(tmp_path)) for case in valid] == [None] * 2
    monkeypatch.setattr(fuzz_readers, "read", wrong)
    monkeypatch.setattr(fuzz_readers, "_ingested", lambda *_: None)
    assert all("the plain parser reads" in (fuzz_readers.judge(case, str(tmp_path)) or "") for case in valid)


def _plain(case) -> np.ndarray | None:
    if case.text is None or len(case.text) > 5_000:
        return None
    return fuzz_readers.plain_libsvm(case) if case.kind == "libsvm" else fuzz_readers.plain_csv(case)


@linux
def test_fuzzing_keeps_what_fails(monkeypatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    monkeypatch.setattr(fuzz_readers, "_judge", lambda *_: "made up")
    assert fuzz_readers.main(["--case", "7", "--keep", str(tmp_path / "kept")]) == 1
    (kept,) = (tmp_path / "kept").iterdir()
    assert kept.read_bytes() == make_case(7).data
    assert "--case 7" in capsys.readouterr().out
