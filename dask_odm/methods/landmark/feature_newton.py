"""Newton's method for single machines over Nyström features in memory, by a Cholesky factor of the active rows.

With weights w of the features φ a machine minimises ``P(w) = ½‖w‖² + Σ_i loss_i(w·φ_i)``. A step solves ``(1 + ΦᵀCΦ)
Δ = −∇P`` over the active rows, whose curvatures are C. Woodbury's formula takes the inner products of few active rows,
and computes only those of rows that were not active before. If there are more rows than features, the Hessian takes
those whose curvature has changed. The step of least P follows. All other sums are in float64. So the number of steps
hardly grows with λ. Products alone would be hundreds a step, and descent thousands of sweeps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dask_odm.learning.newton import PrimalSolution, least_row_step
from dask_odm.learning.problem.band import TINY
from dask_odm.learning.problem.losses import RowLosses
from dask_odm.learning.problem.nystrom_features import span_images, span_scores
from dask_odm.methods.exact.gram import ActiveFactor, scaled_part
from dask_odm.typing import Array


@dataclass(frozen=True, eq=False)
class FeatureNewton:
    """One machine over blocks of ``features`` (n, r) in memory; ``losses`` are those of the rows of all blocks.

    ``errors`` (m, r) are those of the features of some rows; no row is taken to have more than twice the largest.
    """

    blocks: list[Array]
    losses: RowLosses
    errors: Array

    def solve(self, start: Array, tol: float, max_iter: int) -> PrimalSolution[None]:
        """Minimise P from weights ``start`` (r,) to the relative gap ``tol``, the largest that the errors allow.

        It ends sooner after ``max_iter`` steps, or if steps cease to lower P.
        """
        losses = self.losses
        system = ActiveSystem(self.blocks, losses.stiffness_low)
        w = start
        scores = self._scores(w)
        steps = 0
        primal = np.inf
        while True:
            last = primal
            margins = losses.y * scores
            curvature = losses.curvature(margins)
            primal = 0.5 * float(w @ w) + float(losses.losses(margins).sum())
            gradient = w - system.image(losses.y * losses.dual_candidate(margins))
            gap = 0.5 * float(gradient @ gradient) / max(primal, TINY)
            # a little of the gap is left to rounding
            if gap <= 0.9 * tol or steps == max_iter or not primal < last:
                break
            direction = -system.solved(curvature, gradient)
            change = self._scores(direction)
            length = least_row_step(losses, scores, change, float(w @ direction), float(direction @ direction))
            w = w + length * direction
            scores += length * change
            steps += 1
        primal, gap = self._judged(w, system)
        return PrimalSolution(w, primal, gap, gap <= tol, [], steps)

    def _scores(self, w: Array) -> Array:
        """Return ``w·φ`` of every row (n,), summed in float64."""
        out = np.empty(len(self.losses.y))
        start = 0
        for block in self.blocks:
            span_scores(block, w, out[start : start + len(block)])
            start += len(block)
        return out

    def _judged(self, w: Array, system: ActiveSystem) -> tuple[float, float]:
        """Return P at ``w`` and the largest gap that errors of features as large as those known allow."""
        losses = self.losses
        margins = losses.y * self._scores(w)
        primal = 0.5 * float(w @ w) + float(losses.losses(margins).sum())
        s = losses.dual_candidate(margins)
        spread = 2.0 * float(np.abs(self.errors @ w).max(initial=0.0))
        longest = 2.0 * float(np.sqrt(np.square(self.errors).sum(axis=1).max(initial=0.0)))
        off = float(np.linalg.norm(w - system.image(losses.y * s))) + longest * float(np.abs(s).sum())
        # convex in the margin, so no margin in between has a larger gap
        rows = np.maximum(losses.row_gaps(s, margins - spread), losses.row_gaps(s, margins + spread))
        return primal, (float(rows.sum()) + 0.5 * off**2) / max(primal, TINY)


class ActiveSystem:
    """The system ``1 + ΦᵀCΦ`` over the active rows of some ``blocks`` of features.

    It keeps the features of up to r rows that were active, with their inner products, and the last Hessian, all in
    float64 if the sum would drown the identity in the rounding of float32.
    """

    def __init__(self, blocks: list[Array], stiffness: Array) -> None:
        self._blocks = blocks
        self._starts = np.cumsum([0, *map(len, blocks)])
        self._r = r = blocks[0].shape[1]
        self._rows = np.empty(0, np.int64)  # whose features are known
        parts = zip(blocks, np.split(stiffness, self._starts[1:-1]), strict=True)
        trace = sum(float(each @ np.einsum("ij,ij->i", block, block)) for block, each in parts)
        # steps in float32 are a tenth more with this trace, and 1.9 times as many with five times as large a one
        enough = trace * np.finfo(np.float32).eps < 0.5
        self._dtype = blocks[0].dtype if enough else np.dtype(np.float64)
        self._known, self._products = np.zeros((2, r, r), self._dtype)
        self._multiplied = 0  # rows known whose products are, in the upper half
        self._hessian = np.zeros((r, r), self._dtype)
        self._curvature = np.zeros(self._starts[-1])  # of which the Hessian is

    def image(self, dual: Array) -> Array:
        """Return ``Φᵀ u`` (r,) of dual variables (n,)."""
        out = np.zeros((1, self._r))
        for block, start in zip(self._blocks, self._starts, strict=False):
            span_images(block, dual[start : start + len(block), None], out)
        return out[0]

    def solved(self, curvature: Array, gradient: Array) -> Array:
        """Return ``(1 + ΦᵀCΦ)⁻¹ g`` (r,) for curvatures (n,)."""
        active = np.flatnonzero(curvature)
        if not len(active):
            return gradient
        if len(active) <= self._r:
            self._learn(active)
            root = np.sqrt(curvature[self._rows]).astype(self._dtype)
            used = np.flatnonzero(root)
            own = root[used]
            known = self._known[: len(root)]
            count = self._multiplied
            self._products[:count, count : len(root)] = known[:count] @ known[count:].T
            self._products[count : len(root), count : len(root)] = known[count:] @ known[count:].T
            self._multiplied = len(root)
            memory = np.empty(len(used) ** 2, self._dtype)
            factor = ActiveFactor.of(lambda: scaled_part(self._products, used, own, memory))
            root[used] *= factor.solve(own * (known @ gradient.astype(self._dtype))[used])
            return gradient - root @ known
        if np.count_nonzero(curvature != self._curvature) > len(active):
            self._hessian[:] = 0.0
            self._curvature = np.zeros_like(curvature)
        more = curvature - self._curvature
        for sign in (1.0, -1.0):
            for some in self._pieces(np.flatnonzero(sign * more > 0.0)):
                features = self._features(some)
                features *= np.sqrt(sign * more[some]).astype(self._dtype)[:, None]
                self._hessian += self._dtype.type(sign) * (features.T @ features)
        self._curvature = curvature
        return ActiveFactor.of(self._hessian.copy).solve(gradient)

    def _learn(self, active: Array) -> None:
        """Keep the features and inner products of ``active`` rows, and of earlier ones if there is room."""
        new = np.setdiff1d(active, self._rows, assume_unique=True)
        if len(self._rows) + len(new) > self._r:
            kept = np.flatnonzero(np.isin(self._rows, active, assume_unique=True))
            self._multiplied = count = len(kept)
            self._rows = self._rows[kept]
            self._known[:count] = self._known[kept]
            self._products[:count, :count] = self._products[np.ix_(kept, kept)]
        count = len(self._rows)
        self._rows = np.concatenate([self._rows, new])
        self._known[count : len(self._rows)] = self._features(new)

    def _features(self, rows: Array) -> Array:
        """Return the features of ascending ``rows``."""
        ends = np.searchsorted(rows, self._starts)
        parts = zip(self._blocks, self._starts, ends, ends[1:], strict=False)
        return np.concatenate([block[rows[a:b] - first] for block, first, a, b in parts], dtype=self._dtype)

    def _pieces(self, rows: Array) -> list[Array]:
        """Cut ``rows`` into pieces whose features take no more memory than the Hessian."""
        return [rows[start : start + self._r] for start in range(0, len(rows), self._r)]
