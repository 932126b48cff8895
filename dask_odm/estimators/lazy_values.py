"""A model's values as dask arrays, computed block by block on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.highlevelgraph import HighLevelGraph

from dask_odm.data.store.store import Store
from dask_odm.engine.predict import values_of_chunk, values_of_rows
from dask_odm.errors import InputError
from dask_odm.estimators.inputs.input_types import LazyArrays
from dask_odm.models.base import Model
from dask_odm.models.saved import ModelFile
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class LazyModel:
    """A model in the form that tasks carry, with its number of values per row and a token that identifies it."""

    carried: Model | ModelFile
    outputs: int
    token: str

    def of_store(self, store: Store) -> Any:
        """Return the values of the rows of a store, (n,) or (n, outputs)."""
        name = f"values-{store.token}-{self.token}"
        tasks: dict[Any, Any] = {
            self._key(name, i): (values_of_chunk, f"{name}-model", store, i) for i in range(store.n_chunks)
        }
        tasks[f"{name}-model"] = self.carried
        sizes = tuple((s := store.chunk_slice(i)).stop - s.start for i in range(store.n_chunks))
        return self._array(tasks, name, sizes, store.dtype)

    def of_arrays(self, arrays: LazyArrays) -> Any:
        """Return the values of the rows of a dask array, (n,) or (n, outputs); raise InputError if X is not numeric."""
        if arrays.X.dtype.kind not in "biuf":
            raise InputError(f"X must be numbers. Got dtype {arrays.X.dtype} instead.")
        dtype = arrays.X.dtype if arrays.X.dtype in (np.float32, np.float64) else np.dtype(np.float64)
        rows = arrays.X.astype(dtype)
        name = f"values-{rows.name}-{self.token}"
        tasks: dict[Any, Any] = {
            self._key(name, i): (values_of_rows, f"{name}-model", (rows.name, i, 0)) for i in range(rows.numblocks[0])
        }
        tasks[f"{name}-model"] = self.carried
        graph = HighLevelGraph.from_collections(name, tasks, dependencies=[rows])
        return self._array(graph, name, rows.chunks[0], dtype)

    def _key(self, name: str, i: int) -> tuple[Any, ...]:
        return (name, i) if self.outputs == 1 else (name, i, 0)

    def _array(self, graph: Any, name: str, sizes: tuple[Any, ...], dtype: np.dtype[Any]) -> Any:
        import dask.array as da

        chunks = (sizes,) if self.outputs == 1 else (sizes, (self.outputs,))
        return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))


def map_blocks(function: Callable[..., Array], values: Any, dtype: Any, *arguments: Any, columns: int = 0) -> Any:
    """Apply ``function`` to every block of a dask array of values, for one result a row, or ``columns`` results.

    Workers import nothing for it.
    """
    import dask.array as da

    name = f"{function.__name__}-{values.name}"
    last = (0,) * (values.ndim - 1)
    its_last = (0,) * (columns > 0)
    tasks: dict[Any, Any] = {
        (name, i, *its_last): (function, (values.name, i, *last), *arguments) for i in range(values.numblocks[0])
    }
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=[values])
    chunks = (values.chunks[0], (columns,)) if columns else (values.chunks[0],)
    return da.Array(graph, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
