"""Iterative parameter mixing: every epoch, each shard makes one pass from the common w, and the results are mixed.

epoch    ``w_i`` = the pass of shard i from w; ``w ← Σ α_i w_i`` over the M shards
KL       ``α_i = 1/M``
Beta     ``α = softmax(S)``, ``S_i = −(β/2) D_i``, with ``u_i = w_i/‖w_i‖``, μ and v the mean and the variance of u over
         shards, feature by feature, and the squared Mahalanobis distance ``D_i = Σ (u_ij − μ_j)²/v_j``

Source: Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence Minimization
Principle*, algorithm 1, (4) and (6). The mean of D over shards is the number d_eff of features in its sum, so what a
β does depends on it: ``κ = β d_eff/2`` does not.

Departures: sums of exponentials are taken relative to the largest, since exp(S) is 0 for every shard where there are
many features. A feature that fewer than `LEAST_SHARDS` shards have is left out of D: that of a single shard would
add M − 1 to its distance, however clean it is.

Whoever has the shards answers two questions an epoch by sums that can be added pair by pair: `Moments`, then `Mixture`.
Nobody needs all w_i at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from dask_odm.errors import InputError
from dask_odm.learning.step_log import OnStep, Record, step_record
from dask_odm.typing import Array

LEAST_SHARDS = 3  # that must have a feature for it to count in distances
ROUNDING = 1e-12  # of a feature's root mean square over shards: a deviation below it is none
DEFAULT_KAPPA = 6.0  # 5 to 10 did best for 100 to 200 features
LARGEST = 1e150  # of ‖w‖: beyond, squares overflow
DOMINANT = 0.99  # of the weight: more of it on one shard is worth a warning
DEVIATIONS = 4.0  # from chance, of the share of wrong rows of a suspect


@dataclass(frozen=True, eq=False)
class Moments:
    """Centred sums of ``u_i`` over some shards, and what was counted in their passes, one figure a shard.

    Attributes
    ----------
    count : int
    mean, squares : ndarrays of shape (k,)
        Mean of u, and the sum of squared deviations from it.
    norms, moved, losses : ndarrays of shape (count,)
        ‖w_i‖, the rows that moved w, and the sum of their losses.
    """

    count: int
    mean: Array
    squares: Array
    norms: Array
    moved: Array
    losses: Array

    @classmethod
    def of(cls, W: Array, counted: Array) -> Moments:
        """Those of ``W`` (m, k), with the rows that moved each and their losses, (m, 2)."""
        norms = np.linalg.norm(W, axis=1)
        U = W / np.where(norms > 0, norms, 1.0)[:, None]
        mean = U.mean(axis=0)
        return cls(len(W), mean, ((U - mean) ** 2).sum(axis=0), norms, counted[:, 0], counted[:, 1])

    def __add__(self, other: Moments) -> Moments:
        count = self.count + other.count
        change = other.mean - self.mean
        mean = self.mean + change * (other.count / count)
        squares = self.squares + other.squares + change**2 * (self.count * other.count / count)
        columns = [np.concatenate(pair) for pair in zip(self._columns, other._columns, strict=True)]
        return Moments(count, mean, squares, *columns)

    @property
    def _columns(self) -> tuple[Array, Array, Array]:
        return self.norms, self.moved, self.losses


@dataclass(frozen=True, eq=False)
class Centre:
    """What distances are measured from, and how much they count.

    Attributes
    ----------
    mean : ndarray of shape (k,)
    precision : ndarray of shape (k,)
        1/v, and 0 for features that are left out.
    half_beta : float
        β/2; 0 gives all shards the same weight.
    """

    mean: Array
    precision: Array
    half_beta: float

    def distances(self, W: Array) -> Array:
        """Squared Mahalanobis distances of normalised ``W`` (m, k), (m,)."""
        norms = np.linalg.norm(W, axis=1)
        U = W / np.where(norms > 0, norms, 1.0)[:, None]
        return np.asarray(((U - self.mean) ** 2) @ self.precision)

    def mixture(self, W: Array) -> Mixture:
        """The mixture of the shards of ``W`` (m, k)."""
        distances = self.distances(W)
        scores = -self.half_beta * distances
        top = float(scores.max())
        shares = np.exp(scores - top)
        return Mixture(top, float(shares.sum()), shares @ W, distances)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Some shards mixed: a sum of exponentials relative to the largest, which streams.

    Attributes
    ----------
    top : float
        The largest score S.
    total : float
        Σ exp(S − top).
    vector : ndarray of shape (k,)
        Σ exp(S − top) w.
    distances : ndarray of shape (m,)
    """

    top: float
    total: float
    vector: Array
    distances: Array

    def __add__(self, other: Mixture) -> Mixture:
        top = max(self.top, other.top)
        mine = np.exp(self.top - top)
        theirs = np.exp(other.top - top)
        return Mixture(
            top,
            float(mine * self.total + theirs * other.total),
            mine * self.vector + theirs * other.vector,
            np.concatenate([self.distances, other.distances]),
        )


