"""Files that raise an error if the system postpones a read or a write (``EAGAIN``).

Python's own files return None then, which counts as the end of the file, or fails far from its cause. An interrupting
signal (``EINTR``) is no error: Python tries again.
"""

from __future__ import annotations

import errno
import os
import threading
from io import BufferedRandom, BufferedReader, BytesIO, FileIO
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")
# Headers are Python literals. Python 3.11 sometimes raises a SystemError if two threads parse one each.
_parsing = threading.Lock()


class WholeFile(FileIO):
    """Unbuffered file whose reads and writes raise if they are postponed. They may still be short, as always."""

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and return the number of bytes read."""
        return self._done(super().readinto(buffer))

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to ``size`` bytes, or all if it is negative or None."""
        return self.readall() if size is None or size < 0 else self._done(super().read(size))

    def readall(self) -> bytes:
        """Return all bytes up to the end."""
        pieces = []
        while piece := self.read(1 << 20):
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


def update_whole(descriptor: int) -> BufferedRandom:
    """Open a descriptor for buffered reading and writing."""
    return BufferedRandom(WholeFile(descriptor, "r+b"))


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type of the ``.npy`` array that begins here; raise ValueError if none does."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    with _parsing:
        return read(stream)


def _header_of_numbers(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    shape, fortran, dtype = read_array_header(stream)
    if dtype.hasobject:
        raise ValueError("Python objects, not numbers or strings")
    return shape, fortran, dtype


def load_array(path: str) -> npt.NDArray[Any]:
    """Return the array of numbers in a ``.npy`` file; raise OSError if the file is cut off."""
    with open_whole(path) as file:
        shape, fortran, dtype = _header_of_numbers(file)
        found: npt.NDArray[Any] = np.empty(shape[::-1] if fortran else shape, dtype)
        if file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
            raise OSError(errno.EIO, "the file is cut off", path)
    return found.T if fortran else found


def load_arrays(path: str) -> dict[str, npt.NDArray[Any]]:
    """Return all arrays of a small ``.npz`` archive.

    The whole file is read first, since `zipfile` would misreport an error of the system.
    """
    with open_whole(path) as file, _parsing, np.load(BytesIO(file.read())) as arrays:
        return dict(arrays)


def map_array(path: str, *, writable: bool = False) -> np.memmap[Any, np.dtype[Any]]:
    """Map the array in a ``.npy`` file into memory; raise ValueError if it is none, or has Python objects."""
    with open_whole(path) as file:
        shape, fortran, dtype = _header_of_numbers(file)
        return np.memmap(path, dtype, "r+" if writable else "r", file.tell(), shape, "F" if fortran else "C")
