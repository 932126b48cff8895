"""Text files, compressed or not, as blocks of whole lines, in bounded memory."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BufferedReader, BytesIO
from itertools import chain, islice
from typing import IO, Any

from dask.utils import format_bytes

from dask_odm.data.readers.sources import Reading
from dask_odm.data.storage.files import TEXT_BYTES
from dask_odm.data.storage.locations import open_buffered, source_size
from dask_odm.data.storage.scratch import saved_stream
from dask_odm.errors import DaskODMError, InputError

LARGE_TIMES = 200  # times the bytes of a text that what is made of it may take, or `TEXT_BYTES`, unless asked for
ZIP = (b"PK\x03\x04", b"PK\x05\x06")  # first bytes of a zip archive, and of one without files
_LOOK = tarfile.BLOCKSIZE  # bytes of the beginning that tell how a file is packed: the header of a tar archive
_FIRST_LINE = 1 << 16  # bytes of the beginning that are looked at for what ends lines, and for the first ones


class _PackedError(Exception):
    """Text that cannot be unpacked, and the way out."""


def _zstd(file: Any) -> Any:
    """Return the stream of text of a file that zstd compressed."""
    try:
        import pyarrow
    except ImportError as error:
        raise _PackedError("zstd-compressed text needs pyarrow; pip install pyarrow, or unpack it: unzstd.") from error
    return BufferedReader(pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"))


def _zipped(file: Any) -> Any:
    """Return the stream of text of a zip archive, which holds one file."""
    archive = zipfile.ZipFile(file)
    names = _files_in(archive)
    if len(names) != 1:
        raise _not_one(names)
    return archive.open(names[0])


def _files_in(archive: zipfile.ZipFile) -> list[str]:
    return [name for name in archive.namelist() if _is_file(name)]


class _TarMember:
    """Text of a tar archive, which holds one file, and is read from beginning to end."""

    def __init__(self, stream: Any) -> None:
        self._archive = tarfile.open(fileobj=stream, mode="r|")  # noqa: SIM115  # it holds nothing open beside the stream
        self._files: Iterator[Any] = (member for member in self._archive if member.isfile() and _is_file(member.name))
        first = next(self._files, None)
        if first is None:
            raise _not_one([])
        self._name = first.name
        self._text: Any = self._archive.extractfile(first)

    def read(self, size: int = -1) -> bytes:
        data: bytes = self._text.read(size)
        if size and not data:
            others = [member.name for member in self._files]
            if others:
                raise _not_one([self._name, *others])
        return data


def _is_file(name: str) -> bool:
    """Return whether the name of a member is that of a file, not of a folder or of what macOS puts beside each file."""
    return not (name.endswith("/") or name.startswith("__MACOSX/") or os.path.basename(name).startswith("."))


def _not_one(files: Sequence[str]) -> _PackedError:
    """Return the error for an archive that does not hold one file."""
    if not files:
        return _PackedError("the archive holds no file.")
    held = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
    return _PackedError(f"holds {len(files)} files, {held}; unpack it, and name those to read.")


# suffix: name, first bytes, and what opens it
COMPRESSIONS: dict[str, tuple[str, bytes | tuple[bytes, ...], Callable[..., Any]]] = {
    ".gz": ("gzip", b"\x1f\x8b", gzip.open),
    ".bz2": ("bzip2", b"BZh", bz2.open),
    ".xz": ("xz", b"\xfd7zXZ\x00", lzma.open),
    ".zst": ("zstd", b"\x28\xb5\x2f\xfd", _zstd),
    ".zip": ("zip", ZIP, _zipped),
}
_UNKNOWN = (b"7z\xbc\xaf\x27\x1c", b"Rar!", b"\x04\x22\x4d\x18", b"\x1f\x9d")  # 7-Zip, RAR, LZ4, compress
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
        split = (line.removesuffix(b"\n") for line in BytesIO(self.data))  # as they are asked for
        lines = enumerate(split, self.first_line)
        return lines if content is None else ((number, line) for number, line in lines if content(line))

    def line_of(self, row: int, content: Callable[[bytes], bytes]) -> int:
        """Return the number of the line that holds row ``row`` of the block."""
        return next(islice(self.lines(content), row, None))[0]


def is_far_more(made: int, text: int) -> bool:
    """Return whether ``made`` bytes are far more than ``text`` bytes of text can mean."""
    return made > max(TEXT_BYTES, LARGE_TIMES * text)


class PipedText(str):
    """Name in messages of a binary stream, which is read once, and saved to ``file`` to be read as other files are."""

    file: str

    def __new__(cls, stream: IO[bytes]) -> PipedText:
        """Save the stream; raise StoreError if there is no room for it."""
        piped = super().__new__(cls, "standard input")
        piped.file = saved_stream(stream)
        return piped


def _opened(path: str) -> IO[bytes]:
    return open_buffered(path.file if isinstance(path, PipedText) else path)


def file_size(path: str) -> int:
    """Return the size of a file in bytes; raise InputError if it is missing, a folder or empty."""
    with _explained(path):
        if os.path.isdir(path):
            raise InputError(f"{path}: is a folder, not a file.")
        size = source_size(path.file if isinstance(path, PipedText) else path)
    if size == 0:
        raise InputError(f"{path}: the file is empty.")
    return size


@contextmanager
def open_text(path: str) -> Iterator[tuple[Any, IO[bytes]]]:
    """Open a file for reading, unpacking gzip, bzip2, xz, zstd, zip and tar, which the first bytes tell.

    Yields the stream of text bytes and the file itself, whose ``tell`` is the position on disk. Damage and errors of
    the system become InputError.
    """
    with _explained(path), ExitStack() as opened:
        file = opened.enter_context(_opened(path))
        head = file.read(_LOOK)
        file.seek(0)
        unpack = next((unpack for _, magic, unpack in COMPRESSIONS.values() if head.startswith(magic)), None)
        suffix = os.path.splitext(path)[1].lower()
        if suffix in COMPRESSIONS and unpack is None:
            name = COMPRESSIONS[suffix][0]
            raise InputError(f"{path}: is not {name}-compressed; fetch it again, or rename it if it is plain text.")
        if head.startswith(_UNKNOWN):
            raise _PackedError("unpack it first; only .gz, .bz2, .xz, .zst, .zip and .tar are read as they are.")
        text: Any = file
        if unpack is not None:
            text = opened.enter_context(unpack(file))
            head = text.peek(_LOOK)
        yield _TarMember(text) if head[257:262] == b"ustar" else text, file  # a tar archive says so there


@contextmanager
def _explained(path: str) -> Iterator[None]:
    """Raise damage and errors of the system as InputError."""
    try:
        yield
    except (EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile, tarfile.TarError) as error:
        raise InputError(f"{path}: the compressed file is damaged or cut off ({error}).") from error
    except _PackedError as error:
        raise InputError(f"{path}: {error}") from error
    except (NotImplementedError, RuntimeError) as error:  # of zipfile: packed in an unknown way, or encrypted
        raise InputError(f"{path}: cannot be unpacked here ({error}); unpack it first.") from error
    except OSError as error:
        if error.errno is None and not isinstance(error, DaskODMError):  # of bz2 and zstd
            raise InputError(f"{path}: the compressed file is damaged or cut off ({error}).") from error
        raise InputError(f"{path}: {error.strerror or error}.") from error


def blocks_of_files(paths: Sequence[str], reading: Reading) -> Iterator[TextBlock]:
    """Yield the blocks of all files; positions count the files before."""
    before = 0
    for path in paths:
        for block in text_blocks(path, reading.block_bytes, allow_large=reading.allow_large):
            yield replace(block, position=before + block.position)
        before += file_size(path)


def text_blocks(path: str, block_bytes: int, *, allow_large: bool = False) -> Iterator[TextBlock]:
    """Yield the whole file as blocks of about ``block_bytes``; a longer line makes a longer block.

    If there is no line feed but a carriage return in the beginning, this one ends lines, and a line feed replaces it.

    Raises InputError if there is no such file, or for a damaged compressed file, UTF-16 text, a line of more than 256
    MiB or, unless ``allow_large``, a compressed file that unpacks to far more than compressed text does.
    """
    line = 1
    rest = bytearray()
    unpacked = 0
    with open_text(path) as (text, file):
        step = max(block_bytes, len(MARK))
        head = text.read(max(step, _FIRST_LINE))
        opening = head[:_FIRST_LINE]
        ends_in_cr = b"\n" not in opening and b"\r" in opening[:-1]
        begun = iter([head[i : i + step] for i in range(0, len(head), step)])
        del head, opening  # so that they are not held while the rest is read
        for data in chain(begun, iter(partial(text.read, step), b"")):
            if not allow_large:
                _check_unpacked(path, unpacked + len(data), file.tell())
            if not unpacked and data.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise InputError(f"{path}: UTF-16 text; save it as UTF-8.")
            data = data if unpacked else data.removeprefix(MARK)
            data = data.replace(b"\r", b"\n") if ends_in_cr else data
            unpacked += max(1, len(data))
            cut = data.rfind(b"\n") + 1
            if cut == 0:
                rest += data  # a bytearray is extended without a copy
                if len(rest) > TEXT_BYTES:
                    raise InputError(f"{path}, line {line}: longer than {TEXT_BYTES} bytes; is this a text file?")
                continue
            block = TextBlock(path, b"".join((rest, memoryview(data)[:cut])), line, file.tell())
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


def opening_lines(path: str) -> Iterator[tuple[int, bytes]]:
    """Yield number and content of the whole lines that are not blank in the beginning of a file, one at least.

    Raises InputError if there is none.
    """
    for block in text_blocks(path, _FIRST_LINE):
        found = [(number, line.strip(b"\r\n")) for number, line in block.lines() if line.strip()]
        if found:
            yield from found
            return
    raise InputError(f"{path}: the file is empty.")


def number_in(word: str | bytes) -> float | None:
    """Return the number that a word is in ASCII, without Python's underscores as in 1_000; None if it is none."""
    try:
        number = float(word)
    except ValueError:
        return None
    text = word.decode("ascii", "replace") if isinstance(word, bytes) else word
    return number if text.isascii() and "_" not in text else None


def is_number(word: str | bytes) -> bool:
    """Return whether a word is a number, see `number_in`."""
    return number_in(word) is not None


def names_in_zip(path: str) -> list[str]:
    """Return the names of the files in a zip archive."""
    with _explained(path), _opened(path) as file, zipfile.ZipFile(file) as archive:
        return _files_in(archive)


def first_bytes(path: str) -> bytes:
    """Return the first bytes of a file."""
    with _explained(path), _opened(path) as file:
        return file.read(8)
