"""Settings of one fit of `MixingClassifier`: its parameters, checked and converted to plain types."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from dask.base import is_dask_collection
from pandas import isna

from dask_odm.errors import InputError
from dask_odm.estimators.inputs.checks import as_input_error
from dask_odm.estimators.inputs.frames import labels_of
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.mixing.online_passes import LocalRule
from dask_odm.methods.mixing.solver import Mixing
from dask_odm.typing import Array

ROWS_OF_A_SHARD = 50  # least rows of a shard, if the user does not choose the number of shards
MOST_SHARDS = 100  # most shards, if the user does not choose their number


@dataclass(frozen=True)
class MixingFit:
    """Settings of one fit.

    Either ``shard`` (n,) has the shard of every row, or the feature number ``shard_feature`` does, or both are None and
    rows are dealt at random.
    """

    run: FitRun
    rule: LocalRule
    mixing: Mixing
    n_shards: int | None
    max_iter: int
    fit_intercept: bool
    shard_feature: int | None
    shard: Array | None

    @classmethod
    def of(cls, model: Any, run: FitRun, shard: Any, names: list[Any] | None) -> MixingFit:
        """Build the settings of one fit from a `MixingClassifier` whose parameters were checked one by one.

        Raises InputError if parameters contradict each other, a feature does not exist, or ``shard`` has no labels.
        """
        given = {"beta": model.beta, "kappa": model.kappa}
        given = {name: float(value) for name, value in given.items() if value is not None}
        if len(given) == 2:
            raise InputError("beta and kappa say the same in two ways (kappa = beta · features / 2): give one of them.")
        said = [name for name, value in (("shard", shard), ("shard_feature", model.shard_feature)) if value is not None]
        if len(said) == 2:
            raise InputError("shard and shard_feature both say which shard a row is in: give one of them.")
        if said and model.n_shards is not None:
            raise InputError(
                f"n_shards must be None where {said[0]} says which shard a row is in. Got {model.n_shards}."
            )
        return cls(
            run=run,
            rule=LocalRule(model.local, float(model.C), float(model.lam), float(model.theta), float(model.upsilon)),
            mixing=Mixing(model.mixing, **given),
            n_shards=None if model.n_shards is None else int(model.n_shards),
            max_iter=int(model.max_iter),
            fit_intercept=bool(model.fit_intercept),
            shard_feature=_number_of(model.shard_feature, names),
            shard=None if shard is None else _labels(shard),
        )

    def of_machine(self, i: int, count: int, run: FitRun) -> MixingFit:
        """Return the settings of machine ``i`` of ``count``, which differ in ``run`` alone."""
        return replace(self, run=run)

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the fit, ready for JSON, without the seed and the rows' shards."""
        plain = asdict(self)
        del plain["run"], plain["shard"]
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}

    def count_for(self, rows: int) -> int:
        """Return the number of shards for so many rows; raise InputError if ``n_shards`` exceeds the rows."""
        if self.n_shards is None:
            return max(2, min(MOST_SHARDS, rows // ROWS_OF_A_SHARD))
        if self.n_shards > rows:
            raise InputError(f"n_shards must be at most the number of rows, {rows}. Got {self.n_shards} instead.")
        return self.n_shards


def _number_of(feature: str | int | None, names: list[Any] | None) -> int | None:
    """Return the number of a feature given by name or number; raise InputError if the name is unknown."""
    if feature is None or not isinstance(feature, str):
        return None if feature is None else int(feature)
    if names is None or feature not in names:
        there = "have no names" if names is None else f"are {names[:10]}{' …' if len(names) > 10 else ''}"
        raise InputError(f"shard_feature={feature!r} is no feature; the features {there}.")
    return names.index(feature)


def _labels(shard: Any) -> Array:
    """Return the shard of every row as an array of labels; raise InputError if it is no such array, or has gaps."""
    if is_dask_collection(shard):
        shard = shard.compute()
    labels = as_input_error(lambda: labels_of(shard))
    if labels.ndim != 1 or labels.dtype.kind not in "biufUO":
        raise InputError(
            f"shard must hold one label for every row: numbers or words. Got shape {labels.shape} of {labels.dtype}."
        )
    missing = np.flatnonzero(isna(labels))
    if len(missing):
        raise InputError(f"shard is missing (NaN or None) for {len(missing)} rows, first for row {missing[0]}.")
    return np.asarray(labels)
