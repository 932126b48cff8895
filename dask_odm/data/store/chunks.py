"""Reading one chunk of a store straight into memory, and checking it by its own and the manifest's checksum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from dask_odm.data.storage.files import reason
from dask_odm.data.storage.storage import LocalStorage, fill, storage_of
from dask_odm.data.store.layout import CHECKSUM_BYTES, STORE, ArrayLayout, Wording, crc32c
from dask_odm.data.store.zstd import unpack_zstd
from dask_odm.errors import StoreError
from dask_odm.typing import Array

SWAPPED = "checksum differs from the manifest's (swapped or of another store)"


def read_plain_chunk(
    root: str,
    array: ArrayLayout,
    i: int,
    out: npt.NDArray[np.uint8] | None = None,
    *,
    expected: int | None = None,
    wording: Wording = STORE,
) -> Array:
    """Read a ``[bytes, crc32c]`` chunk straight into memory and check its checksum.

    This is three times as fast as through zarr, since nothing is copied and a buffer is reused. ``expected`` is the
    checksum by the manifest, since a sound chunk may be another one's.
    """
    nbytes = array.chunk_nbytes + CHECKSUM_BYTES
    data = np.empty(nbytes, dtype=np.uint8) if out is None else out[:nbytes]
    _read_whole(root, array, i, data, wording)
    payload = data[:-CHECKSUM_BYTES]
    _check(root, array, i, data, expected, wording)
    numbers: Array = payload.view(np.dtype(array.dtype).newbyteorder("<")).reshape(array.chunks)
    return numbers


def read_plain_pieces(root: str, array: ArrayLayout, i: int, rows: int, expected: int) -> Iterator[Array]:
    """Yield a ``[bytes, crc32c]`` chunk of a folder, ``rows`` at a time, in one reused buffer.

    This is twice as fast as reading the whole chunk if pieces are used at once, since they stay in the processor's
    cache. The checksum is checked at the end: if that raises, nothing that was made of earlier pieces may be used.
    """
    nbytes = array.chunk_nbytes
    dtype = np.dtype(array.dtype).newbyteorder("<")
    shape = (-1, *array.chunks[1:])
    buffer = np.empty(min(nbytes, nbytes // array.chunks[0] * rows), dtype=np.uint8)
    end = np.empty(CHECKSUM_BYTES + 1, dtype=np.uint8)
    checksum = 0
    read = 0
    with _explained(root, array, i, STORE), LocalStorage(root).opened(array.chunk_key(i)) as file:
        while read < nbytes:
            piece = buffer[: nbytes - read]
            count = fill(file, piece.data)
            read += count
            if count < len(piece):
                break
            checksum = crc32c(piece, checksum)
            yield piece.view(dtype).reshape(shape)
        read += fill(file, end.data)
    if read != nbytes + CHECKSUM_BYTES:
        raise damage(root, array, i, f"truncated, {read} of {nbytes + CHECKSUM_BYTES} bytes")
    _compare(root, array, i, checksum, int.from_bytes(end[:-1].tobytes(), "little"), expected, STORE)


def read_packed_chunk(root: str, array: ArrayLayout, i: int, entry: tuple[int, int]) -> Array:
    """Read and unpack a ``[bytes, zstd, crc32c]`` chunk of the size and checksum in the manifest."""
    packed = read_sealed(root, array, i, entry)
    size = _frame_size(packed[:18].tobytes())
    if size != array.chunk_nbytes:  # checked before memory is taken for the size it claims
        raise damage(root, array, i, f"unreadable ({size} bytes, not {array.chunk_nbytes}, are packed in it)")
    numbers = np.empty(array.chunks, np.dtype(array.dtype).newbyteorder("<"))
    try:
        unpack_zstd(packed, numbers.reshape(-1).view(np.uint8))
    except Exception as error:  # the codec raises various errors on damage
        raise damage(root, array, i, f"unreadable ({error})") from error
    return numbers


def read_sealed(
    root: str, array: ArrayLayout, i: int, entry: tuple[int, int], wording: Wording = STORE
) -> npt.NDArray[np.uint8]:
    """Read a chunk file of the size and checksum in the manifest, and return it without its checksum."""
    data = np.empty(entry[0], dtype=np.uint8)
    _read_whole(root, array, i, data, wording)
    _check(root, array, i, data, entry[1], wording)
    return data[:-CHECKSUM_BYTES]


def _read_whole(root: str, array: ArrayLayout, i: int, data: npt.NDArray[np.uint8], wording: Wording) -> None:
    """Fill ``data`` from the chunk, which must have exactly that size; errors of the system become StoreError."""
    with _explained(root, array, i, wording):
        read = storage_of(root).read_into(array.chunk_key(i), data.data)
    if read != len(data):
        raise damage(root, array, i, f"truncated, {read} of {len(data)} bytes", wording)


def _check(
    root: str, array: ArrayLayout, i: int, data: npt.NDArray[np.uint8], expected: int | None, wording: Wording
) -> None:
    """Compare a chunk with the checksum at its end, and that with the manifest's."""
    found = int.from_bytes(data[-CHECKSUM_BYTES:].tobytes(), "little")
    _compare(root, array, i, crc32c(data[:-CHECKSUM_BYTES]), found, expected, wording)


def _compare(
    root: str, array: ArrayLayout, i: int, checksum: int, found: int, expected: int | None, wording: Wording
) -> None:
    """Compare the checksum of a chunk's numbers with the one ``found`` behind them, and that with the manifest's."""
    if checksum != found:
        raise damage(root, array, i, "checksum mismatch", wording)
    if expected not in (None, found):
        raise damage(root, array, i, SWAPPED, wording)


@contextmanager
def _explained(root: str, array: ArrayLayout, i: int, wording: Wording) -> Iterator[None]:
    """Raise errors of the system as StoreError, naming the chunk."""
    try:
        yield
    except FileNotFoundError as error:
        raise damage(root, array, i, "missing", wording) from error
    except OSError as error:
        raise damage(root, array, i, f"unreadable ({reason(error)})", wording) from error


def _frame_size(head: bytes) -> int | None:
    """Return the unpacked size that a zstd frame declares (RFC 8878, section 3.1.1.1); None if it declares none."""
    if len(head) < 6 or not head.startswith(b"\x28\xb5\x2f\xfd"):
        return None
    single = head[4] >> 5 & 1
    width = (0, 2, 4, 8)[head[4] >> 6]
    width = width or single
    at = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    if not width or len(head) < at + width:
        return None
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


def damage(root: str, array: ArrayLayout, i: int, what: str, wording: Wording = STORE) -> StoreError:
    """Return the error for a damaged chunk, naming store, array and chunk."""
    place = f"{wording.noun} '{root}', array '{array.name}', chunk {array.chunk_label(i)}"
    return StoreError(f"{place}: {what}; {wording.repair}.")
