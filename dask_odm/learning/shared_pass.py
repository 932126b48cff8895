"""Shared passes: several problems over one store, as machines of many classes need, read it together.

A chunk is read once for all of them. A query that can share a pass has a static method ``of_many(asked, blocks)``. It
sums several queries of its class over the same blocks; those of Nyström problems share kernel values. The sums of every
machine are added in the order of a pass of its own, to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import add
from typing import Any, TypeVar

from dask_odm.data.store.store import StoreBlock
from dask_odm.engine.passes import AskedPass, Columns, StorePasses, take_turns
from dask_odm.linalg.row_passes import RowBlock

T = TypeVar("T")


def run_jointly(works: Iterable[Callable[[], T]], most: int) -> Iterator[T]:
    """Yield the result of every work in order. Up to ``most`` run in lockstep, so that their passes become shared ones.

    If ``most`` is 1, each runs alone when its result is asked for.
    """
    yield from take_turns(works, _answers, most) if most > 1 else (work() for work in works)


def _answers(asked: list[AskedPass]) -> list[Any]:
    """Run the passes that were asked for, those that can be shared as one, and return their results."""
    joint = [i for i, each in enumerate(asked) if hasattr(each.query, "of_many")]
    found: dict[int, Any] = {}
    if len(joint) > 1:
        found = dict(zip(joint, _joint_answers([asked[i] for i in joint]), strict=True))
    return [found[i] if i in found else each.run() for i, each in enumerate(asked)]


def _joint_answers(asked: list[AskedPass]) -> Sequence[Any]:
    """Run queries of one class in one pass over their store, and return their results."""
    passes = asked[0].passes
    query = JointQuery(
        tuple((each.query, each.method, each.arguments) for each in asked), tuple(each.passes.columns for each in asked)
    )
    of_groups = [tuple(each.of_groups[g] if each.of_groups else None for each in asked) for g in range(passes.groups)]
    together = StorePasses(passes.store, passes.cluster)
    nbytes = sum(each.nbytes for each in asked)
    return together.run(query, JointQuery.sums, of_groups=of_groups, nbytes=nbytes).parts


@dataclass(frozen=True, eq=False)
class JointSum:
    """Sums of several queries, added query by query."""

    parts: tuple[Any, ...]

    def __add__(self, other: JointSum) -> JointSum:
        return JointSum(tuple(map(add, self.parts, other.parts)))


@dataclass(frozen=True, eq=False)
class JointQuery:
    """Several queries that read the same blocks, with the method and arguments of each.

    ``columns`` give each query's targets and weights of a block.
    """

    asked: tuple[tuple[Any, Callable[..., Any], Sequence[Any]], ...]
    columns: tuple[Columns, ...]

    def sums(self, blocks: Iterable[RowBlock], of_group: Sequence[Any]) -> JointSum:
        """Sum every query over the blocks; ``of_group`` holds each query's own argument for the group, or None."""
        asked = [(*each, more) for each, more in zip(self.asked, of_group, strict=True)]
        return JointSum(tuple(self.asked[0][0].of_many(asked, map(self._seen, blocks))))

    def _seen(self, given: RowBlock) -> list[RowBlock]:
        """Return the block with each query's targets and weights."""
        weight: Any = given.weight if given.weight.size else None
        block = StoreBlock(given.X, given.y, weight, given.first)
        return [RowBlock(given.X, *columns(block), given.first) for columns in self.columns]
