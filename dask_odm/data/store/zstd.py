"""Zstandard frames of compressed chunks.

The codec is imported with the first frame. Its package looks up all installed codecs, which takes a fifth of a second
that rows in memory and uncompressed stores do not need.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


def pack_zstd(plain: bytes) -> bytes:
    """Return ``plain`` as a frame with its own checksum, at the codec's default level."""
    return bytes(_codec().encode(plain))


def unpack_zstd(packed: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Unpack a frame into ``out``, which must have its size. Damage raises whatever the codec raises."""
    _codec().decode(packed, out)


@cache
def _codec() -> Any:
    from numcodecs import Zstd

    return Zstd(level=0, checksum=True)
