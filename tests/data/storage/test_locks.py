"""Locks: one holder at a time, across processes and within one; let go of by death, also where there is no flock."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dask_odm.data.storage.staging import Holder, take_abandoned, take_lock

HOLD = """
import errno, fcntl, sys, time
from dask_odm.data.storage import staging
def refuse(*_):
    raise OSError(errno.ENOLCK, "no locks")
if sys.argv[2] == "none":
    fcntl.flock = refuse
print(staging.take_lock(sys.argv[1]) is not None, flush=True)
time.sleep(60)
"""


@pytest.fixture(params=["locks", "none"])
def system(request, monkeypatch) -> str:
    """A file system with locks, and one without."""

    def refuse(*_):
        raise OSError(errno.ENOLCK, "no locks")

    if request.param == "none":
        monkeypatch.setattr(fcntl, "flock", refuse)
    return request.param


def test_another_process_holds_it_until_it_is_killed(tmp_path, system):
    path = str(tmp_path / "lock")
    with subprocess.Popen([sys.executable, "-c", HOLD, path, system], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert take_lock(path) is None
        assert take_abandoned(path) is None
        other.send_signal(signal.SIGKILL)
    abandoned = take_abandoned(path)
    assert abandoned is not None
    abandoned.close()
    lock = take_lock(path)
    assert lock is not None
    lock.remove()
    assert not os.listdir(tmp_path)


def test_within_a_process(tmp_path, system):
    path = str(tmp_path / "lock")
    lock = take_lock(path)
    assert lock is not None
    assert take_lock(path) is None
    assert take_abandoned(path) is None
    lock.remove()
    again = take_lock(path)
    assert again is not None
    again.remove()


def forged(path: Path, holder: Holder, age: float = 0.0) -> str:
    path.write_bytes(holder.text())
    changed = path.stat().st_mtime - age
    os.utime(path, (changed, changed))
    return str(path)


def test_of_another_machine(tmp_path):
    """Its process cannot be looked at: its lock decides, where it had one, and where nobody has touched it for long."""
    with_locks, without = (Holder("elsewhere", os.getpid(), "1", locks=each) for each in (True, False))
    assert take_abandoned(forged(tmp_path / "a", with_locks)) is None
    assert take_abandoned(forged(tmp_path / "b", without, age=10**9)) is None
    old = take_abandoned(forged(tmp_path / "c", with_locks, age=2 * 86400))
    assert old is not None


def test_a_number_that_is_used_again(tmp_path, system):
    here = Holder.here(locks=False)
    assert take_abandoned(forged(tmp_path / "a", here)) is None
    assert take_abandoned(forged(tmp_path / "b", Holder(here.host, here.pid, "0", locks=False))) is not None


@pytest.mark.parametrize("text", [b"", b"{}", b"[[[", b'{"dask_odm lock": {"pid": 1}}', b'{"dask_odm lock": null}'])
def test_what_is_no_lock_is_nobodys(tmp_path, text):
    (tmp_path / "a").write_bytes(text)
    assert take_abandoned(str(tmp_path / "a")) is None
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert take_abandoned(str(tmp_path / "link")) is None
    assert take_abandoned(str(tmp_path / "nothing")) is None


def test_a_lock_that_cannot_be_written_leaves_no_file(tmp_path, monkeypatch):
    def refuse(descriptor, data):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "write", refuse)
    with pytest.raises(OSError, match="Input/output error"):
        take_lock(str(tmp_path / "a.lock"))
    assert os.listdir(tmp_path) == []
