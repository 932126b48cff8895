"""Settings of one fit of `MixingClassifier`: its parameters, checked and converted to plain types."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from dask_odm.engine.partitioners import require_rows
from dask_odm.errors import InputError
from dask_odm.learning.training.run import FitRun
from dask_odm.methods.mixing.online_passes import LocalRule
from dask_odm.methods.mixing.solver import Mixing
from dask_odm.typing import Array


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
        """Return the number of shards for so many rows: by default one for 50 rows, from 2 to 100.

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
