"""Sums over rows from their kernel values at landmarks: against the formulas with the matrix itself."""

import numpy as np
import pytest

from dask_odm.kernels import RBF, Laplacian, Polynomial
from dask_odm.learning.problem.losses import BandLoss, ODMSettings, RowLosses
from dask_odm.methods.landmark.problem import SpanProblem
from dask_odm.methods.landmark.query import UNSUPPORTED, Draw, SpanQuery
from small_problems import matrix

KERNELS = [RBF(1.0, 0.4), Laplacian(1.0, 0.3), Polynomial(0.0, 0.2)]
SETTINGS = [ODMSettings(1e3, 0.3, 0.2), ODMSettings(1e3, 0.0, 0.0)]
PLENTY = 1 << 30


class Case:
    """Rows with codes (some unknown), weights, landmarks; and the same problem by its formulas."""

    def __init__(self, n: int, r: int, dtype: str = "float64", settings: ODMSettings = SETTINGS[0], kernel=KERNELS[0]):
        rng = np.random.default_rng(n)
        self.X = rng.normal(size=(n, 4)).astype(dtype)
        self.codes = rng.integers(-1, 2, n).astype(np.int8)
        self.weight, self.a = rng.uniform(0.5, 2.0, n), rng.normal(size=r)
        self.known = np.flatnonzero(self.codes >= 0)
        y = np.where(self.codes == 1, 1.0, -1.0)[self.known]
        factor = np.where(y > 0, 3.0, 0.5)
        self.losses = RowLosses(settings, y, self.weight[self.known] * factor)
        loss = BandLoss(settings, self.losses.total_weight, 0.5, 3.0)
        self.query = SpanQuery(kernel, self.X[:r], loss)
        self.K = matrix(kernel, self.X[self.known], self.X[:r])

    def span(self, budget: int = 0, threads: int = 1) -> SpanProblem:
        return SpanProblem.over_rows(self.query, self.X, self.codes, self.weight, budget, threads)

    def margins(self, a: np.ndarray) -> np.ndarray:
        return self.losses.y * (self.K @ a)


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
@pytest.mark.parametrize("budget", [0, PLENTY], ids=["recomputed", "kept"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("settings", SETTINGS, ids=["upsilon", "no upsilon"])
@pytest.mark.parametrize("n", [5, 2500])
def test_sums_are_those_of_the_formulas(kernel, budget, dtype, tolerance, settings, n):
    case = Case(n, 3, dtype, settings, kernel)
    span, losses, p = case.span(budget), case.losses, np.array([1.0, -2.0, 0.5])
    sums, margins = span.sums(case.a), case.margins(case.a)
    ahead = case.losses.y * (case.K @ p)
    steps = np.array([0.0, 0.3, 1.0])
    for found, expected in (
        (sums.loss, losses.losses(margins).sum()),
        (sums.dual_image, case.K.T @ (losses.y * losses.dual_candidate(margins))),
        (span.product(sums, p), case.K.T @ (losses.curvature(margins) * (case.K @ p))),
        (span.slopes(case.a, p, steps), [-(losses.dual_candidate(margins + t * ahead) @ ahead) for t in steps]),
    ):
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance * max(1.0, np.abs(expected).max()))
    curvature = np.concatenate([block for group in sums.curvatures for block in group])
    np.testing.assert_allclose(curvature[case.known], losses.curvature(margins), rtol=1e-12)
    assert not curvature[case.codes < 0].any()


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda k: k.name)
def test_memory_and_threads_change_no_bit(kernel):
    case = Case(9000, 40, "float32", kernel=kernel)
    steps, answers = np.array([0.1, 0.9]), set()
    for budget in (0, PLENTY):
        for threads in (1, 2, 5):
            span = case.span(budget, threads)
            sums = span.sums(case.a, Draw(50, 7))
            assert sums.sample is not None
            found = (
                np.array(sums.loss),
                sums.dual_image,
                span.product(sums, case.a),
                span.slopes(case.a, -case.a, steps),
            )
            drawn = (*sums.sample.weighted(), *span.support(case.a, Draw(50, 7)).weighted())
            answers.add(b"".join(x.tobytes() for x in (*found, *drawn)))
    assert len(answers) == 1


def test_a_sample_is_of_active_rows_and_estimates_sums_over_them():
    case = Case(3000, 40)
    span = case.span(PLENTY)
    curvature = case.losses.curvature(case.margins(case.a))
    assert 0 < np.count_nonzero(curvature) < len(curvature)
    exact = curvature @ case.X[case.known] ** 2
    found = []
    for seed in range(200):
        sample = span.sums(case.a, Draw(300, seed)).sample
        assert sample is not None
        rows, _, weight = sample.weighted()
        assert len(rows) == 300
        found.append(weight @ rows**2)
    error = np.std(found, axis=0) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - exact) < 4 * error).all()
    assert (error < 0.05 * exact).all()


@pytest.mark.parametrize("settings", SETTINGS, ids=["upsilon", "no upsilon"])
def test_support_is_drawn_by_dual_variables_and_the_rest_after_it(settings):
    case = Case(3000, 40, settings=settings)
    duals = np.abs(case.losses.dual_candidate(case.margins(case.a)))
    active = np.count_nonzero(duals)
    assert 500 < active < len(duals)
    everyone = case.span().support(case.a, Draw(3000, 0))
    order = np.argsort(everyone.numbers)
    np.testing.assert_array_equal(everyone.numbers[order], case.known)
    np.testing.assert_array_equal(everyone.rows[order], case.X[case.known])
    chances = everyone.weight[order]
    np.testing.assert_allclose(chances, duals + UNSUPPORTED * case.losses.curvature(np.full(len(duals), -1.0)))
    few = [case.span().support(case.a, Draw(100, seed)) for seed in range(60)]
    drawn = np.mean([np.isin(case.known, sample.numbers[:100]) for sample in few], axis=0)
    middle = np.median(duals[duals > 0])
    likely, others, none = (drawn[mask].mean() for mask in (duals > middle, (duals > 0) & (duals < middle), duals == 0))
    assert likely > 1.5 * others > 0
    assert none < 0.1 * likely