@dataclass(frozen=True)
class Mixing:
    """How shards are weighed.

    Parameters
    ----------
    kind : {"kl", "beta"}
    beta : float or None
    kappa : float or None
        β d_eff/2, where ``beta`` is None; `DEFAULT_KAPPA` where both are.
    """

    kind: str = "beta"
    beta: float | None = None
    kappa: float | None = None

    def centre(self, moments: Moments, present: Array) -> Centre:
        """That of all shards; ``present`` (k,) counts the shards that have each feature."""
        variance = moments.squares / moments.count
        rounding = ROUNDING**2 * (moments.mean**2 + variance)
        counted = (variance > rounding) & (present >= min(LEAST_SHARDS, moments.count))
        precision = np.zeros(len(variance))
        precision[counted] = 1.0 / variance[counted]
        return Centre(moments.mean, precision, self._half_beta(int(counted.sum())))

    def _half_beta(self, features: int) -> float:
        if self.kind == "kl" or not features:
            return 0.0
        if self.beta is not None:
            return 0.5 * self.beta
        return (DEFAULT_KAPPA if self.kappa is None else self.kappa) / features

    def weights(self, centre: Centre, distances: Array) -> Array:
        """Weights of all shards, of sum 1, from their distances, (M,)."""
        scores = -centre.half_beta * distances
        shares = np.exp(scores - scores.max())
        return np.asarray(shares / shares.sum())


class MixingProblem(Protocol):
    """What parameter mixing asks of shards it never sees."""

    @property
    def shards(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def k(self) -> int: ...
    def present(self) -> Array:
        """Shards that have each feature, (k,)."""
        ...

    def walk(self, w: Array, epoch: int) -> Moments:
        """A pass of every shard from ``w``, whose end it keeps."""
        ...

    def mix(self, centre: Centre) -> Mixture:
        """The mixture of where the shards' passes ended."""
        ...


@dataclass(frozen=True, eq=False)
class MixingState:
    """Where an epoch starts: the checkpoint.

    Attributes
    ----------
    epoch : int
    w : ndarray of shape (k,)
    weights : ndarray of shape (epoch, M)
        Of the shards, in every epoch before.
    seconds : float
    history : list of dict
    """

    epoch: int
    w: Array
    weights: Array
    seconds: float = 0.0
    history: list[Record] = field(default_factory=list)


def mix_parameters(
    problem: MixingProblem,
    mixing: Mixing,
    max_iter: int,
    resume: MixingState | None = None,
    on_step: OnStep = lambda record: None,
    on_state: Callable[[MixingState], object] = lambda state: None,
) -> MixingState:
    """Epochs until no row moves w, ``max_iter`` at most.

    Parameters
    ----------
    problem : MixingProblem
    mixing : Mixing
    resume : MixingState, optional
        Of an interrupted run.
    on_step : callable
        Told of every epoch: iteration, gap (no bound here, but how far w moved, as a
        share of its norm), objective (the mean of the shards' losses,
        weighed by the shards' weights and added up), passes and seconds so far, moved (such a mean of the rows that
        moved w), norm of w, and the effective number of shards 1/Σα².
    on_state : callable
        Given the state at the start of the next epoch.

    Raises
    ------
    InputError
        w grew beyond all bounds.
    """
    state = MixingState(0, np.zeros(problem.k), np.empty((0, problem.shards))) if resume is None else resume
    began = time.perf_counter() - state.seconds
    present = problem.present()
    while state.epoch < max_iter and not (state.history and state.history[-1]["moved"] == 0):
        moments = problem.walk(state.w, state.epoch)
        _require_bounded(moments.norms, state.epoch)
        centre = mixing.centre(moments, present)
        mixture = problem.mix(centre)
        weights = mixing.weights(centre, mixture.distances)
        w = mixture.vector / mixture.total
        more = {
            "moved": float(weights @ moments.moved),
            "norm": float(np.linalg.norm(w)),
            "effective_shards": float(1.0 / (weights @ weights)),
        }
        seconds = time.perf_counter() - began
        loss = float(weights @ moments.losses)
        record = step_record(state.epoch, _distance(w, state.w), loss, state.epoch + 1.0, seconds, **more)
        history = [*state.history, record]
        state = MixingState(state.epoch + 1, w, np.vstack([state.weights, weights]), seconds, history)
        on_state(state)  # what is told is saved already
        on_step(record)
    return state


def _distance(w: Array, before: Array) -> float:
    """How far w is from what it was, as a share of its norm; 0 where it is 0."""
    norm = float(np.linalg.norm(w))
    return float(np.linalg.norm(w - before)) / norm if norm > 0 else 0.0


def _require_bounded(norms: Array, epoch: int) -> None:
    if not (norms < LARGEST).all():
        largest = np.nan_to_num(norms, nan=np.inf).max()
        raise InputError(
            f"the weights grew beyond all bounds in epoch {epoch} (‖w‖ of a shard is {largest:.1e}): scale "
            "the rows (scale='minmax'), or choose a smaller beta or kappa, or local='pa1' with a small C."
        )


def suspects(wrong: Array, sizes: Array, weights: Array) -> Array:
    """Numbers of the shards that contradict the mixed w: so many of their rows are wrong that it is no chance.

    The share of wrong rows to be expected, p, is the mean of the shards' shares by their ``weights``, since shards that
    were left out of the mixture say nothing of it. A shard is a suspect if its own share is nearer to ½, a coin's, than
    to p, and beyond p by more than `DEVIATIONS` standard deviations of a share of so few rows.

    Parameters
    ----------
    wrong, sizes : ndarrays of shape (M,)
        Rows of each shard that w gets wrong, and all rows.
    weights : ndarray of shape (epochs, M)
        Of the shards; those of the later half of the epochs count.
    """
    late = weights[len(weights) // 2 :].mean(axis=0)
    shares = wrong / sizes
    p = min(0.5, float(late @ (wrong / sizes)))
    deviation = np.sqrt((p * (1.0 - p) + 1.0 / sizes) / sizes)
    return np.flatnonzero((shares > 0.5 * (p + 0.5)) & (shares > p + DEVIATIONS * deviation))
