"""The fuzzer of the readers sees what is wrong, and keeps it."""

import sys
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
@pytest.mark.parametrize(("fault", "complaint"), [
    (lambda: _raise(ZeroDivisionError("oops")), "ZeroDivisionError: oops"),
    (lambda: _raise(fuzz_readers.DaskODMError("bad line")), "an error that does not name the file"),
    (lambda: _raise(MemoryError()), "more than 512 MiB"),
    (lambda: np.ones(80_000_000).sum(), "more than 512 MiB"),
    (_spin, "no end within"),
])  # fmt: skip
def test_fuzzing_sees_faults(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fault, complaint: str) -> None:
    opened = fuzz_readers.open_source

    def faulty(*args, **options):
        fault()
        return opened(*args, **options)

    monkeypatch.setattr(fuzz_readers, "open_source", faulty)
    monkeypatch.setattr(fuzz_readers, "SECONDS", 2.0 if fault is _spin else 60.0)
    assert complaint in (fuzz_readers.judge(make_case(2), str(tmp_path)) or "")
