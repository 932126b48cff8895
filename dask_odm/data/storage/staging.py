"""Folders and files that appear whole or not at all: they are staged, forced to disk and renamed into place.

A process owns a staging name, beside the output, by a lock that dies with it. The lock's file,
``.NAME.xxxxxxxx.lock``, is there from before the first write until nothing is left but the output. The next writer in
that folder removes what no process owns.

A process that holds a lock keeps its file locked (``flock``), so that a kill releases it too, and other machines see it
if the file system is shared. The file also names the host, the process and the start time of the process. They decide
if the file system has no locks.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from platform import node
from typing import Any

from dask_odm.data.storage.files import reason, sync
from dask_odm.errors import InputError

_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_RDWR
_LOCK = re.compile(r"\.(.+)\.[0-9a-f]{8}\.lock")
_OWNED: dict[str, FileLock] = {}  # locks of the names that this process owns


def check_output(path: str, *, overwrite: bool) -> bool:
    """Return whether something would be replaced; raise InputError if ``path`` may not be written or replaced."""
    parent = os.path.dirname(path)
    if not os.path.isdir(parent):
        raise InputError(f"cannot write '{path}': there is no folder '{parent}'.")
    if not os.path.lexists(path):
        return False
    if not overwrite:
        raise InputError(f"'{path}' exists; pass overwrite=True (--overwrite) to replace it.")
    try:
        empty = os.path.isdir(path) and not os.listdir(path)
    except OSError as error:
        raise InputError(f"'{path}' exists and cannot be read: {reason(error)}.") from error
    if not empty and not os.path.isfile(os.path.join(path, "zarr.json")):
        raise InputError(f"'{path}' exists and is not a zarr store; remove it yourself or choose another name.")
    return not empty


def aside(path: str) -> str:
    """Return a fresh staging name beside ``path``, to write to before `replace_folder`."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{uuid.uuid4().hex[:8]}")


def left_aside(path: str) -> list[str]:
    """Return the staging names that a process left beside ``path`` when it was killed, newest first."""
    folder, name = os.path.split(path)
    pattern = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{8}(\.old)?(\.gone)?")
    found = [os.path.join(folder, each) for each in os.listdir(folder) if pattern.fullmatch(each)]
    return sorted(found, key=os.path.getmtime, reverse=True)


def replace_folder(new: str, path: str, *, overwrite: bool) -> None:
    """Rename folder ``new`` to ``path``, and remove the former content afterwards.

    An interrupt leaves one of the two.
    """
    check_output(path, overwrite=overwrite)
    old = f"{new}.old"
    try:
        if os.path.lexists(path):
            os.rename(path, old)
        os.rename(new, path)
        sync(os.path.dirname(path))
    finally:
        if os.path.lexists(old) and not os.path.lexists(path):
            os.rename(old, path)
        remove_folder(old)


def remove_folder(path: str) -> None:
    """Remove a folder or file, if it exists, even while other threads still write to the folder by its name."""
    try:
        _remove(path)
    except BaseException:  # an interrupt must not leave half of it
        _remove(path)
        raise


def _remove(path: str) -> None:
    if not os.path.isdir(path) or os.path.islink(path):
        with suppress(OSError):
            os.remove(path)
    gone = f"{path}.gone"
    if os.path.lexists(path):
        with suppress(OSError):
            os.rename(path, gone)
    for name in (gone, path):
        shutil.rmtree(name, ignore_errors=True)


def own(name: str, *, attempts: int = 100) -> None:
    """Own a name from `aside`, and remove what killed processes left in its folder.

    A process that removes abandoned files holds the lock for a moment, so it is tried again. Raises OSError, and leaves
    nothing, if the lock cannot be written.
    """
    remove_abandoned(os.path.dirname(name))
    for _ in range(attempts):
        lock = take_lock(f"{name}.lock")
        if lock is not None:
            _OWNED[name] = lock
            return
        time.sleep(0.01)
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"{name}.lock")


