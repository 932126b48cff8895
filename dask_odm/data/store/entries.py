"""Checksums of a store's chunks from its manifest, kept per process instead of travelling with the store.

A task that reads a chunk compares it with the manifest's entry. The entries of many chunks take megabytes, so they are
not part of `Store`. Every process reads them once per store, from the manifest with the store's digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.layout import Manifest

MOST_STORES = 16  # stores whose entries a process keeps

Entries = dict[str, npt.NDArray[np.int64]]

_kept: OrderedDict[tuple[str, str], Entries] = OrderedDict()
_lock = threading.Lock()
_loading = threading.Lock()


def keep_entries(path: str, digest: str, manifest: Manifest) -> Entries:
    """Keep the (size, checksum) of all chunks of a store, and return them: array name to (chunks, 2)."""
    entries = {name: np.array(items, np.int64).reshape(-1, 2) for name, items in manifest.chunks.items()}
    with _lock:
        _kept[path, digest] = entries
        _kept.move_to_end((path, digest))
        while len(_kept) > MOST_STORES:
            _kept.popitem(last=False)
    return entries


def entries_of(path: str, digest: str, load: Callable[[], Manifest]) -> Entries:
    """Return the entries kept for the store at ``path`` with this digest, or read them once from ``load()``."""
    found = _kept.get((path, digest))
    if found is None:
        with _loading:  # one thread loads, the others wait
            found = _kept.get((path, digest))
            if found is None:
                found = keep_entries(path, digest, load())
    return found
