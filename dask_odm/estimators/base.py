"""The base class of all estimators: one `fit`, prediction on any rows, saving.

`fit` proceeds in this order, each step a call that returns. *Resolve*: the input becomes rows in memory, lazy rows or a
store. *Check*: targets and weights are settled, and rows become `TrainingData`. *Choose*: the family names a recipe,
and this module alone decides where the fit runs. *Train*: the recipe learns. *Publish*: attributes are set once nothing
can fail any more.
"""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Self
from uuid import uuid4

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from dask_odm.data.store.store import Store
from dask_odm.engine.client import active_client
from dask_odm.errors import InputError
from dask_odm.estimators.cards import NotebookCard
from dask_odm.estimators.inputs import checks
from dask_odm.estimators.inputs.frames import medians_of
from dask_odm.estimators.inputs.resolved import Given, Resolved, lazy_rows
from dask_odm.estimators.inputs.resolving import resolve_training
from dask_odm.estimators.prediction import Predictor
from dask_odm.estimators.saving import save_estimator
from dask_odm.estimators.target_kinds import TargetKind
from dask_odm.events import CheckpointOpened, Event, interrupts_kept, listen
from dask_odm.learning.parameters import solver_word
from dask_odm.learning.solution import History
from dask_odm.learning.training.checkpoints import sole_writer
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.recipe import CubeSchema, Schema, Trained
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.exact.solver import warm_up
from dask_odm.methods.left_out import of_all_classes
from dask_odm.models.kernel_model import KernelModel
from dask_odm.models.model import Model
from dask_odm.models.predict import ModelFile
from dask_odm.progress import shown_if_long
from dask_odm.typing import Array

# Fitted attributes of any family.
OF_ALL = (
    "classes_", "feature_names_in_", "coef_", "dual_coef_", "intercept_", "missing_rows_", "text_recipe_",
    "column_recipe_",
)  # fmt: skip


