"""Values of a fitted model for any rows: in memory, lazy, of a store or of a cube."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from functools import partial
from typing import Any, Self

import numpy as np
from dask.base import tokenize
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.cubes.blocks import SCORE_BYTES, AnswerFormat
from dask_odm.data.storage.scratch import lasting_folder
from dask_odm.data.store.records import read_record
from dask_odm.data.store.store import Store
from dask_odm.engine.client import active_client
from dask_odm.engine.cluster import Cluster
from dask_odm.engine.futures import FEW_TASKS, spread_task
from dask_odm.engine.passes import SENT_BYTES
from dask_odm.errors import ClusterError
from dask_odm.estimators.inputs.checks import check_features, check_rows
from dask_odm.estimators.inputs.resolved import Given, LazyArrays, Resolved, StoredRows
from dask_odm.estimators.inputs.resolving import kind_of, resolve
from dask_odm.estimators.saving import save_estimator
from dask_odm.estimators.shared_parameters import RunParameters
from dask_odm.models.model import Model
from dask_odm.models.predict import (
    ModelFile,
    answers_of_rows,
    chunk_runs,
    finite_values,
    values_of_chunks,
    values_of_rows,
)  # fmt: skip
from dask_odm.typing import Array

Then = Callable[[Array], Array] | None  # what makes answers of a model's values; tasks carry it
EMBEDDED_BYTES = 8 << 20  # larger models are sent to workers as paths


class Predictor(RunParameters):
    """An estimator that predicts by its fitted ``_model`` on rows of any kind."""

    _model: Model
    _file: ModelFile | None
    _token: str  # identifies the model in names of tasks
    _class_coordinate: Any  # of a classifier, that of a map

    def _resolve(self, X: Any, y: Any = None, sample_weight: Any = None) -> Resolved:
        """Return the resolved input of a prediction or a score; raise NotFittedError before `fit`."""
        check_is_fitted(self)
        return resolve(X, y, sample_weight, model=self, memory_limit=self.memory_limit)

    def _cube_to_predict(self, X: Any) -> Any:
        """Return ``X`` as a `Cube` of this estimator's features; None if it is no cube."""
        check_is_fitted(self)
        return kind_of(X, None, self).cube(X, self)

    def _mapped(self, cube: Any, answers: AnswerFormat, name: str, then: Then = None, classes: Any = None) -> Any:
        """Return the model's values of a cube, or what ``then(values)`` makes of them, as a DataArray.

        Several answers a row have a last dimension, "class" with the coordinate ``classes``, else "target". Raises
        MemoryLimitError if a block of a lazy cube does not fit a worker's memory.
        """
        from dask_odm.data.cubes.maps import map_bytes, mapped
        from dask_odm.estimators.inputs.cubes import require_blocks

        model: Any = self._model
        answers = replace(answers, work=SCORE_BYTES * max(self._model.outputs, answers.columns))
        threads = CPU_COUNT
        if cube.is_lazy:
            with suppress(ClusterError):  # a lazy map may wait for workers that come later
                require_blocks(cube, partial(map_bytes, cube, answers), Cluster.current(self.memory_limit))
            model = delayed(self._for_tasks(), name=f"model-{self._token}", traverse=False)
            threads = 1
        columns = ("target" if classes is None else "class", classes)
        return mapped(cube, answers_of_rows, (model, threads, then), answers, name, columns)

    def _answered(
        self, X: Any, name: str, then: Then = None, *, dtype: Any = None, columns: int | None = None,
        of_map: str = "", giver: Predictor | None = None,
    ) -> Any:  # fmt: skip
        """Return the model's values of all rows, or what ``then(values)`` makes of them, in the form of ``X``.

        Answers are of a ``dtype``, by default that of the values, and so is the number of their ``columns``, 0 for one
        answer a row. A map may have another name, ``of_map``, and has NaN or False where a cube misses a feature. The
        values may be those of another estimator, ``giver``.
        """
        giver = self if giver is None else giver
        classes = getattr(self, "classes_", None)
        cube = self._cube_to_predict(X)
        if columns is None:
            columns = self._model.outputs if self._model.outputs > 1 else 0
        if cube is not None:
            fill = False if dtype is bool else np.nan
            answers = AnswerFormat(np.dtype(dtype or self._model.value_type(cube.dtype)), fill, columns)
            coordinate = None if classes is None else self._class_coordinate
            return giver._mapped(cube, answers, of_map or name, then, coordinate)
        found = giver._values(giver._resolve(X))
        if then is not None:
            found = map_blocks(name, then, found, dtype or found.dtype, columns)
        return kind_of(X, None, self).like(X, found, name, self, classes if columns else None)

    def _changed(self, mark: str, **changes: Any) -> Self:
        """Return this estimator with changes of its model, which ``mark`` them in names of tasks."""
        other = copy(self)
        model: Any = self._model
        other._model, other._file, other._token = replace(model, **changes), None, f"{self._token}-{mark}"
        return other

    def _beside_targets(self, resolved: Resolved) -> tuple[Any, Any, Any]:
        """Return predicted values, targets and weights of all rows; all are None without targets."""
        found = []
        for part in resolved.parts():
            y = part.y
            if y is None:
                return None, None, None
            found.append((np.asarray(self._values(part)), y, part.weight))
        if len(found) == 1:
            return found[0]
        predicted, y, weight = (None if each[0] is None else np.concatenate(each) for each in zip(*found, strict=True))
        return predicted, y, weight

    def _values(self, resolved: Resolved, *, for_labels: bool = False) -> Any:
        """Return the model's values, (n,) or (n, outputs): an ndarray for rows in memory, else a dask array.

        With ``for_labels``, values of rows in memory may be less accurate, but give the same labels.
        """
        if isinstance(resolved, Given):
            rows = check_rows(self, resolved.X, **self._reading())
            values = self._model.label_values if for_labels else self._model.values
            return finite_values(values(rows, CPU_COUNT))
        assert isinstance(resolved, LazyArrays | StoredRows)  # batches of a cube are predicted one by one
        check_features(self, resolved.source)
        return lazy_values(resolved.source, self._for_tasks(), self._model, self._token)

    def _reading(self) -> dict[str, Any]:
        """Return the options of scikit-learn's validation of rows in memory."""
        options: dict[str, Any] = {} if self.dtype is None else {"dtype": np.dtype(self.dtype)}
        return options | ({"accept_sparse": "csr"} if self.__sklearn_tags__().input_tags.sparse else {})

    def _for_tasks(self) -> Model | ModelFile:
        """Return the model for tasks: itself if it is small or stays in this process, else the path of its file."""
        if self._model.nbytes <= EMBEDDED_BYTES or active_client() is None:
            return self._model
        if self._file is None or not self._file.is_current():
            # tasks that were submitted may outlive this estimator and every lazy array
            path = os.path.join(lasting_folder(), "model.zarr")
            save_estimator(self, path, overwrite=False)
            self._file = ModelFile.of(read_record(path, "model"))
        return self._file


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
        name = f"predict-{tokenize(source, token, len(runs))}"
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


def map_blocks(name: str, function: Callable[[Array], Array], values: Any, dtype: Any, columns: int = 0) -> Any:
    """Apply ``function`` to every block of a dask array of values, for one result a row, or ``columns`` if not 0.

    A dashboard shows the tasks by ``name``. Values in memory are answered at once.
    """
    if isinstance(values, np.ndarray):
        return function(values)
    last = (0,) * (values.ndim - 1)
    tasks = [(function, (values.name, i, *last)) for i in range(values.numblocks[0])]
    name = f"{name}-{tokenize(function, values.name)}"
    return _array(name, tasks, values.chunks[0], columns, dtype, values)


def _array(name: str, tasks: Sequence[Any], sizes: Any, columns: int, dtype: Any, *dependencies: Any) -> Any:
    """Return the dask array whose block ``i`` of rows task ``i`` makes."""
    import dask.array as da

    last = (0,) * (columns > 0)
    graph: dict[Any, Any] = {(name, i, *last): task for i, task in enumerate(tasks)}
    chunks = (sizes, (columns,)) if columns else (sizes,)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
