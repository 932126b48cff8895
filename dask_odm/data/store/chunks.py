"""Reading one chunk file of a store and checking it: straight into memory, or through zarr."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zarr

from dask_odm.data.store.files import reason
from dask_odm.data.store.layout import CHECKSUM_BYTES, STORE, ArrayLayout, Wording, crc32c
from dask_odm.errors import StoreError
from dask_odm.typing import Array


def read_plain_chunk(
    root: str,
    array: ArrayLayout,
    i: int,
    out: npt.NDArray[np.uint8] | None = None,
    *,
    check: bool = True,
    wording: Wording = STORE,
) -> Array:
    """Read a ``[bytes, crc32c]`` chunk straight into memory and check its checksum.

    Three times as fast as through zarr, since nothing is copied and a buffer is used again.
    """
    nbytes = array.chunk_nbytes + CHECKSUM_BYTES
    data = np.empty(nbytes, dtype=np.uint8) if out is None else out[:nbytes]
    read = _read_into(root, array, i, data.data, wording)
    if read != nbytes:
        raise damage(root, array, i, f"truncated, {read} of {nbytes} bytes", wording)
    payload = data[:-CHECKSUM_BYTES]
    if check and crc32c(payload) != int.from_bytes(data[-CHECKSUM_BYTES:].tobytes(), "little"):
        raise damage(root, array, i, "checksum mismatch", wording)
    numbers: Array = payload.view(np.dtype(array.dtype).newbyteorder("<")).reshape(array.chunks)
    return numbers


def read_zarr_chunk(root: str, array: ArrayLayout, i: int) -> Array:
    """Read a chunk of any codecs through zarr; a missing one is an error, not its fill value."""
    if array.compression == "zstd":
        size = _frame_size(read_sealed(root, array, i)[:18])
        if size != array.chunk_nbytes:  # before memory is taken for whatever size it claims
            raise damage(root, array, i, f"unreadable ({size} bytes, not {array.chunk_nbytes}, are packed in it)")
    elif not os.path.isfile(os.path.join(root, array.chunk_key(i))):
        raise damage(root, array, i, "missing")
    try:
        source = zarr.open_array(Path(root) / array.name, mode="r", zarr_format=3)
        rows = source[i * array.chunks[0] : (i + 1) * array.chunks[0]]
    except Exception as error:  # each codec raises its own kind on damage
        reason = "checksum mismatch" if "checksum" in str(error).lower() else f"unreadable ({error})"
        raise damage(root, array, i, reason) from error
    return np.asarray(rows)


def _read_into(root: str, array: ArrayLayout, i: int, target: memoryview, wording: Wording) -> int:
    """Fill ``target`` from the chunk's file and return how many bytes it has (at most one too many)."""
    with _opened(root, array, i, wording) as file:
        done = 0
        while done < len(target) and (count := file.readinto(target[done:])):
            done += count
        return done + len(file.read(1) or b"")


@contextmanager
def _opened(root: str, array: ArrayLayout, i: int, wording: Wording) -> Iterator[FileIO]:
    """Open a chunk's file, following no link; whatever the system refuses becomes StoreError."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    try:
        with open(os.open(os.path.join(root, array.chunk_key(i)), flags), "rb", buffering=0) as file:
            yield file
    except FileNotFoundError as error:
        raise damage(root, array, i, "missing", wording) from error
    except OSError as error:
        raise damage(root, array, i, f"unreadable ({reason(error)})", wording) from error


def _frame_size(head: bytes) -> int | None:
    """Size that a zstd frame says it decompresses to, RFC 8878, section 3.1.1.1; None where it does not say."""
    if len(head) < 6 or not head.startswith(b"\x28\xb5\x2f\xfd"):
        return None
    single, width = head[4] >> 5 & 1, (0, 2, 4, 8)[head[4] >> 6]
    width = width or single
    at = 5 + (1 - single) + (0, 1, 2, 4)[head[4] & 3]
    if not width or len(head) < at + width:
        return None
    return int.from_bytes(head[at : at + width], "little") + (256 if width == 2 else 0)


def read_sealed(root: str, array: ArrayLayout, i: int) -> bytes:
    """Read a chunk file of any size whose last four bytes are its checksum, and return the rest."""
    with _opened(root, array, i, STORE) as file:
        data = file.readall()
    if len(data) < CHECKSUM_BYTES or crc32c(data[:-CHECKSUM_BYTES]) != int.from_bytes(data[-4:], "little"):
        raise damage(root, array, i, "checksum mismatch")
    return data[:-CHECKSUM_BYTES]


def damage(root: str, array: ArrayLayout, i: int, what: str, wording: Wording = STORE) -> StoreError:
    """Return the error for a damaged chunk, naming store, array and chunk."""
    place = f"{wording.noun} '{root}', array '{array.name}', chunk {array.chunk_label(i)}"
    return StoreError(f"{place}: {what}; {wording.repair}.")
