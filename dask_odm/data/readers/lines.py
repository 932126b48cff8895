"""Text files, compressed or not, as blocks of whole lines, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import IO, Any, cast

from dask.utils import format_bytes

from dask_odm.data.readers.sources import Reading
from dask_odm.data.storage.files import TEXT_BYTES
from dask_odm.data.storage.locations import open_source, source_size
from dask_odm.errors import InputError

LARGE_TIMES = 200  # times the bytes of a text that what is made of it may take, or `TEXT_BYTES`, unless asked for
# suffix: name, first bytes, and what opens it
COMPRESSIONS: dict[str, tuple[str, bytes, Callable[..., Any]]] = {
    ".gz": ("gzip", b"\x1f\x8b", gzip.open),
    ".bz2": ("bzip2", b"BZh", bz2.open),
    ".xz": ("xz", b"\xfd7zXZ\x00", lzma.open),
}
MARK = b"\xef\xbb\xbf"  # byte order mark of UTF-8


@dataclass(frozen=True)
class TextBlock:
    """Whole lines of one file.

    ``first_line`` is the number of the first line, counted from 1, and ``position`` the bytes of the file on disk that
    were read so far. Every line of ``data`` ends in a line feed, except perhaps the last of the file.
    """

    path: str
    data: bytes
    first_line: int
    position: int

    def lines(self, content: Callable[[bytes], bytes] | None = None) -> Iterator[tuple[int, bytes]]:
        """Return number and bytes of each line, or of those that have ``content``, which hold a row each."""
        lines = enumerate(self.data.split(b"\n"), self.first_line)
        return lines if content is None else ((number, line) for number, line in lines if content(line))

    def line_of(self, row: int, content: Callable[[bytes], bytes]) -> int:
        """Return the number of the line that holds row ``row`` of the block."""
        return next(islice(self.lines(content), row, None))[0]


def is_far_more(made: int, text: int) -> bool:
    """Return whether ``made`` bytes are far more than ``text`` bytes of text can mean."""
    return made > max(TEXT_BYTES, LARGE_TIMES * text)


class PipedText(str):
    """Name in messages of text that comes through a binary stream, which is read once.

    gzip, bzip2 and xz are recognised by their first bytes.
    """

    pipe: _Pipe

    def __new__(cls, stream: IO[bytes], name: str = "standard input") -> PipedText:
        """Make the name, and keep its stream."""
        piped = super().__new__(cls, name)
        piped.pipe = _Pipe(stream)
        return piped

    @cached_property
    def text(self) -> _Pipe:
        """The decompressed text."""
        return _Pipe(_decompressed(self.pipe, self.pipe.look(lambda head: len(head) >= 6)))


class _Pipe:
    """A stream of which the beginning can be looked at before it is read."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._head = b""
        self._read = 0

    def read(self, size: int = -1) -> bytes:
        head = self._head if size < 0 else self._head[:size]
        self._head = self._head[len(head) :]
        data: bytes = head or self._stream.read(size)
        self._read += len(data)
        return data

    def look(self, enough: Callable[[bytes], bool]) -> bytes:
        """Return so much of the beginning that it is enough, or all. It stays to be read."""
        while not enough(self._head) and (data := self._stream.read(max(1 << 12, len(self._head)))):
            self._head += data
        return self._head

    def tell(self) -> int:
        return self._read


def file_size(path: str) -> int:
    """Return the size of a file in bytes (0 for piped text); raise InputError if it is missing, a folder or empty."""
    if isinstance(path, PipedText):
        return 0
    with _explained(path):
        if os.path.isdir(path):
            raise InputError(f"{path}: is a folder, not a file.")
        size = source_size(path)
    if size == 0:
        raise InputError(f"{path}: the file is empty.")
    return size


