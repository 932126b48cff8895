"""Files of which a read or write that the system puts off (``EAGAIN``) is an error.

Python's own files answer it by None, which then counts as the end of the file, or fails far from its cause. A signal
that interrupts (``EINTR``) is nobody's error: Python tries again.
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
_PIECE_BYTES = 1 << 20  # of a file that is read to an end nobody knows
# Headers are Python literals, and Python 3.11 raises a SystemError now and then where two threads parse one each.
_parsing = threading.Lock()


class WholeFile(FileIO):
    """A file without a buffer, which reads and writes or raises; a short read or write is one of less, as ever."""

    def readinto(self, buffer: Any, /) -> int:
        """Fill a buffer, and return how many bytes there were."""
        return self._done(super().readinto(buffer))

    def read(self, size: int | None = -1, /) -> bytes:
        """Up to ``size`` bytes; all there are where it is negative, or None."""
        return self.readall() if size is None or size < 0 else self._done(super().read(size))

    def readall(self) -> bytes:
        """All bytes up to the end."""
        pieces = []
        while piece := self.read(_PIECE_BYTES):
            pieces.append(piece)
        return b"".join(pieces)

    def write(self, data: Any, /) -> int:
        """Write what the system takes of ``data``, and return how much."""
        return self._done(super().write(data))

    def _done(self, answer: T | None) -> T:
        if answer is None:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), self.name)
        return answer


def open_whole(path: str | os.PathLike[str] | int) -> BufferedReader:
    """Open a file, or a descriptor, for reading, with a buffer."""
    return BufferedReader(WholeFile(path, "rb"))


def update_whole(descriptor: int) -> BufferedRandom:
    """Open a descriptor for reading and writing, with a buffer."""
    return BufferedRandom(WholeFile(descriptor, "r+b"))


def read_array_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and type of a ``.npy`` array that begins here; ValueError if none does."""
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
    """The array of numbers in a ``.npy`` file; OSError where it is cut off."""
    with open_whole(path) as file:
        shape, fortran, dtype = _header_of_numbers(file)
        found: npt.NDArray[Any] = np.empty(shape[::-1] if fortran else shape, dtype)
        if file.readinto(found.reshape(-1).view(np.uint8).data) != found.nbytes:
            raise OSError(errno.EIO, "the file is cut off", path)
    return found.T if fortran else found


def load_arrays(path: str) -> dict[str, npt.NDArray[Any]]:
    """All arrays in a small ``.npz`` archive, which is in memory meanwhile: `zipfile` takes an error for another."""
    with open_whole(path) as file, _parsing, np.load(BytesIO(file.read())) as arrays:
        return dict(arrays)


def map_array(path: str, *, writable: bool = False) -> np.memmap[Any, np.dtype[Any]]:
    """The array in a ``.npy`` file, mapped into memory; ValueError where it is none, or one of Python objects."""
    with open_whole(path) as file:
        shape, fortran, dtype = _header_of_numbers(file)
        return np.memmap(path, dtype, "r+" if writable else "r", file.tell(), shape, "F" if fortran else "C")
