"""Checksums of a store's chunks by its manifest, at hand in every process without travelling with the store.

A task that reads a chunk holds it against the manifest's entry. The entries of a store of many chunks are megabytes;
so they stay out of `Store`, and every process reads them once a store, from the manifest of the store's digest.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from dask_odm.data.store.layout import Manifest

MOST_STORES = 16

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
    """What was kept for the store at ``path`` with this content; else of the manifest that ``load`` reads, once."""
    found = _kept.get((path, digest))
    if found is None:
        with _loading:  # threads that begin together wait for one of them
            found = _kept.get((path, digest))
            if found is None:
                found = keep_entries(path, digest, load())
    return found
