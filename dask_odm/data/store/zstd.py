"""Zstandard frames of packed chunks.

The codec is imported with the first frame: its package looks up every codec that is installed, a fifth of a second that
rows in memory and plain stores have no use for.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt


def pack_zstd(plain: bytes) -> bytes:
    """``plain`` as a frame with a checksum of its own, at the codec's default level."""
    return bytes(_codec().encode(plain))


def unpack_zstd(packed: npt.NDArray[np.uint8], out: npt.NDArray[np.uint8]) -> None:
    """Unpack a frame into ``out``, whose size it must have; raises whatever the codec raises on damage."""
    _codec().decode(packed, out)


@cache
def _codec() -> Any:
    from numcodecs import Zstd

    return Zstd(level=0, checksum=True)