class StoreEstimator(NotebookCard, Predictor):
    """An estimator that learns from rows in memory, lazy arrays or a store, and predicts on any of them.

    A subclass of `dask_odm.estimators.mixins` has its parameters with their constraints, a ``_family``, `_settings`,
    and the names of its fitted attributes in ``_saved``. ``_instead`` has a hint for every parameter that only other
    packages or the last version have. The names and hints of a base are those of its subclasses, too.

    Attributes
    ----------
    n_features_in_, feature_names_in_
        As in scikit-learn. The names exist if the training rows had names. Of a table with words, dates or gaps they
        are of its columns, of which d features were made, see `get_feature_names_out`.
    missing_rows_ : int
        For a fit on a cube, the number of labelled rows that were left out because they miss a feature.
    """

    _family: ClassVar[Family[Any]]  # which recipe learns, and by how many machines
    _targets: ClassVar[TargetKind]  # what is learned about each row
    _saved: ClassVar[tuple[str, ...]] = ("history_", "n_iter_")  # fitted attributes that are saved
    _unsaved: ClassVar[tuple[str, ...]] = ()  # fitted attributes that are not saved: a number per training row
    _last_seed: int | None = None  # seed of a fit that is resumed without a checkpoint that has it
    _checkpointed: CheckpointOpened | None = None  # identity of the last fit, if it had a checkpoint

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for names in ("_saved", "_unsaved"):
            known = dict.fromkeys(name for base in cls.__mro__ for name in vars(base).get(names, ()))
            setattr(cls, names, tuple(known))

    def _settings(self, run: FitRun, **more: Any) -> Any:
        """Return the settings of one fit with its ``run``; ``more`` are arguments of methods such as `alpha_path`."""
        raise NotImplementedError

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
        y : array-like, Series, dask array or Series, or DataArray of shape (n,) or (n, n_targets), or str or int
            Labels of any type, or real targets, several of which are columns, or of xarray a dimension "target" or
            "class"; or the name of the column of a frame X that has them, or of several, or its place if columns have
            other names. None if X has its own. For a cube, a DataArray, the name of a variable, or a frame of points:
            columns named like dimensions are the coordinates of the points, and the other column has their labels.
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
        return self._fitted(X, y, sample_weight)

    def _fitted(self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **more: Any) -> Self:
        """Return this estimator, which learns from what methods such as `fit` take."""
        trained, schema = self._train(X, y, sample_weight, groups, **more)
        self._publish(trained, schema)
        return self

    @interrupts_kept()
    def _train(self, X: Any, y: Any, sample_weight: Any, groups: Any = None, **more: Any) -> tuple[Trained, Schema]:
        """Resolve, check, choose and train: return what was learned, and a description of the rows."""
        checks.as_input_error(self._validate_params)
        checks.check_callbacks(self.callbacks)
        needs_labels = self._targets.needs_labels
        kinds: dict[str, Any] = {"needs_labels": needs_labels, "dtype": self.dtype}
        resolved = resolve_training(X, y, sample_weight, groups, self.memory_limit, **kinds)
        if groups is not None:
            more["groups"] = checks.checked_groups(groups if resolved.groups is None else resolved.groups)
        self._checkpointed = None
        shown = shown_if_long() if self.callbacks is None else nullcontext()
        with shown, listen(self._heed, *(self.callbacks or ())), sole_writer(self.checkpoint):
            run = FitRun.of(self, warm_up)

            def settled(rows: Resolved | Store) -> Any:
                marks = () if rows.column_recipe is None else rows.column_recipe.marks
                told = {"names": rows.feature_names, "places": resolved.has_places}
                return self._settings(replace(run, marks=marks), **told, **more)

            if isinstance(resolved, Given):
                return self._learn_rows(resolved, settled(resolved))
            with resolved.stored(self._targets) as store:
                return self._learn_store(store, settled(store), self._schema_of_store(resolved, store))

    def _learn_rows(self, given: Given, fit: Any) -> tuple[Trained, Schema]:
        """Learn from rows in memory: in this process, or by a store if workers are to hold a share each."""
        rows = self._targets.checked(self, given)
        classes = rows.classes if rows.all_classes is None else rows.all_classes
        names = rows.names if given.column_recipe is None else given.column_recipe.feature_names
        schema = Schema(
            rows.X.shape[1], names, given.feature_dimension, classes, self._learned_cube(given.cube),
            columns=given.column_recipe, rows=rows.X.shape[0],
            medians=medians_of(rows.X) if given.is_plain and not issparse(rows.X) else None,
        )  # fmt: skip
        fit = self._family.of_classes(fit, None if rows.codes is None else rows.classes)
        choice = self._family.choose(fit, *rows.X.shape)
        held = rows.y.ndim > 1 or issparse(rows.X)
        if choice.recipe.spreads(fit) and active_client() is not None and not held:
            with lazy_rows(rows).stored(self._targets) as store:
                return self._learn_store(store, fit, schema)
        trained = self._family.train(choice, self._targets.in_memory(fit.run, rows), fit)
        return of_all_classes(trained, rows.classes, classes), schema

    def _learn_store(self, store: Store, fit: Any, schema: Schema) -> tuple[Trained, Schema]:
        """Learn from a store, whose rows are read into memory if the recipe says so."""
        data = self._targets.stored(self, fit.run, store)
        learned = self._targets.labels(data.store)  # without the classes that have no weight
        fit = self._family.of_classes(fit, None if data.n_targets > 1 else learned)
        choice = self._family.choose(fit, store.rows, store.features)
        trained = self._family.train(choice, data.in_this_process() if choice.reads(data, fit) else data, fit)
        return of_all_classes(trained, learned, self._targets.labels(store)), schema

    def _schema_of_store(self, resolved: Resolved, store: Store) -> Schema:
        """Return the description of a store; ``resolved`` is what it was written from, or the store itself."""
        cube = self._learned_cube(resolved.cube_schema(store.rows))
        return Schema(
            store.features, store.feature_names, resolved.feature_dimension, self._targets.labels(store), cube,
            store.text_recipe, store.column_recipe, store.rows,
        )  # fmt: skip

    def _learned_cube(self, cube: CubeSchema | None) -> CubeSchema | None:
        """Return the cube without the meanings of its labels, if these are not learned."""
        return cube if cube is None or self._targets.needs_labels else replace(cube, words={})

    def _path(self, X: Any, y: Any, sample_weight: Any, name: str, given: Any, solver: str) -> list[Self]:
        """Fit a model for every value of the parameter ``name``, all in one run; this one stays as it was.

        Raises InputError for another ``solver``, for kernels, and for values that are no numbers.
        """
        own: Any = self
        try:
            values = tuple(None if value is None else float(value) for value in given)
        except (TypeError, ValueError) as error:
            numbers = "numbers or None" if None in self._parameter_constraints[name] else "numbers"
            raise InputError(f"{name}s must be a sequence of {numbers}. Got {given!r} instead.") from error
        if not values or own.kernel != "linear" or solver_word(own.solver) not in ("auto", solver):
            raise InputError(
                f"{name}_path takes one {name} at least, and needs kernel='linear' with solver={solver!r} or 'auto'."
            )
        models = [clone(self).set_params(**{name: value}) for value in values]
        for model in models:
            checks.as_input_error(model._validate_params)
        trained, schema = models[0]._train(X, y, sample_weight, **{f"{name}s": values})
        for model, found in zip(models, trained.path, strict=True):
            model._publish(found, schema)
        return models

    def _heed(self, event: Event) -> None:
        if isinstance(event, CheckpointOpened) and self._checkpointed is None:  # of several machines, the first one's
            self._checkpointed = event

    def _publish(self, trained: Trained, schema: Schema) -> None:
        """Set all fitted attributes. Nothing that can fail follows the first of them."""
        if not trained.was_finite:
            checks.require_finite_values(trained.model)
        attributes = trained.attributes
        if schema.columns is not None and "feature_importances_" in attributes:  # of features, to be those of columns
            whole = [attributes["feature_importances_"][span].sum() for span in schema.columns.spans]
            attributes = attributes | {"feature_importances_": np.array(whole)}
        self._take(schema, trained.model, attributes)
        if trained.warning is not None:
            warnings.warn(trained.warning, ConvergenceWarning, stacklevel=4)
        if trained.advice is not None:
            trained.advice.warn(schema.feature_names)

    def _take(self, schema: Schema, model: Model, attributes: dict[str, Any], file: ModelFile | None = None) -> None:
        """Set the attributes of a newly fitted or loaded model, and remove those of an earlier one that it lacks."""
        found = self._targets.attributes(model) | attributes
        if getattr(self, "kernel", None) == "precomputed":
            found.pop("coef_", None)  # weights of kernel values, not of features
        if "history_" in found:
            found["history_"] = History(found["history_"])
        if schema.classes is not None:
            found["classes_"] = schema.classes
        if len(schema.inputs):
            found["feature_names_in_"] = np.array(schema.inputs, dtype=object)
        if schema.columns is not None:
            found["column_recipe_"] = schema.columns
        if schema.cube is not None:
            found["missing_rows_"] = schema.cube.missing
        if schema.text is not None:
            found["text_recipe_"] = schema.text
        for name in (*OF_ALL, *self._saved, *self._unsaved):
            if name in found:
                setattr(self, name, found[name])
            elif name in vars(self):
                delattr(self, name)
        self.n_features_in_ = schema.n_inputs
        self._schema = schema
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

    def get_feature_names_out(self, input_features: Any = None) -> Array:
        """Return the names of the features that the model sees: of a table, those made of its columns.

        Parameters
        ----------
        input_features : ignored
            Part of scikit-learn's interface.

        Returns
        -------
        ndarray of str, shape (d,)
            Without names, x0, x1, …
        """
        check_is_fitted(self)
        names = self._schema.feature_names
        return np.array([f"x{j}" for j in range(self._model.features)] if names is None else names, dtype=object)

    # Attributes that are read on demand -------------------------------------------------------------------------

    @property
    def support_vectors_(self) -> Array:
        """Rows with a coefficient before scaling, (n_support, d). Rows of a loaded model may be read from its file."""
        model = getattr(self, "_model", None)
        if not isinstance(model, KernelModel):
            raise AttributeError("support_vectors_")
        return model.raw_support
