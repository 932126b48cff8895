"""File locks that die with the process that holds them, for checkpoints being written and folders of temporary data.

A holder keeps the lock's file locked (``flock``), so that a kill releases it too, and other machines see it if the
file system is shared. The file also names the host, the process and the start time of the process. They decide if the
file system has no locks.
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

_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | os.O_RDWR


@dataclass(frozen=True)
class Holder:
    """Process that a lock's file names.

    ``started`` is the start time of the process as the system tells it, since process numbers are used again. ``locks``
    says whether the process holds the file's lock, which needs a file system with locks.
    """

    host: str
    pid: int
    started: str | None
    locks: bool

    @classmethod
    def here(cls, *, locks: bool) -> Holder:
        """Return the holder that stands for this process."""
        return cls(node(), os.getpid(), _started(os.getpid()), locks)

    @classmethod
    def of(cls, descriptor: int) -> Holder | None:
        """Return the holder that an open file names; None if it is not a lock's file."""
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            os.lseek(descriptor, 0, os.SEEK_SET)
            found: Any = json.loads(os.read(descriptor, 4096))["dask_odm lock"]
            holder = cls(**found)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            return None
        sound = type(holder.host) is str and type(holder.pid) is int and type(holder.locks) is bool
        return holder if sound and holder.pid > 0 and isinstance(holder.started, str | None) else None

    def may_live(self) -> bool:
        """Return whether the process may be alive. A process of another machine always may, since nobody can tell."""
        return self.host != node() or (self.started is not None and _started(self.pid) == self.started)

    def text(self) -> bytes:
        """Return the content of the lock's file."""
        return json.dumps({"dask_odm lock": asdict(self)}).encode()


@dataclass(frozen=True)
class FileLock:
    """Lock that this process holds, from `take_lock` or `take_abandoned`."""

    path: str
    descriptor: int

    def close(self) -> None:
        """Release the lock, and leave its file."""
        with suppress(OSError):
            os.close(self.descriptor)

    def remove(self) -> None:
        """Release the lock and remove its file, if possible while it is held, so that nobody else's file is removed."""
        if fcntl is None:
            self.close()
        with suppress(OSError):
            os.remove(self.path)
        if fcntl is not None:
            self.close()

    def _lock(self) -> bool | None:
        """Lock the file without waiting; return False if another process has it, None if there are no locks."""
        if fcntl is None:
            return None
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
        return True

    def _take(self) -> bool | None:
        """Lock the file and name this process in it.

        Returns False if another process, or another part of this one, holds it, and None if it is no longer the file
        at its path, since its last holder has removed it. An error releases it, and leaves no file.
        """
        ours = False
        try:
            locked = self._lock()
            holder = None if locked else Holder.of(self.descriptor)
            if locked is False or (holder is not None and holder.may_live()):
                return False
            if not self._is_at_path():
                return None
            ours = True
            os.ftruncate(self.descriptor, 0)
            os.lseek(self.descriptor, 0, os.SEEK_SET)
            os.write(self.descriptor, Holder.here(locks=locked is True).text())
        except BaseException:
            self.remove() if ours else self.close()
            raise
        return True

    def _is_at_path(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self.descriptor), os.stat(self.path, follow_symlinks=False))
        except FileNotFoundError:
            return False

    def _is_abandoned(self, empty: bool, days: float) -> bool:
        holder = Holder.of(self.descriptor)
        locked = self._lock()
        if locked is False:
            return False
        found = os.fstat(self.descriptor)
        if holder is None:
            return empty and locked is True and stat.S_ISREG(found.st_mode) and found.st_size == 0
        if not (locked and holder.locks):
            return not holder.may_live()
        return holder.host == node() or time.time() - found.st_mtime > 86400 * days


def take_lock(path: str) -> FileLock | None:
    """Make the file at ``path`` and hold it; return None if another process, or another part of this one, holds it.

    Raises OSError if the file cannot be made.
    """
    taken = None
    while taken is None:
        lock = FileLock(path, os.open(path, _FLAGS | os.O_CREAT, 0o600))
        taken = lock._take()
        if not taken:
            lock.close()
    return lock if taken else None


def take_abandoned(path: str, *, empty: bool = False, days: float = 1) -> FileLock | None:
    """Hold the lock's file at ``path`` if its process has ended; return None if it lives, or may live.

    With ``empty``, a file that is empty and not locked is taken, too: its process was killed as it made the file. A
    lock of another machine is abandoned if it is older than ``days``, since some file systems lock per machine.
    """
    try:
        lock = FileLock(path, os.open(path, _FLAGS))
    except OSError:
        return None
    with suppress(OSError):
        if lock._is_abandoned(empty, days):
            return lock
    lock.close()
    return None


def _started(pid: int) -> str | None:
    """Return the start time of a process of this machine; None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except OSError:
        if os.path.exists("/proc/self/stat"):
            return None
    import psutil  # needed without /proc; it comes with distributed

    with suppress(psutil.Error):
        return str(int(psutil.Process(pid).create_time()))
    return None
