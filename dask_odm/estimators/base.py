"""The base class of all estimators: one `fit`, prediction on any rows, saving.

`fit` proceeds in this order. Parameters are checked. The input becomes rows in memory, dask arrays or a store
(`inputs`). Targets and weights are settled. The family of methods chooses its recipe, and this module alone decides
where the fit runs. The recipe trains on `TrainingData`. Attributes are set once nothing can fail any more.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from dask.delayed import delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.cubes.blocks import SCORE_BYTES, AnswerFormat
from dask_odm.data.storage.scratch import lasting_folder
from dask_odm.data.store.records import read_record
from dask_odm.data.store.store import Store
from dask_odm.engine.cluster import FEW_TASKS, Cluster, active_client, spread_task
from dask_odm.engine.passes import SENT_BYTES
from dask_odm.errors import ClusterError, InputError
from dask_odm.estimators.cards import documentation, facts_of
from dask_odm.estimators.inputs.checks import (
    CheckedRows,
    as_input_error,
    check_callbacks,
    check_features,
    check_rows,
    checked_groups,
    require_finite_values,
)
from dask_odm.estimators.inputs.resolved import Given, LargeCube, LazyArrays, Resolved, spooled
from dask_odm.estimators.inputs.resolving import kind_of, resolve, resolve_training
from dask_odm.estimators.saving import save_estimator
from dask_odm.estimators.shared_parameters import RunParameters
from dask_odm.events import CheckpointOpened, Event, interrupts_kept, listen
from dask_odm.html import card
from dask_odm.learning.solution import History
from dask_odm.learning.training.checkpoints import sole_writer
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice, CubeSchema, Schema, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.linalg.jit import frozen
from dask_odm.methods.exact.solver import warm_up
from dask_odm.methods.left_out import of_all_classes
from dask_odm.models.models import KernelModel, LinearModel, Model
from dask_odm.models.predict import (
    ModelFile,
    answers_of_rows,
    chunk_runs,
    finite_values,
    values_of_chunks,
    values_of_rows,
)
from dask_odm.progress import shown_if_long
from dask_odm.typing import Array

EMBEDDED_BYTES = 8 << 20  # larger models are sent to workers as paths
# Fitted attributes of any family.
OF_ALL = ("classes_", "feature_names_in_", "coef_", "dual_coef_", "intercept_", "missing_rows_", "text_recipe_")


class StoreEstimator(RunParameters):
    """An estimator that learns from rows in memory, lazy arrays or a store, and predicts on any of them.

    A family of methods subclasses one of `dask_odm.estimators.mixins`. It adds its parameters with their constraints,
    `_settings`, `_choose`, and the names of its fitted attributes in ``_saved``. ``_instead`` has a hint for every
    parameter that only other packages or the last version have; the hints of a base are those of its subclasses, too.
    """

    _saved: ClassVar[tuple[str, ...]] = ("history_", "n_iter_")
    _unsaved: ClassVar[tuple[str, ...]] = ()  # fitted attributes that are not saved: a number per training row
    _target: ClassVar[str] = "classes"  # kind of y: "classes" or "real"
    _needs_labels: ClassVar[bool] = True  # whether y is learned from
    _model: Model
    _file: ModelFile | None
    _token: str
    _cube: CubeSchema | None = None  # of a fit on a cube
    _rows: int | None = None  # that were learned; a file of an older version does not tell
    _drawn: int | None = None  # seed of a fit that is resumed without a checkpoint that has it
    _checkpointed: CheckpointOpened | None = None  # identity of the last fit, if it had a checkpoint

    # Implemented by families of methods and mixins --------------------------------------------------------------

    def _settings(self, run: FitRun, **more: Any) -> Any:
        """Return the settings of one fit, including ``run``; ``more`` are arguments of methods such as `alpha_path`."""
        raise NotImplementedError

    def _choose(self, fit: Any, rows: int, features: int) -> Choice[Any]:
        """Return the recipe for so many rows and features."""
        raise NotImplementedError

    def _check_targets(self, given: Given) -> CheckedRows:
        """Check training rows in memory, and return them."""
        raise NotImplementedError

    def _memory_data(self, run: FitRun, rows: CheckedRows) -> MemoryData:
        """Return the training data of checked rows in memory."""
        raise NotImplementedError

    def _stored_data(self, run: FitRun, store: Store) -> StoredData:
        """Return the training data of a store; raise InputError if the estimator cannot learn from it."""
        raise NotImplementedError

    def _labels_of(self, store: Store) -> Array | None:
        """Return the labels of the classes that a store tells apart; None for real targets."""
        return None if store.classes is None else np.array(store.classes)

    def _of_model(self, model: Model) -> dict[str, Any]:
        """Return the fitted attributes that a model itself has.

        They are copies, so that writing into them changes no prediction. Coefficients of several machines may be large,
        and are read-only instead.
        """
        if isinstance(model, LinearModel):
            return {"coef_": model.weights.copy(), "intercept_": model.intercept.copy()}
        if isinstance(model, KernelModel):
            held = model.coefficients
            return {"dual_coef_": frozen(held) if len(held) > 1 else held.copy(), "intercept_": model.intercept.copy()}
        return {}

    # Fitting ---------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from rows and targets.

        Parameters
        ----------
        X : rows of shape (n, d)
            Array-like, DataFrame of pandas, Dask or polars, Arrow table, dask array, xarray DataArray of two dimensions
            in any order, xarray Dataset with ``X``, ``y`` and perhaps ``weight``, or a store, by path or open. The rows
            of an xarray X are along the dimension that it shares with ``y``, else "sample", else the first. Or a
            *cube*: a DataArray of any dimensions, or a Dataset whose variables are features. The dimensions that it
            shares with ``y`` are those of the rows, and the others those of the features. Rows without a label, or with
            a missing feature, are left out.
        y : array-like, Series, dask array or Series, or DataArray of shape (n,), or str or int
            Labels of any type, or real targets, or the name of the column of a frame X that has them, or its place if
            the columns have other names. None if X has its own. For a cube, a DataArray, the name of a variable, or a
            frame of points: columns named like dimensions are the coordinates of the points, and the other column has
            their labels.
        sample_weight : array-like of shape (n,), str, int or None
            Row weights ≥ 0. Weight 2 equals a repeated row, and weight 0 drops the row. A class of which all rows are
            dropped has no machine; it stays in ``classes_``, and is never predicted. For a frame, it may be the name
            of a column. For a cube, a DataArray over some or all dimensions of the rows, the name of a variable, or a
            value for each point.

        Returns
        -------
        self

        Raises
        ------
        InputError
            Parameters or data that cannot be learned from.
        MemoryLimitError
            The fit would exceed the memory limit of a worker.
        StoreError
            A damaged store.
        """
        self._publish(*self._train(X, y, sample_weight))
        return self

    @interrupts_kept()
    def _train(self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **more: Any) -> tuple[Trained, Schema]:
        as_input_error(self._validate_params)
        check_callbacks(self.callbacks)
        resolved = resolve_training(X, y, sample_weight, groups, self.memory_limit, needs_labels=self._needs_labels)
        if groups is not None:
            found = resolved.groups if isinstance(resolved, Given) and resolved.cube is not None else groups
            more["groups"] = checked_groups(found)
        self._checkpointed = None
        shown = shown_if_long() if self.callbacks is None else nullcontext()
        with shown, listen(self._heed, *(self.callbacks or ())), sole_writer(self.checkpoint):
            return self._learn(resolved, more)

    def _path(self, X: Any, y: Any, sample_weight: Any, name: str, values: Sequence[Any]) -> list[Self]:
        """Fit a model for every value of the parameter ``name``, all in one run; this one stays as it was."""
        models = [clone(self).set_params(**{name: value}) for value in values]
        for model in models:
            as_input_error(model._validate_params)
        trained, schema = models[0]._train(X, y, sample_weight, **{f"{name}s": tuple(values)})
        for model, found in zip(models, trained.path, strict=True):
            model._publish(found, schema)
        return models

    def _heed(self, event: Event) -> None:
        if isinstance(event, CheckpointOpened) and self._checkpointed is None:  # of several machines, the first one's
            self._checkpointed = event

    def _learn(self, resolved: Resolved, more: dict[str, Any]) -> tuple[Trained, Schema]:
        """Decide where the fit runs: in this process for rows in memory, over a store for all others."""
        fit = self._settings(FitRun.of(self, warm_up), **more)
        dimension = resolved.feature_dimension if isinstance(resolved, Given | LazyArrays) else None
        if not isinstance(resolved, Given):
            with spooled(resolved, self._target) as store:
                classes = self._labels_of(store)
                cube = self._learned_cube(resolved.schema(store.rows)) if isinstance(resolved, LargeCube) else None
                schema = Schema(
                    store.features, store.feature_names, dimension, classes, cube, store.text_recipe, store.rows
                )
                return self._learn_store(store, fit), schema
        rows = self._check_targets(resolved)
        fit = self._of_classes(fit, rows.classes)
        cube = None if resolved.cube is None else self._learned_cube(resolved.cube)
        classes = rows.classes if rows.all_classes is None else rows.all_classes
        schema = Schema(rows.X.shape[1], rows.names, dimension, classes, cube, rows=rows.X.shape[0])
        choice = self._choose(fit, *rows.X.shape)
        if issparse(rows.X) or not choice.recipe.spreads(fit) or active_client() is None:
            trained = self._trained(choice, self._memory_data(fit.run, rows), fit)
            return of_all_classes(trained, rows.classes, classes), schema
        with spooled(rows, self._target) as store:
            return self._learn_store(store, fit), schema

    def _learned_cube(self, cube: CubeSchema) -> CubeSchema:
        """Return what is kept of a cube: the meanings of its labels only if these are learned."""
        return cube if self._needs_labels else replace(cube, words={})

    def _of_classes(self, fit: Any, classes: Array | None) -> Any:
        """Return the settings of a fit of these classes, which are known once rows are read."""
        return fit

    def _learn_store(self, store: Store, fit: Any) -> Trained:
        data = self._stored_data(fit.run, store)
        learned = self._labels_of(data.store)  # without the classes that have no weight
        fit = self._of_classes(fit, learned)
        choice = self._choose(fit, store.rows, store.features)
        trained = self._trained(choice, data.in_this_process() if choice.reads(data, fit) else data, fit)
        return of_all_classes(trained, learned, self._labels_of(store))

    def _trained(self, choice: Choice[Any], data: TrainingData, fit: Any) -> Trained:
        """Return what the chosen recipe learns."""
        return choice.train(data, fit)

    def _publish(self, trained: Trained, schema: Schema) -> None:
        """Set all fitted attributes. Nothing that can fail follows the first of them."""
        if not trained.was_finite:
            require_finite_values(trained.model)
        self._take(schema, trained.model, trained.attributes)
        if trained.warning is not None:
            warnings.warn(trained.warning, ConvergenceWarning, stacklevel=3)

    def _take(self, schema: Schema, model: Model, attributes: dict[str, Any], file: ModelFile | None = None) -> None:
        """Set the attributes of a newly fitted or loaded model, and remove those of an earlier one that it lacks."""
        found = self._of_model(model) | attributes
        if "history_" in found:
            found["history_"] = History(found["history_"])
        if schema.classes is not None:
            found["classes_"] = schema.classes
        if schema.feature_names is not None:
            found["feature_names_in_"] = np.array(schema.feature_names, dtype=object)
        if schema.cube is not None:
            found["missing_rows_"] = schema.cube.missing
        if schema.text is not None:
            found["text_recipe_"] = schema.text
        for name in (*OF_ALL, *self._saved, *self._unsaved):
            if name in found:
                setattr(self, name, found[name])
            elif name in vars(self):
                delattr(self, name)
        self.n_features_in_ = schema.n_features
        self._feature_dimension = schema.feature_dimension
        self._cube = schema.cube
        self._rows = schema.rows
        self._model = model
        self._file = file
        self._token = uuid4().hex

    def __getstate__(self) -> dict[str, Any]:
        return {name: None if name == "_file" else value for name, value in super().__getstate__().items()}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the model as zarr and JSON, completely or not at all. `dask_odm.load_model` reads it.

        Parameters
        ----------
        path : str or path
            Folder, or address of an object store, to write the model to.
        overwrite : bool, default=False
            Replace an existing model, once the new model is complete.

        Raises
        ------
        InputError
            The output exists and ``overwrite`` is False.
        StoreError
            The disk is full, or the folder cannot be written. No partial output is left.
        """
        check_is_fitted(self)
        save_estimator(self, path, overwrite=overwrite)

    # In a notebook ---------------------------------------------------------------------------------------------

    _doc_link_module = "dask_odm"

    @property
    def _doc_link_template(self) -> str:
        """Address of this estimator's page in the reference, to which scikit-learn's diagram links."""
        pages = documentation()
        return f"{pages}reference/generated/dask_odm.{type(self).__name__}.html" if pages else ""

    def _repr_html_inner(self) -> str:
        """Return scikit-learn's diagram; below it, of a fitted estimator, a card of what was learned."""
        return str(super()._repr_html_inner()) + self._card()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, str]:
        found: dict[str, str] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in found:
            found["text/html"] += self._card()
        return found

    def _card(self) -> str:
        return card("What was learned", facts_of(self)) if hasattr(self, "_model") else ""

    # Attributes that are read on demand -------------------------------------------------------------------------

    @property
    def support_vectors_(self) -> Array:
        """Rows with a coefficient before scaling, (n_support, d). Rows of a loaded model may be read from its file."""
        model = getattr(self, "_model", None)
        if not isinstance(model, KernelModel):
            raise AttributeError("support_vectors_")
        return model.raw_support

    # Prediction ------------------------------------------------------------------------------------------------

    def _resolve(self, X: Any, y: Any = None, sample_weight: Any = None) -> Resolved:
        """Return what the arguments of a prediction or a score are; raise NotFittedError before `fit`."""
        check_is_fitted(self)
        return resolve(X, y, sample_weight, model=self, memory_limit=self.memory_limit)

    def _like(self, X: Any, values: Any, name: str, classes: Array | None = None) -> Any:
        """Return values of rows with the coordinates of an xarray ``X``; with ``classes``, a column belongs to each."""
        return kind_of(X, None, self).like(X, values, name, self, classes)

    def _cube_to_predict(self, X: Any) -> Any:
        """Return ``X`` as a `Cube` of this estimator's features; None if it is no cube."""
        check_is_fitted(self)
        return kind_of(X, None, self).cube(X, self)

    def _mapped(
        self,
        cube: Any,
        answers: AnswerFormat,
        name: str,
        then: Callable[..., Array] | None = None,
        *more: Any,
        classes: Any = None,
    ) -> Any:
        """Return the model's values of a cube, or what ``then(values, *more)`` makes of them, as a DataArray.

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
        arguments = (model, threads, then, *more)
        columns = ("target" if classes is None else "class", classes)
        return mapped(cube, answers_of_rows, arguments, answers, name, columns)

    def _mapped_values(self, cube: Any, name: str, classes: Any = None) -> Any:
        """Return the model's values of a cube as a DataArray, NaN for rows that miss a feature."""
        columns = self._model.outputs if self._model.outputs > 1 else 0
        return self._mapped(cube, AnswerFormat(cube.dtype, np.nan, columns), name, classes=classes)

    def _beside_targets(self, resolved: Resolved) -> tuple[Any, Any, Any]:
        """Return predicted values, targets and weights of all rows; all are None without targets."""
        if isinstance(resolved, LargeCube):
            found = [(np.asarray(self._values(batch)), batch.y, batch.weight) for batch in resolved.batches()]
            predicted, y, weight = (
                None if each[0] is None else np.concatenate(each) for each in zip(*found, strict=True)
            )
            return predicted, y, weight
        y = resolved.read_column("y") if isinstance(resolved, Store) else resolved.y
        if y is None:
            return None, None, None
        weight = resolved.read_column("weight") if isinstance(resolved, Store) else resolved.weight
        return np.asarray(self._values(resolved)), y, weight

    def _values(self, resolved: Resolved, *, for_labels: bool = False) -> Any:
        """Return the model's values, (n,) or (n, outputs): an ndarray for rows in memory, else a dask array.

        With ``for_labels``, values of rows in memory may be less accurate, but give the same labels.
        """
        if isinstance(resolved, Given):
            rows = check_rows(self, resolved.X, **self._reading())
            values = self._model.label_values if for_labels else self._model.values
            return finite_values(values(rows, CPU_COUNT))
        check_features(self, resolved)
        assert not isinstance(resolved, LargeCube)  # whose batches are predicted one by one
        return lazy_values(resolved, self._for_tasks(), self._model.outputs, self._token)

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
            self.save(path)
            self._file = ModelFile.of(read_record(path, "model"))
        return self._file


