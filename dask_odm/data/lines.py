"""Text files, compressed or not, as blocks of whole lines, in memory that does not depend on their size."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

from dask_odm.errors import InputError

MAX_LINE_BYTES = 1 << 28
_MAGIC = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_WIDE = (b"\xff\xfe", b"\xfe\xff")
_BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    Parameters
    ----------
    data : the lines, each but perhaps the file's last ending in a line feed
    first_line : number of the first, counted from 1
    position : bytes of the file on disk read so far
    """

    data: bytes
    first_line: int
    position: int

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Yield number and content of each line, blank ones too."""
        yield from enumerate(self.data.split(b"\n"), self.first_line)

    def count_lines(self, blank: bytes) -> int:
        """Count the lines that hold more than the characters in ``blank``."""
        return sum(1 for line in self.data.split(b"\n") if line.strip(blank))


def file_size(path: str) -> int:
    """Return the bytes of a file; InputError where it is none, or empty."""
    try:
        if os.path.isdir(path):
            raise InputError(f"{path}: is a folder, not a file.")
        size = os.path.getsize(path)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}.") from error
    if size == 0:
        raise InputError(f"{path}: the file is empty.")
    return size


@contextmanager
def open_text(path: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file for reading, and undo gzip, bzip2 or xz, told by the first bytes.

    Yields the stream of text bytes and the file itself, whose ``tell`` is the position on disk. Damage and
    refusal by the system become InputError.
    """
    try:
        with open(path, "rb") as file:
            stream = _decompressed(file)
            with stream:
                yield stream, file
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut off ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}.") from error


def _decompressed(file: IO[bytes]) -> Any:
    head = file.read(6)
    file.seek(0)
    kind = next((name for magic, name in _MAGIC if head.startswith(magic)), None)
    if kind == "gzip":
        return gzip.GzipFile(fileobj=file)
    if kind == "bzip2":
        return bz2.BZ2File(file)
    return lzma.LZMAFile(file) if kind == "xz" else file


def text_blocks(path: str, block_bytes: int) -> Iterator[TextBlock]:
    """Yield the whole file as blocks of about ``block_bytes``; a longer line makes a longer block.

    Raises
    ------
    InputError
        No such file, a damaged compressed file, UTF-16 text, or a line of more than 256 MiB.
    """
    line, rest = 1, b""
    with open_text(path) as (stream, file):
        while data := stream.read(max(block_bytes, len(_BOM))):
            if line == 1 and not rest:
                data = _without_mark(path, data)
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                rest += data
                if len(rest) > MAX_LINE_BYTES:
                    raise InputError(f"{path}, line {line}: longer than {MAX_LINE_BYTES} bytes; is this a text file?")
                continue
            block = TextBlock(rest + data[:cut], line, file.tell())
            yield block
            line += block.data.count(b"\n")
            rest = data[cut:]
        if rest:
            yield TextBlock(rest, line, file.tell())


def first_line(path: str) -> tuple[int, bytes]:
    """Return number and content of the first line that is not blank; InputError where there is none."""
    for block in text_blocks(path, 1 << 16):
        for number, line in block.lines():
            if line.strip():
                return number, line.strip(b"\r\n")
    raise InputError(f"{path}: the file is empty.")


def _without_mark(path: str, data: bytes) -> bytes:
    if data.startswith(_WIDE):
        raise InputError(f"{path}: UTF-16 text; save it as UTF-8.")
    return data.removeprefix(_BOM)
