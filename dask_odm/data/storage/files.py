"""Files of this machine: what is read or written whole, or raises an error.

Python's own files return None if the system postpones a read or a write (``EAGAIN``), which counts as the end of the
file, or fails far from its cause. An interrupting signal (``EINTR``) is no error: Python tries again.
"""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader, BytesIO, FileIO
from typing import IO, Any, TypeVar
from uuid import uuid4

import google_crc32c
import numpy as np
import numpy.typing as npt

TEXT_BYTES = 1 << 28  # most bytes of a JSON document, or of a line of text, that are held
FULL = {errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC)}  # full disk, quota or size limit
T = TypeVar("T")
# Headers are Python literals. Python 3.11 sometimes raises a SystemError if two threads parse one each.
_parsing = threading.Lock()


class WholeFile(FileIO):
    """Unbuffered file whose reads and writes raise if they are postponed. They may still be short, as always."""

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and return the number of bytes read."""
        return self._done(super().readinto(buffer))

    def readall(self) -> bytes:
        """Return all bytes up to the end."""
        pieces = []
        while piece := self._done(super().read(1 << 20)):
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, data: Any, /) -> int:
        """Write as much of ``data`` as the system takes, and return that number of bytes."""
        return self._done(super().write(data))

    def _done(self, answer: T | None) -> T:
        if answer is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), self.name)
        return answer


def open_whole(path: str | os.PathLike[str] | int) -> BufferedReader:
    """Open a file or a descriptor for buffered reading."""
    return BufferedReader(WholeFile(path, "rb"))


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type of the ``.npy`` array that begins here; raise ValueError if none does."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _parsing:
        return read(stream)


def _whole_header(file: IO[bytes], path: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return `read_array_header`; raise OSError if the file ends in the header."""
    try:
        return read_array_header(file)
    except ValueError as error:
        if file.read(1):
            raise
        raise _cut_off(path) from error


def _cut_off(path: str) -> OSError:
    return OSError(errno.EIO, "the file is cut off", path)


def load_array(path: str) -> npt.NDArray[Any]:
    """Return the array of numbers in a ``.npy`` file; raise OSError if it is cut off."""
    with open_whole(path) as file:
        shape, fortran, dtype = _whole_header(file, path)
        found: npt.NDArray[Any] = np.empty(shape[::-1] if fortran else shape, dtype)
        if file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
            raise _cut_off(path)
    return found.T if fortran else found


def save_array(path: str, values: npt.NDArray[Any]) -> None:
    """Write a small array. A reader sees all of it or nothing, even if two workers write it at once."""
    written = BytesIO()
    np.save(written, values)  # np.save to a file would hide the system's reason, such as a full disk
    with appearing(path) as file:
        file.write(written.getbuffer())


def save_bytes(path: str, data: bytes) -> None:
    """Write bytes, and their checksum, as `save_array` writes an array."""
    with appearing(path) as file:
        file.write(data)
        file.write(_checksum(data))


def load_bytes(path: str) -> bytes:
    """Return the bytes of a file that `save_bytes` wrote; raise OSError if it is cut off or damaged."""
    with open_whole(path) as file:
        found = file.read()
    data = found[:-4]
    if _checksum(data) != found[-4:]:
        raise OSError(errno.EIO, "the file is damaged", path)
    return data


def _checksum(data: bytes) -> bytes:
    return int(google_crc32c.value(data)).to_bytes(4, "little")


@contextmanager
def appearing(path: str) -> Iterator[IO[bytes]]:
    """Yield a new file, of which a reader sees all or nothing, even if two workers write it at once."""
    aside = f"{path}.{uuid4().hex}"
    try:
        with open(aside, "wb") as file:
            yield file
        os.replace(aside, path)
    except BaseException:
        with suppress(OSError):
            os.remove(aside)
        raise


def map_array(path: str) -> np.memmap[Any, np.dtype[Any]]:
    """Map the array in a ``.npy`` file into memory; raise OSError if it is cut off, and ValueError if it is none."""
    with open_whole(path) as file:
        shape, fortran, dtype = _whole_header(file, path)
        if os.fstat(file.fileno()).st_size < file.tell() + math.prod(shape) * dtype.itemsize:
            raise _cut_off(path)
        return np.memmap(path, dtype, "r", file.tell(), shape, "F" if fortran else "C")


def make_folders(root: str, key: str) -> str:
    """Make the folders of file ``key`` below ``root``, but not ``root`` itself, and return the file's path.

    ``root`` is not made, so that a task that outlives an interrupt cannot bring back a folder that was removed.
    """
    folder = root
    for part in key.split("/")[:-1]:
        folder = os.path.join(folder, part)
        with suppress(FileExistsError):
            os.mkdir(folder)
    return os.path.join(root, key)


def reason(error: OSError) -> str:
    """Return the system's reason for an error in words. Some libraries raise an OSError without a number."""
    return error.strerror or str(error) or type(error).__name__


def write_synced(path: str, data: bytes) -> None:
    """Write a small file beside its place, force it to disk and rename it into place."""
    with open(f"{path}.tmp", "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.tmp", path)


def sync(path: str) -> None:
    """Force a file, or the names in a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
