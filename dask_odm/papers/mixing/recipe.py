"""Recipe of parameter mixing: check the settings, shard the rows, run the epochs, build the model from the last w.

Shards are dealt at random, or by a column that says who sent each row.
"""

from __future__ import annotations

import hashlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array, issparse

from dask_odm.data.rows.memory import MemoryPartitions, SparseRows
from dask_odm.data.rows.scaling import Scaling, StoredScaling
from dask_odm.data.rows.stored import StoredPartitions, distinct_values
from dask_odm.data.storage.scratch import scratch_folder
from dask_odm.engine.partitioners import EvenDealer, GroupDealer, RandomPartitioner, require_rows
from dask_odm.engine.shuffle import Shuffle, deal_arrays, scaling_path
from dask_odm.errors import InputError
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.training.checkpoints import open_steps, require_state
from dask_odm.learning.training.family import Family
from dask_odm.learning.training.memory_data import MemoryData
from dask_odm.learning.training.recipe import Choice, Recipe, Trained, report_step, require_finite_solution
from dask_odm.learning.training.run import FitRun
from dask_odm.learning.training.stored_data import StoredData
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.models.linear_model import LinearModel
from dask_odm.papers.mixing.online_passes import LocalRule
from dask_odm.papers.mixing.solver import Mixing, MixingState, mix_parameters, suspects
from dask_odm.papers.mixing.workers import ShardRounds, require_memory
from dask_odm.typing import Array

logger = logging.getLogger("dask_odm")