def lazy_values(source: Store | LazyArrays, model: Model | ModelFile, outputs: int, token: str) -> Any:
    """Return a model's values, (n,) or (n, outputs), of the rows of a store or of dask arrays.

    ``model`` is what tasks carry, and ``token`` identifies it. Raises InputError if X is not numeric.
    """
    columns = outputs if outputs > 1 else 0
    held = delayed(model, name=f"model-{token}", traverse=False)
    if isinstance(source, Store):
        runs = chunk_runs(source, outputs, Cluster.present().slots, FEW_TASKS)
        sizes = tuple(source.chunk_slice(run[-1]).stop - source.chunk_slice(run[0]).start for run in runs)
        name = f"values-{source.token}-{token}-{len(runs)}"
        if isinstance(model, ModelFile) or len(runs) * model.nbytes <= SENT_BYTES:
            tasks: list[Any] = [(values_of_chunks, model, source, run) for run in runs]
            return _array(name, tasks, sizes, columns, source.dtype)
        last = (0,) * (columns > 0)
        tasks = [spread_task((name, i, *last), values_of_chunks, held.key, source, run) for i, run in enumerate(runs)]
        return _array(name, tasks, sizes, columns, source.dtype, held)
    if source.X.dtype.kind not in "biuf":
        raise InputError(f"X must be numbers. Got dtype {source.X.dtype} instead.")
    dtype = source.X.dtype if source.X.dtype in (np.float32, np.float64) else np.dtype(np.float64)
    X = source.X.astype(dtype)
    tasks = [(values_of_rows, held.key, (X.name, i, 0)) for i in range(X.numblocks[0])]
    return _array(f"values-{X.name}-{token}", tasks, X.chunks[0], columns, dtype, X, held)


def map_blocks(function: Callable[..., Array], values: Any, dtype: Any, *arguments: Any, columns: int = 0) -> Any:
    """Apply ``function`` to every block of a dask array of values, for one result a row, or ``columns`` results."""
    last = (0,) * (values.ndim - 1)
    tasks = [(function, (values.name, i, *last), *arguments) for i in range(values.numblocks[0])]
    return _array(f"{function.__name__}-{values.name}", tasks, values.chunks[0], columns, dtype, values)


def _array(name: str, tasks: Sequence[Any], sizes: Any, columns: int, dtype: Any, *dependencies: Any) -> Any:
    """Return the dask array whose block ``i`` of rows task ``i`` makes."""
    import dask.array as da

    last = (0,) * (columns > 0)
    graph: dict[Any, Any] = {(name, i, *last): task for i, task in enumerate(tasks)}
    chunks = (sizes, (columns,)) if columns else (sizes,)
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks, meta=np.empty((0,) * len(chunks), dtype))