@contextmanager
def open_text(path: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    """Open a file for reading, decompressing gzip, bzip2 or xz, which the first bytes tell.

    Yields the stream of text bytes and the file itself, whose ``tell`` is the position on disk. Damage and errors of
    the system become InputError.
    """
    with _explained(path):
        if isinstance(path, PipedText):
            yield cast(IO[bytes], path.text), cast(IO[bytes], path.pipe)
            return
        with open_source(path) as file:
            head = file.read(6)
            file.seek(0)
            suffix = os.path.splitext(path)[1].lower()
            if suffix in COMPRESSIONS and not any(head.startswith(magic) for _, magic, _ in COMPRESSIONS.values()):
                name = COMPRESSIONS[suffix][0]
                raise InputError(f"{path}: is not {name}-compressed; fetch it again, or rename it if it is plain text.")
            with _decompressed(file, head) as stream:
                yield stream, file


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise damage and errors of the system as InputError."""
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut off ({error}).") from error
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}.") from error


def _decompressed(file: Any, head: bytes) -> Any:
    """Return the stream of text of a file or pipe that begins with ``head``."""
    for _, magic, opened in COMPRESSIONS.values():
        if head.startswith(magic):
            return opened(file)
    return file


def blocks_of_files(paths: Sequence[str], reading: Reading) -> Iterator[TextBlock]:
    """Yield the blocks of all files; positions count the files before."""
    before = 0
    for path in paths:
        for block in text_blocks(path, reading.block_bytes, allow_large=reading.allow_large):
            yield replace(block, position=before + block.position)
        before += file_size(path)


def text_blocks(path: str, block_bytes: int, *, allow_large: bool = False) -> Iterator[TextBlock]:
    """Yield the whole file as blocks of about ``block_bytes``; a longer line makes a longer block.

    Raises InputError if there is no such file, or for a damaged compressed file, UTF-16 text, a line of more than 256
    MiB or, unless ``allow_large``, a compressed file that unpacks to far more than compressed text does.
    """
    line = 1
    rest = bytearray()
    unpacked = 0
    with open_text(path) as (stream, file):
        while data := stream.read(max(block_bytes, len(MARK))):
            if not allow_large:
                _check_unpacked(path, unpacked + len(data), file.tell())
            data = data if unpacked else _without_mark(path, data)
            unpacked += max(1, len(data))
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                rest += data  # a bytearray is extended without a copy
                if len(rest) > TEXT_BYTES:
                    raise InputError(f"{path}, line {line}: longer than {TEXT_BYTES} bytes; is this a text file?")
                continue
            block = TextBlock(path, b"".join((rest, data[:cut])), line, file.tell())
            yield block
            line += block.data.count(b"\n")
            rest = bytearray(data[cut:])
        if rest:
            yield TextBlock(path, bytes(rest), line, file.tell())


def _check_unpacked(path: str, unpacked: int, read: int) -> None:
    """Raise InputError if the ``read`` bytes of a compressed file unpack to far more than text does."""
    if is_far_more(unpacked, read):
        rest = f" of {format_bytes(os.path.getsize(path))}" if os.path.isfile(path) else ""
        raise InputError(
            f"{path}: {format_bytes(read)}{rest} unpack to more than {format_bytes(unpacked)}, {unpacked // read} "
            "times as much; is this a file of zeros? If it is meant, pass allow_large=True (--yes)."
        )


def first_line(path: str) -> tuple[int, bytes]:
    """Return number and content of the first line that is not blank; raise InputError if there is none."""
    blocks = _looked_at(path) if isinstance(path, PipedText) else text_blocks(path, 1 << 16)
    for block in blocks:
        for number, line in block.lines():
            if line.strip():
                return number, line.strip(b"\r\n")
    raise InputError(f"{path}: the file is empty.")


def is_number(word: str | bytes) -> bool:
    """Return whether a word is a number in ASCII, without Python's underscores as in 1_000."""
    try:
        float(word)
    except ValueError:
        return False
    text = word.decode("ascii", "replace") if isinstance(word, bytes) else word
    return text.isascii() and "_" not in text


def first_bytes(path: str) -> bytes:
    """Return the first bytes of a file; of piped text, the first decompressed ones."""
    if isinstance(path, PipedText):
        return _looked_at(path)[0].data[:8]
    with _explained(path), open_source(path) as file:
        return file.read(8)


def _looked_at(path: PipedText) -> list[TextBlock]:
    """Return the beginning of piped text, which can still be read: its first lines, or all of it."""
    with _explained(path):
        head = path.text.look(lambda text: b"\n" in text.lstrip() or len(text) > TEXT_BYTES)
    return [TextBlock(path, _without_mark(path, head), 1, 0)]


def _without_mark(path: str, data: bytes) -> bytes:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise InputError(f"{path}: UTF-16 text; save it as UTF-8.")
    return data.removeprefix(MARK)
