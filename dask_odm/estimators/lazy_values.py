"""A model's values of the rows of a store or of dask arrays, as lazy dask arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from dask.base import tokenize
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph

from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.futures import FEW_TASKS, spread_task
from dask_odm.engine.passes import SENT_BYTES
from dask_odm.estimators.inputs.resolved import LazyArrays
from dask_odm.models.model import Model
from dask_odm.models.predict import ModelFile, chunk_runs, values_of_chunks, values_of_rows
from dask_odm.typing import Array


def lazy_values(source: Store | LazyArrays, model: Model | ModelFile, own: Model, token: str) -> Any:
    """Return the values of the model ``own``, (n,) or (n, outputs), of the rows of a store or of dask arrays.

    ``model`` is what tasks carry of it, and ``token`` identifies it.
    """
    outputs = own.outputs
    columns = outputs if outputs > 1 else 0
    held = delayed(model, name=f"model-{token}", traverse=False)
    if isinstance(source, Store):
        runs = chunk_runs(source, outputs, Cluster.present().slots, FEW_TASKS)
        sizes = tuple(source.chunk_slice(run[-1]).stop - source.chunk_slice(run[0]).start for run in runs)
        name = f"predict-{tokenize(source.token, token, len(runs))}"
        if isinstance(model, ModelFile) or len(runs) * model.nbytes <= SENT_BYTES:
            tasks: list[Any] = [(values_of_chunks, model, source, run) for run in runs]
            return _array(name, tasks, sizes, columns, own.value_type(source.dtype))
        last = (0,) * (columns > 0)
        tasks = [spread_task((name, i, *last), values_of_chunks, held.key, source, run) for i, run in enumerate(runs)]
        return _array(name, tasks, sizes, columns, own.value_type(source.dtype), held)
    dtype = source.X.dtype if source.X.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    X = source.X.astype(dtype)
    tasks = [(values_of_rows, held.key, (X.name, i, 0)) for i in range(X.numblocks[0])]
    return _array(f"predict-{tokenize(X.name, token)}", tasks, X.chunks[0], columns, own.value_type(dtype), X, held)


def map_blocks(
    name: str, function: Callable[..., Array], values: Any, dtype: Any, *arguments: Any, columns: int = 0
) -> Any:
    """Apply ``function`` to every block of a dask array of values, for one result a row, or ``columns`` if not 0.

    A dashboard shows the tasks by ``name``. Values in memory are answered at once.
    """
    if isinstance(values, np.ndarray):
        return function(values, *arguments)
    last = (0,) * (values.ndim - 1)
    tasks = [(function, (values.name, i, *last), *arguments) for i in range(values.numblocks[0])]
    name = f"{name}-{tokenize(function, values.name, arguments)}"
    return _array(name, tasks, values.chunks[0], columns, dtype, values)


def _array(name: str, tasks: Sequence[Any], sizes: Any, columns: int, dtype: Any, *dependencies: Any) -> Any:
    """Return the dask array whose block ``i`` of rows task ``i`` makes."""
    import dask.array as da

    last = (0,) * (columns > 0)
    graph: dict[Any, Any] = {(name, i, *last): task for i, task in enumerate(tasks)}
    chunks = (sizes, (columns,)) if columns else (sizes,)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
