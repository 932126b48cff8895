"""Models in files: read back with the same bits, large support rows left on disk, and passed to tasks by path."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from dask_odm.data.store.records import Record, read_record
from dask_odm.errors import StoreError
from dask_odm.models.models import KernelModel, LinearModel, Model
from dask_odm.typing import Array

HELD_BYTES = 64 << 20  # support rows up to this size stay in memory; larger ones are read again for every block
_LARGE = "support_vectors"
_KINDS: dict[str, type[KernelModel] | type[LinearModel]] = {each.kind: each for each in (KernelModel, LinearModel)}


@dataclass(frozen=True, eq=False)
class RecordRows:
    """Rows of an array of a record, read when sliced."""

    record: Record
    name: str

    @property
    def shape(self) -> tuple[int, ...]:
        return self.record.arrays[self.name].shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(self.record.arrays[self.name].dtype)

    def __getitem__(self, rows: slice) -> Array:
        start, stop, _ = rows.indices(self.shape[0])
        return self.record.rows(self.name, start, stop)


def model_from(record: Record) -> Model:
    """Build the model that a record holds; large support rows stay on disk.

    Raises StoreError if the record lacks a part of its model, is damaged, or names an unknown kind or kernel.
    """
    description = record.attributes.get("model")
    kind = description.get("kind") if isinstance(description, dict) else None
    if not isinstance(description, dict) or not isinstance(kind, str) or kind not in _KINDS:
        raise StoreError(f"model '{record.path}' is of a kind that this dask_odm does not know: {kind!r}; upgrade it.")
    arrays = {name: _array(record, name) for name in _KINDS[kind].parts}
    try:
        return _KINDS[kind].from_parts(description, arrays)
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(
            f"model '{record.path}' does not hold a {kind} model ({error}); restore this file or fit again."
        ) from error


def _array(record: Record, name: str) -> Any:
    layout = record.arrays.get(name)
    if layout is not None and name == _LARGE and layout.chunk_nbytes * layout.n_chunks > HELD_BYTES:
        return RecordRows(record, name)
    return record.array(name)


@lru_cache(maxsize=2)
def _read_model(path: str, digest: str) -> Model:
    record = read_record(path, "model")
    if record.digest != digest:
        raise record.replaced()
    return model_from(record)


@dataclass(frozen=True)
class ModelFile:
    """A saved model, by its path and the ``digest`` of its content; tasks carry it instead of the model."""

    path: str
    digest: str

    @classmethod
    def of(cls, record: Record) -> ModelFile:
        return cls(record.path, record.digest)

    def is_current(self) -> bool:
        """Return whether the file still exists, with the same content."""
        try:
            return ModelFile.of(read_record(self.path, "model")) == self
        except StoreError:
            return False

    def load(self) -> Model:
        """Return the model, which is read once a process."""
        return _read_model(self.path, self.digest)
