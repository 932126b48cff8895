"""Losses: derivatives by finite differences, weights, and what travels; the fused loops against the general way."""

from dataclasses import dataclass

import numpy as np
import pytest
from scipy.sparse import csr_array

from dask_odm.kernels import RBF
from dask_odm.learning.problem.band import row_losses
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem
from dask_odm.learning.problem.losses import BandLoss, Loss, ODMSettings
from dask_odm.linalg.jit import frozen
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import Draw, SpanQuery
from squared_loss import SquaredLoss

N = 200
LOSSES = [BandLoss(ODMSettings(1e3, 0.3, 0.2), float(N), 0.5, 2.0), SquaredLoss(3.0)]
EVERY_LOSS = pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])


def targets(loss: Loss, weighted: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scores, targets and weights of rows, none of them at an end of the band."""
    rng = np.random.default_rng(0)
    y = rng.integers(-1, 2, N).astype(np.int8) if isinstance(loss, BandLoss) else rng.normal(size=N)
    return 2 * rng.normal(size=N), y, rng.uniform(0.5, 2.0, N) if weighted else np.empty(0)


@EVERY_LOSS
@WEIGHTED
def test_derivatives_are_those_of_the_value(loss, weighted):
    scores, y, weight = targets(loss, weighted)
    _, dual, curvature = loss.evaluate(scores, y, weight)
    h = 1e-6
    for i in range(20):
        one = slice(i, i + 1)
        row = y[one], weight[one]
        ahead, behind = (loss.evaluate(scores[one] + step, *row) for step in (h, -h))
        assert -dual[i] == pytest.approx((ahead[0] - behind[0]) / (2 * h), rel=1e-5, abs=1e-5)
        assert curvature[i] == pytest.approx((behind[1][0] - ahead[1][0]) / (2 * h), rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_lies_behind_an_empty_weight_in_memory_moves_no_bit(dtype):
    scores, y, _ = targets(LOSSES[0], False)
    memory = np.zeros((3, N), dtype)

    def sums(weight: np.ndarray) -> list:
        total = row_losses(scores.astype(dtype), y, frozen(weight), LOSSES[0].terms, *memory[1:])
        return [total, memory[1:].tobytes()]

    apart = sums(np.empty(0))
    assert all(sums(row.view(np.float64)[:0]) == apart for row in memory)


@EVERY_LOSS
@WEIGHTED
def test_slopes_are_derivatives_along_a_change_of_the_scores(loss, weighted):
    scores, y, weight = targets(loss, weighted)
    change, steps = np.random.default_rng(1).normal(size=N), np.array([0.0, 0.3, 1.0, 2.5])
    expected = [-(loss.evaluate(scores + t * change, y, weight)[1] @ change) for t in steps]
    np.testing.assert_allclose(loss.slopes(scores, change, y, weight, steps), expected, rtol=1e-9)


@EVERY_LOSS
@WEIGHTED
def test_curvature_survives_the_way(loss, weighted):
    scores, y, weight = targets(loss, weighted)
    curvature = loss.evaluate(scores, y, weight)[2]
    assert (curvature <= loss.row_stiffness(y, weight)).all()
    packed = loss.pack(curvature, y, weight)
    assert packed.nbytes < curvature.nbytes / 16
    np.testing.assert_array_equal(loss.unpack(packed, y, weight), curvature)


@EVERY_LOSS
def test_stiff_rows_and_another_lam(loss):
    scores, y, weight = targets(loss, True)
    value, dual, _ = loss.evaluate(scores, y, weight)
    stiff = loss.of_stiff_rows().evaluate(scores, y, loss.row_stiffness(y, weight))
    assert stiff[0] == pytest.approx(value, rel=1e-12)
    np.testing.assert_allclose(stiff[1], dual, rtol=1e-12)
    before = loss.lam if isinstance(loss, SquaredLoss) else loss.settings.lam
    assert loss.with_lam(7 * before).evaluate(scores, y, weight)[0] == pytest.approx(7 * value)


@dataclass(frozen=True)
class PlainBand(Loss):
    """ODM's loss without what is only faster: the way that any other loss goes."""

    band: BandLoss

    def with_lam(self, lam: float) -> "PlainBand":
        return PlainBand(self.band.with_lam(lam))

    def of_stiff_rows(self) -> "PlainBand":
        return PlainBand(self.band.of_stiff_rows())

    def evaluate(self, scores, y, weight):
        return self.band.evaluate(scores, y, weight)

    def row_stiffness(self, y, weight):
        return self.band.row_stiffness(y, weight)


@pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
@pytest.mark.parametrize("curvature", ["full", "diagonal", "none"])
def test_linear_sums_are_the_same_with_the_loops_and_without(form, curvature):
    rng = np.random.default_rng(3)
    X, (_, y, weight) = rng.normal(size=(N, 6)), targets(LOSSES[0], True)
    w, features = rng.normal(size=7), FeatureMap(6, 2.0)
    fused, plain = (
        PrimalProblem.over_rows(features, loss, form(X), y, weight).sums(w, curvature)
        for loss in (LOSSES[0], PlainBand(LOSSES[0]))
    )
    assert plain.loss == pytest.approx(fused.loss, rel=1e-12)
    np.testing.assert_allclose(plain.dual_image, fused.dual_image, rtol=1e-10)
    np.testing.assert_allclose(plain.curvature, fused.curvature, rtol=1e-10, atol=1e-10)


def test_span_sums_are_the_same_with_the_loops_and_without():
    rng = np.random.default_rng(4)
    X, (_, y, weight) = rng.normal(size=(N, 3)), targets(LOSSES[0], True)
    a, p, found = rng.normal(size=20), rng.normal(size=20), []
    for loss in (LOSSES[0], PlainBand(LOSSES[0])):
        span = SpanProblem.over_rows(SpanQuery(RBF(1.0, 0.5), X[:20], loss), X, y, weight, 0)
        sums = span.sums(a, Draw(30, 1))
        assert sums.sample is not None
        slopes = span.slopes(a, p, np.array([0.2, 1.0]))
        found.append((sums.loss, sums.dual_image, span.product(sums, p), slopes, sums.sample.numbers))
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10)
