"""Reading a source whole, block by block, and text to read."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import vstack
from sklearn.datasets import dump_svmlight_file

from dask_odm.data.readers.complete_rows import CompleteRows
from dask_odm.data.readers.formats import open_source
from dask_odm.data.readers.sources import SourceBlock
from dask_odm.data.store.store import Store

COMPRESS = {"": lambda data: data, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def read_blocks(source, *, drop_missing: bool = False, **options) -> Iterator[SourceBlock]:
    """The complete rows of a source, as `ingest` reads them."""
    yield from CompleteRows(open_source(source, **options), drop=drop_missing).blocks()


def read_all(source, **options) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """All blocks in one piece; copied, since a block may share memory with the next."""
    blocks = [(b.X.copy(), b.y, b.weight) for b in read_blocks(source, **options)]
    X, y, weight = zip(*blocks, strict=True)
    return (
        np.concatenate(X),
        None if y[0] is None else np.concatenate(y),
        None if weight[0] is None else np.concatenate(weight),
    )


def write_file(path: Path, text: str | bytes) -> str:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return str(path)


def sparse_rows(rows: int = 200, features: int = 9, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)) * (rng.uniform(size=(rows, features)) < 0.4)
    X[0, features - 1] = 0.5  # the last index occurs
    return X, rng.choice([-1, 1], rows)


def libsvm_bytes(rows: int = 200) -> bytes:
    X, y = sparse_rows(rows)
    out = io.BytesIO()
    dump_svmlight_file(X, y, out, zero_based=False)
    return out.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def tarred(members: dict[str, bytes], mode: str = "w") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    codec = pytest.importorskip("pyarrow").Codec("zstd")
    half = len(data) // 2
    return codec.compress(data[:half], asbytes=True) + codec.compress(data[half:], asbytes=True)  # frames, as pzstd


def stored(store: Store) -> tuple[np.ndarray, np.ndarray | None]:
    """All rows of a store, dense or sparse, and its labels as values."""
    X = [block.X.copy() for block in store.blocks()]
    X = vstack(X, format="csr") if store.is_sparse else np.concatenate(X)
    codes = store.read_column("y")
    return X, None if codes is None else store.labels(codes)
