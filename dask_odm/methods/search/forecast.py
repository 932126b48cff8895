"""Forecast of the seconds that a search takes, by its first trials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from dask_odm.learning.solution import StepClock

logger = logging.getLogger("dask_odm")


@dataclass(eq=False)
class Forecast:
    """Seconds that a search takes in all, with the last fit: trials that were timed tell how long others take.

    ``work(stage)`` is the work of one trial, 0 if the stage is left out, and ``after`` that of the last fit. The same
    work takes about as long in every stage.
    """

    work: Callable[[int], float]
    after: float
    first: float | None = field(init=False, default=None)  # what `tell` told
    _clock: StepClock = field(init=False, default_factory=StepClock)
    _left: dict[int, float] = field(init=False, default_factory=dict)  # work by stage
    _done: float = field(init=False, default=0.0)
    _timed: float = field(init=False, default=0.0)  # seconds that it took
    _times: int = field(init=False, default=0)  # how often trials were added

    def begin(self, trials: Mapping[int, int]) -> None:
        """Expect so many trials of each stage."""
        self._left = {stage: count * self.work(stage) for stage, count in trials.items()}

    def add(self, stage: int, trials: int, seconds: float) -> None:
        """Count trials of a stage, which took so many seconds together. Stages come in order."""
        work = trials * self.work(stage)
        if self._times == 1:  # loops were loaded or compiled in the first ones
            self._done = self._timed = 0.0
        self._times += 1
        self._done += work
        self._timed += seconds
        self._left = {at: max(0.0, left - work * (at == stage)) for at, left in self._left.items() if at >= stage}

    def tell(self) -> None:
        """Log the seconds that are expected, once."""
        if self.first is None and self.seconds is not None:
            self.first = self.seconds
            logger.info("the search takes about %.0f s, as its first trials tell", self.first)

    @property
    def taken(self) -> float:
        """Seconds since the search began."""
        return self._clock.seconds

    @property
    def seconds(self) -> float | None:
        """Seconds that the search takes in all; None if nothing was timed."""
        if not self._done:
            return None
        return self.taken + (sum(self._left.values()) + self.after) * self._timed / self._done