@dataclass(frozen=True)
class MixingFit:
    """Settings of one fit.

    Either ``senders`` has the distinct labels of shards and the index of every row's label (n,), or the values of the
    feature of number ``shard_feature`` are the labels, or both are None and rows are dealt at random.
    """

    run: FitRun
    rule: LocalRule
    mixing: Mixing
    n_shards: int | None
    max_iter: int
    fit_intercept: bool
    shard_feature: int | None
    senders: tuple[Array, Array] | None

    @classmethod
    def of(cls, model: Any, run: FitRun, senders: tuple[Array, Array] | None, names: list[Any] | None) -> MixingFit:
        """Build the settings of one fit from a `MixingClassifier` whose parameters were checked one by one.

        Raises InputError if parameters contradict each other, or a feature does not exist.
        """
        given = {"beta": model.beta, "kappa": model.kappa}
        given = {name: float(value) for name, value in given.items() if value is not None}
        if len(given) == 2:
            raise InputError("beta and kappa say the same in two ways (kappa = beta · features / 2): give one of them.")
        says = {"shard": senders, "shard_feature": model.shard_feature}
        said = [name for name, value in says.items() if value is not None]
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
            senders=senders,
        )

    def identity(self) -> dict[str, Any]:
        """Return all settings that determine the fit, ready for JSON, without the seed and the rows' shards."""
        plain = asdict(replace(self, senders=None))
        del plain["run"]
        return plain | {"dtype": self.run.dtype, "scale": self.run.scale}

    @property
    def deals_at_random(self) -> bool:
        """Whether nothing says which shard a row is in."""
        return self.senders is None and self.shard_feature is None

    def count_for(self, rows: int) -> int:
        """Return the number of shards for ``rows`` rows: by default one for 50 rows, from 2 to 100.

        Raises InputError if ``n_shards`` exceeds the rows.
        """
        if self.n_shards is None:
            return max(2, min(100, rows // 50))
        require_rows(rows, self.n_shards, "n_shards")
        return self.n_shards


def _number_of(feature: str | int | None, names: list[Any] | None) -> int | None:
    """Return the number of a feature given by name or number; raise InputError if the name is unknown."""
    if not isinstance(feature, str):
        return None if feature is None else int(feature)
    if names is None or feature not in names:
        there = "have no names" if names is None else f"are {names[:10]}{' …' if len(names) > 10 else ''}"
        raise InputError(f"shard_feature={feature!r} is no feature; the features {there}.")
    return names.index(feature)


class MixingFamily(Family[MixingFit]):
    """Mixed parameters of shards."""

    def choose(self, fit: MixingFit, rows: int, features: int) -> Choice[MixingFit]:
        return Choice(fit.rule.name, "asked for", MixingRecipe())

    def joined(self, fit: MixingFit, machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
        suspected = {name for each in machines for name in each["suspects_"]}
        shards: list[Any] = machines[0]["shards_"]
        return super().joined(fit, machines) | {
            "shards_": shards,
            "shard_weights_": np.concatenate([each["shard_weights_"] for each in machines]),
            "shard_errors_": np.mean([each["shard_errors_"] for each in machines], axis=0),
            "suspects_": [name for name in shards if name in suspected],
        }


class MixingRecipe(Recipe[MixingFit]):
    """Train by `dask_odm.papers.mixing.solver`."""

    sparse: ClassVar[bool] = True

    def train(self, data: TrainingData, fit: MixingFit) -> Trained:
        scaling = _scaling(data, fit)
        quiet = np.errstate(over="ignore", invalid="ignore")  # the solver raises if weights overflow
        with quiet, shards_of(data, fit, scaling) as (problem, names):
            logger.info("%d rows in %d shards; %s", data.rows, len(names), data.cluster)
            _look_at_classes(problem.rows, names)
            resume, save = open_steps("mixing", lambda: fingerprint_of(data, fit), fit, MixingState)
            if resume is not None:
                epochs = resume.epoch, len(resume.history), len(resume.weights)
                sound = resume.w.shape == (problem.k,) and resume.weights.shape[1:] == (problem.shards,)
                require_state(fit, sound and len(set(epochs)) == 1)
            end = mix_parameters(problem, fit.mixing, fit.max_iter, resume, report_step, save)
            return _finish(problem, names, end, FeatureMap(data.features, float(fit.fit_intercept), scaling))


def _finish(problem: ShardRounds, names: list[Any], end: MixingState, features: FeatureMap) -> Trained:
    weights, intercept = features.raw_weights(end.w)
    require_finite_solution(weights, intercept)
    wrong = problem.judge(end.w)
    sizes = problem.rows.sum(axis=1)
    attributes: dict[str, Any] = {
        "shards_": names,
        "shard_weights_": end.weights,
        "shard_errors_": wrong / sizes,
        "suspects_": [names[i] for i in suspects(wrong, sizes, end.weights)],
        "n_iter_": end.epoch,
        "history_": end.history,
    }
    last = end.weights[-1]
    first = int(last.argmax())
    if len(last) > 2 and last[first] > 0.99:
        warnings.warn(
            f"shard {names[first]!r} holds {last[first]:.1%} of the weight in the last epoch, so the model is "
            "its alone: choose a smaller beta or kappa.",
            UserWarning,
            stacklevel=2,
        )
    return Trained(LinearModel(weights[None], np.array([intercept])), attributes)


def _look_at_classes(rows: Array, names: list[Any]) -> None:
    """Warn of shards that hold only one class; raise InputError if all shards do."""
    single = np.flatnonzero((rows == 0).any(axis=1))
    if len(single) == len(names):
        raise InputError(
            "every shard holds rows of one class only, and learns nothing: rows sorted by class cannot be cut into "
            "shards by their place. Give shard= (who sent each row), or leave it out: rows are then dealt at random."
        )
    if len(single):
        shown = ", ".join(repr(names[i]) for i in single[:5]) + (", …" if len(single) > 5 else "")
        warnings.warn(
            f"{len(single)} of {len(names)} shards hold rows of one class only ({shown}): what they learn says nothing "
            "of the other. Join them to others, or use fewer shards.",
            UserWarning,
            stacklevel=2,
        )


# Shards ---------------------------------------------------------------------------------------------------------------


@contextmanager
def shards_of(data: TrainingData, fit: MixingFit, scaling: Scaling | None) -> Iterator[tuple[ShardRounds, list[Any]]]:
    """Make the shards of a fit, which are partitions, with their names: the user's labels, or numbers.

    Shards of a store are on disk, within the ``with`` block only. Raises InputError if there are fewer than two shards,
    or more shards than rows, or if a shard has no row that takes part; and MemoryLimitError if a worker cannot hold its
    shards.
    """
    if isinstance(data, MemoryData):
        held, names = _in_memory(data, fit, scaling)
        yield ShardRounds(data.cluster, held, None, fit.rule, fit.fit_intercept), names
        return
    assert isinstance(data, StoredData)
    with scratch_folder() as folder:
        partitions, names = _on_disk(data, fit, folder)
        stored = None
        if scaling is not None:
            stored = StoredScaling(scaling_path(folder))
            scaling.save(stored.path)
        yield ShardRounds(data.cluster, partitions, stored, fit.rule, fit.fit_intercept, folder), names


def fingerprint_of(data: TrainingData, fit: MixingFit) -> str:
    """Return the fingerprint by which a checkpoint recognises the rows and their shards."""
    if fit.senders is None:
        return data.fingerprint()
    values, codes = fit.senders
    content = hashlib.sha256(repr(values.tolist()).encode() + codes.tobytes())
    return f"{data.fingerprint()} {values.dtype.str} {content.hexdigest()}"


def _scaling(data: TrainingData, fit: MixingFit) -> Scaling | None:
    feature = fit.shard_feature
    d = data.features
    if feature is not None and not 0 <= feature < d:
        raise InputError(f"shard_feature must be the number of a feature, from 0 to {d - 1}. Got {feature} instead.")
    if feature is not None and d == 1:
        raise InputError("shard_feature is the only feature: nothing is left to learn from.")
    if fit.run.scale is None and feature is None:
        return None
    scaling = Scaling(np.zeros(d), np.ones(d))
    if fit.run.scale is not None:
        scaling = Scaling.of_features(data.statistics(), fit.run.scale, fit.run.marks)
        if data.is_sparse and not data.in_memory and scaling.shift.any():
            raise InputError(
                f"scale={fit.run.scale!r} would move the zeros of a sparse store that is larger than memory, and "
                "shards would be dense: leave scale out, or divide the entries before they are ingested."
            )
    if feature is not None:
        scaling.factor[feature] = scaling.shift[feature] = 0.0
    return scaling


def _in_memory(data: MemoryData, fit: MixingFit, scaling: Scaling | None) -> tuple[MemoryPartitions, list[Any]]:
    """Deal the rows to shards, and scale them."""
    X: Any = data.X
    sparse = issparse(X)
    groups: Array = np.zeros(data.rows, np.int32)
    dealer: EvenDealer | GroupDealer
    if fit.deals_at_random:
        names: list[Any] = list(range(fit.count_for(data.rows)))
        dealer = RandomPartitioner(len(names), fit.run.seed).dealer((data.rows,))
    else:
        if fit.senders is not None:
            names, groups = _named(fit.senders, data.given.shape[0])
            groups = groups[data.kept]
        else:
            column = X[:, [fit.shard_feature]].toarray().ravel() if sparse else X[:, fit.shard_feature]
            values, groups = np.unique(column, return_inverse=True)
            names = _names_of_values(values)
        dealer = GroupDealer(tuple(np.bincount(groups, minlength=len(names)).tolist()), fit.run.seed)
        _require_rows(names, dealer.counts)
    reading = 8 << 20 if sparse else 0  # two blocks of sparse rows that are made dense
    kept = (16 * X.nnz if sparse else X.nbytes) + 32 * data.rows
    require_memory(data.cluster, len(names), data.features + fit.fit_intercept, kept, reading)
    found = deal_arrays(SparseRows(X) if sparse else X, data.y, data.total_weights, groups, dealer)
    return replace(found, X=_scaled(found.X, scaling)), names


def _scaled(rows: Any, scaling: Scaling | None) -> Array | SparseRows:
    """Return scaled rows, dense ones in place. Sparse rows are scaled on reading if that would move their zeros."""
    if scaling is None:
        return rows
    if not isinstance(rows, SparseRows):
        return scaling(rows, rows)
    if scaling.shift.any():
        return SparseRows(rows.X, scaling)
    values = scaling.entries(rows.X).astype(rows.dtype)
    return SparseRows(csr_array((values, rows.X.indices, rows.X.indptr), shape=rows.X.shape))


def _named(senders: tuple[Array, Array], rows: int) -> tuple[list[Any], Array]:
    values, codes = senders
    if len(codes) != rows:
        raise InputError(f"shard must hold one label for each of the {rows} rows. Got {len(codes)} labels instead.")
    _require_several(len(values))
    return values.tolist(), codes


def _names_of_values(values: Array) -> list[Any]:
    """Return the values of a feature as names of shards, as ints if all are whole."""
    _require_several(len(values))
    whole = bool((values == np.rint(values)).all()) and float(np.abs(values).max()) < 2**53
    return (values.astype(np.int64) if whole else values).tolist()


def _require_several(count: int, most: int = 1 << 16) -> None:
    """Raise InputError unless there are from 2 to ``most`` shards; a column of more values is a mistake."""
    if count < 2:
        raise InputError(
            "all rows are in one shard, and nothing can be mixed; two are needed, and more to tell the bad ones."
        )
    if count > most:
        raise InputError(f"the rows are in {count} shards, more than {most}: name a column that says who sent a row.")


def _require_rows(names: list[Any], counts: tuple[int, ...]) -> None:
    empty = [name for name, count in zip(names, counts, strict=True) if not count]
    if empty:
        more = f" ({len(empty) - 1} more have none either)" if len(empty) > 1 else ""
        raise InputError(
            f"shard {empty[0]!r} has no row with a label and a positive weight{more}; leave its rows out, or join it "
            "to another."
        )


def _on_disk(data: StoredData, fit: MixingFit, folder: str) -> tuple[StoredPartitions, list[Any]]:
    """Copy the rows to ``folder``, with a partition for each shard."""
    store = data.store
    targets = data.targets
    cluster = data.cluster
    shuffle = Shuffle(store, targets, folder, cluster, fit.run.dtype)
    names: list[Any]
    if fit.deals_at_random:
        names = list(range(fit.count_for(data.labelled_rows)))
        plain = Scaling(np.zeros(store.features), np.ones(store.features))
        dealt = RandomPartitioner(len(names), fit.run.seed)
        partitions = shuffle.by_partitioner(dealt, plain)
    else:
        feature = fit.shard_feature
        if fit.senders is not None:
            names, values = _named(fit.senders, store.rows)
        else:
            chunks = [(c,) for c in range(store.n_chunks)]
            found = cluster.map_chunks(distinct_values, chunks, "shards", store, targets, feature)
            values = np.unique(np.concatenate(found))
            names = _names_of_values(values)
        partitions = shuffle.by_label(values, feature, len(names), fit.run.seed)
        _require_rows(names, partitions.counts)
    reading = partitions.reading_bytes + 32 * partitions.chunk_rows
    require_memory(cluster, len(names), data.features + fit.fit_intercept, 0, reading)
    return partitions, names
