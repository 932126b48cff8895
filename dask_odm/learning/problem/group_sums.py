"""Rows left out group by group in closed form, from sums over rows by passes.

A model ``f = φ·w`` minimises ``½ wᵀRw + Σ_i loss_i(f_i)``. At the solution let u be minus the losses' derivatives, c
their second derivatives, and ``A = R + Σ_i c_i φ_i φ_iᵀ``. One Newton step from w leads to the model without the group
g, for a row of which it gives::

    f_i − φ_i·z,   (A − Σ_{i∈g} c_i φ_i φ_iᵀ) z = Σ_{i∈g} u_i φ_i

For groups of one row this is leave-one-out (`dask_odm.methods.left_out`). It is exact if no row outside the group
changes its side of the band. All groups' systems are solved at once by conjugate gradients that A preconditions: a
product of all of them takes one pass over the rows, and vectors of groups are all that is held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_odm.linalg.row_passes import Passes, RowBlock
from dask_odm.typing import Array

GROUP_TOL = 1e-3  # of a group's system, in its own norm
MOST_PRODUCTS = 100


@dataclass(frozen=True, eq=False)
class GroupQuery:
    """Sums over the rows of every group at the solution ``w`` (k,). Tasks carry it.

    ``query`` makes features of rows by its ``feature_rows``, and has their ``loss``. ``groups`` (n,) are the numbers of
    all rows' groups, from 0 to ``count`` − 1.
    """

    query: Any
    w: Array
    groups: Array
    count: int

    def forces(self, blocks: Iterable[RowBlock]) -> Array:
        """Return ``Σ_{i∈g} u_i φ_i`` of every group g, (count, k)."""
        out = np.zeros((self.count, len(self.w)))
        for group, features, u, _ in self._pieces(blocks):
            _add_by_group(out, group, u[:, None] * features)
        return out

    def products(self, blocks: Iterable[RowBlock], at: Array) -> Array:
        """Return ``Σ_{i∈g} c_i φ_i (φ_i·at_g)`` of every group g, (count, k)."""
        out = np.zeros((self.count, len(self.w)))
        for group, features, _, c in self._pieces(blocks):
            active = np.flatnonzero(c)
            group, features = group[active], features[active]
            along = np.einsum("ij,ij->i", features, at[group])
            _add_by_group(out, group, (c[active] * along)[:, None] * features)
        return out

    def values(self, blocks: Iterable[RowBlock], z: Array) -> list[Array]:
        """Return the value of every row without its group, in a list, so that groups of blocks add up."""
        pieces = ((group, features) for group, features, _, _ in self._pieces(blocks))
        return [features @ self.w - np.einsum("ij,ij->i", features, z[group]) for group, features in pieces]

    def _pieces(self, blocks: Iterable[RowBlock]) -> Iterator[tuple[Array, Array, Array, Array]]:
        """Yield groups, features, u and c of rows, a bounded number at a time."""
        for block in blocks:
            for rows, features in self.query.feature_rows(block):
                weight = block.weight[rows] if block.weight.size else block.weight
                _, u, c = self.query.loss.evaluate(features @ self.w, block.y[rows], weight)
                yield self.groups[block.first + rows.start : block.first + rows.stop], features, u, c


def _add_by_group(out: Array, group: Array, parts: Array) -> None:
    """Add each of ``parts`` (m, k) to the row of ``out`` (count, k) that is its group."""
    if not len(group):
        return
    order = np.argsort(group, kind="stable")
    sorted_groups = group[order]
    starts = np.flatnonzero(np.diff(sorted_groups, prepend=-1))
    out[sorted_groups[starts]] += np.add.reduceat(parts[order], starts, axis=0)


def leave_groups_out(query: GroupQuery, passes: Passes, A: Array, inverse: Array) -> Array:
    """Return the value (n,) that every row has by the model without its group.

    ``inverse`` (k, k) is lower triangular, ``inverseᵀ inverse`` = A⁻¹.
    """
    b: Array = passes.run(query, GroupQuery.forces, nbytes=8 * query.count * len(A))
    z = np.zeros_like(b)
    residual = b.copy()
    step = (residual @ inverse.T) @ inverse
    square = np.einsum("ij,ij->i", residual, step)
    enough = GROUP_TOL**2 * square
    going = np.flatnonzero(square > 0.0)
    along = step.copy()
    for _ in range(MOST_PRODUCTS):
        if not len(going):
            break
        at = np.zeros_like(b)
        at[going] = along[going]
        image = at @ A - passes.run(query, GroupQuery.products, at, nbytes=8 * query.count * len(A))
        length = square[going] / np.maximum(np.einsum("ij,ij->i", at[going], image[going]), np.finfo(float).tiny)
        z[going] += length[:, None] * at[going]
        residual[going] -= length[:, None] * image[going]
        step = (residual[going] @ inverse.T) @ inverse
        new = np.einsum("ij,ij->i", residual[going], step)
        along[going] = step + (new / square[going])[:, None] * along[going]
        square[going] = new
        going = going[new > enough[going]]
    return np.concatenate(passes.run(query, GroupQuery.values, z, nbytes=None))