def disown(name: str) -> None:
    """Remove the file or folder of that name, and then release the name."""
    try:
        remove_folder(name)
    finally:
        try:
            _let_go(name)
        except BaseException:  # an interrupt must not leave the lock's file
            _let_go(name)
            raise


def _let_go(name: str) -> None:
    lock = _OWNED.pop(name, None)
    if lock is None:
        if not os.path.lexists(f"{name}.old"):
            with suppress(OSError):
                os.remove(f"{name}.lock")
    elif os.path.lexists(f"{name}.old"):  # the former content could not be put back; the next writer does it
        lock.close()
    else:
        lock.remove()


@contextmanager
def owned_file(path: str) -> Iterator[str]:
    """Yield a staging name to write before it is renamed to ``path``. It is removed at the end if it still exists."""
    name = aside(path)
    try:
        own(name)
        yield name
    finally:
        disown(name)


def remove_abandoned(folder: str) -> None:
    """Remove what killed processes left in a folder, if the folder can be listed."""
    with suppress(OSError):
        for each in os.listdir(folder):
            found = _LOCK.fullmatch(each)
            if found:
                _remove_if_abandoned(os.path.join(folder, each), os.path.join(folder, found[1]))


def _remove_if_abandoned(file: str, target: str) -> None:
    ours = os.lstat(file).st_uid == os.getuid()
    lock = take_abandoned(file, empty=True) if ours else None
    if lock is None:
        return
    name = file.removesuffix(".lock")
    old = f"{name}.old"
    if os.path.lexists(old) and not os.path.lexists(target):  # killed between the two renames of `replace_folder`
        try:
            os.rename(old, target)
        except OSError:  # it cannot be put back now
            lock.close()
            return
    remove_folder(name)
    remove_folder(old)
    lock.remove()


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
        """Remove the lock's file while it is held, so that nobody else's file is removed, and release the lock."""
        with suppress(OSError):
            os.remove(self.path)
        self.close()


def take_lock(path: str) -> FileLock | None:
    """Make the file at ``path``, hold it and name this process in it.

    Returns None if another process, or another part of this one, holds it. Raises OSError, and leaves no file, if it
    cannot be made or written.
    """
    while True:
        lock = FileLock(path, os.open(path, _FLAGS | os.O_CREAT, 0o600))
        ours = False
        try:
            locked = _locked(lock.descriptor)
            holder = None if locked else Holder.of(lock.descriptor)
            if locked is False or (holder is not None and holder.may_live()):
                lock.close()
                return None
            with suppress(FileNotFoundError):  # if its last holder has removed it
                ours = os.path.samestat(os.fstat(lock.descriptor), os.stat(path, follow_symlinks=False))
            if ours:
                os.ftruncate(lock.descriptor, 0)
                os.lseek(lock.descriptor, 0, os.SEEK_SET)
                os.write(lock.descriptor, Holder.here(locks=locked is True).text())
                return lock
            lock.close()
        except BaseException:
            lock.remove() if ours else lock.close()
            raise


def take_abandoned(path: str, *, empty: bool = False) -> FileLock | None:
    """Hold the lock's file at ``path`` if its process has ended; return None if it lives, or may live.

    With ``empty``, a file that is empty and not locked is taken, too: its process was killed as it made the file.
    """
    try:
        lock = FileLock(path, os.open(path, _FLAGS))
    except OSError:
        return None
    with suppress(OSError):
        if _is_abandoned(lock.descriptor, empty):
            return lock
    lock.close()
    return None


def _is_abandoned(descriptor: int, empty: bool) -> bool:
    holder = Holder.of(descriptor)
    locked = _locked(descriptor)
    if locked is False:
        return False
    found = os.fstat(descriptor)
    if holder is None:
        return empty and locked is True and stat.S_ISREG(found.st_mode) and found.st_size == 0
    if not (locked and holder.locks):
        return not holder.may_live()
    # a lock of another machine is left for a day, since some file systems lock per machine
    return holder.host == node() or time.time() - found.st_mtime > 86400


def _locked(descriptor: int) -> bool | None:
    """Lock a file without waiting; return False if another process has it, None if the file system has no locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES) else None
    return True


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
