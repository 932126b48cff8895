"""A model's values as dask arrays, computed block by block on demand. Workers import nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


def lazy_values(source: Store | LazyArrays, model: Model | ModelFile, outputs: int, token: str) -> Any:
    """Return a model's values, (n,) or (n, outputs), of the rows of a store or of dask arrays.

    ``model`` is what tasks carry, and ``token`` identifies it. Raises InputError if X is not numeric.
    """
    columns = outputs if outputs > 1 else 0
    if isinstance(source, Store):
        name = f"values-{source.token}-{token}"
        held = f"{name}-model"
        chunks = range(source.n_chunks)
        sizes = tuple((rows := source.chunk_slice(i)).stop - rows.start for i in chunks)
        tasks: list[Any] = [(values_of_chunk, held, source, i) for i in chunks]
        return _array(name, tasks, sizes, columns, source.dtype, more={held: model})
    if source.X.dtype.kind not in "biuf":
        raise InputError(f"X must be numbers. Got dtype {source.X.dtype} instead.")
    dtype = source.X.dtype if source.X.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    X = source.X.astype(dtype)
    name = f"values-{X.name}-{token}"
    held = f"{name}-model"
    tasks = [(values_of_rows, held, (X.name, i, 0)) for i in range(X.numblocks[0])]
    return _array(name, tasks, X.chunks[0], columns, dtype, more={held: model}, dependencies=[X])


def map_blocks(function: Callable[..., Array], values: Any, dtype: Any, *arguments: Any, columns: int = 0) -> Any:
    """Apply ``function`` to every block of a dask array of values, for one result a row, or ``columns`` results."""
    last = (0,) * (values.ndim - 1)
    tasks = [(function, (values.name, i, *last), *arguments) for i in range(values.numblocks[0])]
    return _array(f"{function.__name__}-{values.name}", tasks, values.chunks[0], columns, dtype, dependencies=[values])


def _array(
    name: str, tasks: Sequence[Any], sizes: Any, columns: int, dtype: Any, *,
    more: Mapping[Any, Any] | None = None, dependencies: Sequence[Any] = (),
) -> Any:  # fmt: skip
    """Return the dask array whose block ``i`` of rows task ``i`` makes; ``more`` are other entries of its graph."""
    import dask.array as da

    last = (0,) * (columns > 0)
    graph: dict[Any, Any] = {(name, i, *last): task for i, task in enumerate(tasks)} | dict(more or {})
    chunks = (sizes, (columns,)) if columns else (sizes,)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
