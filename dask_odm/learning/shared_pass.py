"""Shared passes: several Nyström problems over one store, as machines of many classes need, read it together.

A chunk is read once for all of them. Kernel values at shared landmarks are computed once for all problems that sum over
all rows. The sums of every machine are added in the order of a pass of its own, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, TypeVar

from dask_odm.data.store.store import StoreBlock
from dask_odm.engine.lockstep import take_turns
from dask_odm.engine.passes import AskedPass, Columns, StorePasses, codes_and_weights
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.methods.landmark.query import RunningSums, SpanQuery, add_tiles

T = TypeVar("T")


def run_jointly(works: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """Yield the result of every work in order. Up to ``most`` run in lockstep, so that their passes become shared ones.

    If ``most`` is 1, each runs alone when its result is asked for.
    """
    yield from take_turns(works, _answers, most) if most > 1 else (work() for work in works)


def _answers(asked: list[AskedPass]) -> list[Any]:
    """Run the passes that were asked for, those of Nyström problems as one shared pass, and return their results."""
    joint = [i for i, each in enumerate(asked) if isinstance(each.query, SpanQuery)]
    found: dict[int, Any] = {}
    if len(joint) > 1:
        found = dict(zip(joint, _joint_answers([asked[i] for i in joint]), strict=True))
    return [found[i] if i in found else each.run() for i, each in enumerate(asked)]


def _joint_answers(asked: list[AskedPass]) -> Sequence[Any]:
    """Run Nyström queries in one shared pass over their store, and return their results."""
    passes = asked[0].passes
    query = JointQuery(tuple(Part(each.query, each.method, each.arguments, each.passes.columns) for each in asked))
    of_groups = [tuple(each.of_groups[g] if each.of_groups else None for each in asked) for g in range(passes.groups)]
    together = StorePasses(passes.store, passes.cluster, codes_and_weights)
    total: JointSum = together.run(
        query, JointQuery.sums, of_groups=of_groups, nbytes=sum(each.nbytes for each in asked)
    )
    return total.parts


@dataclass(frozen=True, eq=False)
class JointSum:
    """Sums of several queries, added query by query."""

    parts: tuple[Any, ...]

    def __add__(self, other: JointSum) -> JointSum:
        return JointSum(tuple(map(add, self.parts, other.parts)))


@dataclass(frozen=True, eq=False)
class Part:
    """One query of a shared pass: what it sums, and which targets and weights of a block it uses."""

    query: SpanQuery
    method: Callable[..., Any]
    arguments: Sequence[Any]
    columns: Columns

    def block(self, given: RowBlock) -> RowBlock:
        """Return the block with this query's targets and weights."""
        weight: Any = given.weight if given.weight.size else None
        y, weight = self.columns(StoreBlock(given.X, given.y, weight, given.first))
        return RowBlock(given.X, y, weight, given.first)


@dataclass(frozen=True, eq=False)
class JointQuery:
    """Several queries that read the same blocks."""

    parts: tuple[Part, ...]

    def sums(self, blocks: Iterable[RowBlock], of_group: Sequence[Any]) -> JointSum:
        """Sum every query over the blocks; ``of_group`` holds each query's own argument for the group, or None."""
        found: list[Any] = [None] * len(self.parts)
        sets = self._sets()
        for j, part in enumerate(self.parts):
            if part.method is SpanQuery.sums:
                found[j] = RunningSums(part.query, *part.arguments)
        for k, given in enumerate(blocks):
            seen = [part.block(given) for part in self.parts]
            for members in sets:
                add_tiles([found[j] for j in members], [seen[j] for j in members])
            for j, part in enumerate(self.parts):
                if part.method is not SpanQuery.sums:
                    more = () if of_group[j] is None else (of_group[j][k : k + 1],)
                    found[j] = part.method(part.query, [seen[j]], *part.arguments, *more, so_far=found[j])
        return JointSum(tuple(each.result() if isinstance(each, RunningSums) else each for each in found))

    def _sets(self) -> list[list[int]]:
        """Return the numbers of the queries that sum over all rows, grouped by the landmarks they share."""
        sets: dict[tuple[Any, ...], list[int]] = {}
        for j, part in enumerate(self.parts):
            if part.method is SpanQuery.sums:
                same = id(part.query.landmarks), part.query.kernel, part.query.double
                sets.setdefault(same, []).append(j)
        return list(sets.values())
