"""Check of rows against the features that a fitted estimator expects."""

from __future__ import annotations

from dataclasses import dataclass

from dask_odm.errors import InputError

SHOWN = 5  # names in a message


@dataclass(frozen=True)
class ExpectedFeatures:
    """Number of features that a fitted ``estimator`` expects, and their names; None if unknown."""

    estimator: str
    count: int
    names: list[str] | None

    def check(self, count: int, names: list[str] | None, hint: str) -> None:
        """Raise InputError for rows with another ``count`` of features or other ``names``.

        ``hint`` is a sentence about counts, used if names are unknown.
        """
        known = self.names is not None and names is not None
        if count != self.count:
            raise InputError(
                f"X has {count} features, but {self.estimator} is expecting {self.count} features as input."
                f"{_difference(self.names or [], names or []) if known else hint}"
            )
        if known and names != self.names:
            raise InputError(
                "The feature names should match those that were passed during fit, in the same order. "
                f"Expected {(self.names or [])[:SHOWN]} …, got {(names or [])[:SHOWN]} …."
            )


def _difference(fitted: list[str], names: list[str]) -> str:
    """Return sentences that list the features that rows lack, and those that the fit did not have."""
    known = set(fitted)
    given = set(names)
    lacking = [name for name in fitted if name not in given]
    beyond = [name for name in names if name not in known]
    return _listed("lacks", lacking) + _listed("has, beyond those of the fit,", beyond)


def _listed(verb: str, names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN])) + (" …" if len(names) > SHOWN else "")
    return f" It {verb} {shown}." if names else ""
