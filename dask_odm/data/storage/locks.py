"""Locks that die with the process that holds them: on a checkpoint that is written, on a folder of temporary data.

A lock is a file that its holder keeps locked (``flock``), so that a kill, too, lets go of it, and other machines see it
where the file system is shared. The file also names host, process and the process's start, which decide where the file
system has no locks.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from platform import node
from typing import Any

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

MAX_BYTES = 4096  # of a lock's file
ELSEWHERE_SECONDS = 86400  # some file systems keep locks on one machine only: those of another may be younger than so
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | os.O_RDWR
_HELD = {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}


@dataclass(frozen=True)
class Holder:
    """The process that a lock's file names.

    Parameters
    ----------
    host : name of the machine
    pid : number of the process
    started : when it began, in the system's words; a number is used again, but not with that
    locks : whether it holds the file's lock, as far as the file system has locks
    """

    host: str
    pid: int
    started: str | None
    locks: bool

    @classmethod
    def here(cls, *, locks: bool) -> Holder:
        """This process."""
        return cls(node(), os.getpid(), _started(os.getpid()), locks)

    @classmethod
    def of(cls, descriptor: int) -> Holder | None:
        """The one that an open file names; None where it is no lock's file."""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            os.lseek(descriptor, 0, os.SEEK_SET)
            found: Any = json.loads(os.read(descriptor, MAX_BYTES))["dask_odm lock"]
            holder = cls(**found)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        sound = type(holder.host) is str and type(holder.pid) is int and type(holder.locks) is bool
        return holder if sound and holder.pid > 0 and isinstance(holder.started, str | None) else None

    def may_live(self) -> bool:
        """Whether it lives, as far as this machine can tell: of another machine's nobody knows."""
        return self.host != node() or (self.started is not None and _started(self.pid) == self.started)

    def text(self) -> bytes:
        """What the file holds."""
        return json.dumps({"dask_odm lock": asdict(self)}).encode()


@dataclass(frozen=True)
class FileLock:
    """A lock that this process holds; `take_lock` and `take_abandoned` give one."""

    path: str
    descriptor: int

    def close(self) -> None:
        """Let go of it; the file stays."""
        with suppress(OSError):
            os.close(self.descriptor)

    def remove(self) -> None:
        """Let go of it, and remove the file: while it is held, where the system can, so that none removes another's."""
        if fcntl is None:
            self.close()
        with suppress(OSError):
            os.remove(self.path)
        if fcntl is not None:
            self.close()


def take_lock(path: str) -> FileLock | None:
    """Make the file at ``path`` and hold it; None where another process, or another part of this one, does.

    Raises
    ------
    OSError
        The file cannot be made.
    """
    while True:
        descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
        ours = False
        try:
            locked = _locked(descriptor)
            holder = None if locked else Holder.of(descriptor)
            if locked is False or (holder is not None and holder.may_live()):
                os.close(descriptor)
                return None
            if not _is_file_of(descriptor, path):  # its last holder has removed it
                os.close(descriptor)
                continue
            ours = True
            os.ftruncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, Holder.here(locks=locked is True).text())
        except BaseException:
            lock = FileLock(path, descriptor)
            lock.remove() if ours else lock.close()
            raise
        return FileLock(path, descriptor)


def take_abandoned(path: str, *, empty: bool = False) -> FileLock | None:
    """Hold the lock's file at ``path`` if the process that it names is no more; None where it lives, or may.

    ``empty``: also a file that nobody locks and that names none yet, of a process that was killed as it made it.
    """
    try:
        descriptor = os.open(path, _FLAGS)
    except OSError:
        return None
    lock = FileLock(path, descriptor)
    try:
        if _is_abandoned(descriptor, empty):
            return lock
    except OSError:
        pass
    lock.close()
    return None


def _is_abandoned(descriptor: int, empty: bool) -> bool:
    holder = Holder.of(descriptor)
    locked = _locked(descriptor)
    if locked is False:
        return False
    if holder is None:
        found = os.fstat(descriptor)
        return empty and locked is True and stat.S_ISREG(found.st_mode) and found.st_size == 0
    if not (locked and holder.locks):
        return not holder.may_live()
    return holder.host == node() or time.time() - os.fstat(descriptor).st_mtime > ELSEWHERE_SECONDS


def _locked(descriptor: int) -> bool | None:
    """Lock an open file, without waiting: False where another has it, None where the file system has no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD else None
    return True


def _is_file_of(descriptor: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _started(pid: int) -> str | None:
    """When a process of this machine began; None where there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    import psutil  # where there is no /proc; it comes with distributed

    with suppress(psutil.Error):
        return str(int(psutil.Process(pid).create_time()))
    return None
