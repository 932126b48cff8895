"""The linear problem's sums against plain formulas, finite differences and the kernel's dual: dense, sparse, scaled."""

from dataclasses import dataclass
from functools import reduce
from itertools import pairwise
from operator import add

import numpy as np
import pytest
from scipy.sparse import csr_array, random_array

from dask_odm.data.rows.scaling import Scaling
from dask_odm.learning.problem import linear
from dask_odm.learning.problem.features import FeatureMap
from dask_odm.learning.problem.linear import PrimalProblem, Query, block_rows, hessian_stride, row_groups
from dask_odm.learning.problem.losses import BandLoss, ODMSettings
from dask_odm.linalg.row_passes import RowBlock
from dask_odm.models.linear_model import LinearModel
from small_problems import SETTINGS
from traced import traced

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
EVERY_FORM = pytest.mark.parametrize("form", ["dense", "csr"])
EVERY_CURVATURE = pytest.mark.parametrize("curvature", ["full", "diagonal", "none"])
WIDTHS = pytest.mark.parametrize("d", [1, 3, 18, 74])


@dataclass(frozen=True, eq=False)
class Case:
    """Rows as they are given, and all that is asked of them by plain formulas in float64."""

    X: np.ndarray
    codes: np.ndarray
    weight: np.ndarray
    features: FeatureMap
    loss: BandLoss
    form: str = "dense"

    @property
    def given(self):
        return self.X if self.form == "dense" else csr_array(self.X)

    @property
    def phi(self) -> np.ndarray:
        X, scaling = self.X.astype(np.float64), self.features.scaling
        X = X if scaling is None else (X - scaling.shift) * scaling.factor
        return np.column_stack([X, np.full(len(X), np.sqrt(self.features.bias))])[:, : self.features.k]

    @property
    def y(self) -> np.ndarray:
        return np.where(self.codes == 1, 1.0, -1.0)

    @property
    def weights(self) -> np.ndarray:
        """What every row weighs; 0 where it has no label."""
        own = self.weight if len(self.weight) else np.ones(len(self.X))
        by_class = np.where(self.y > 0, self.loss.positive_weight, self.loss.negative_weight)
        return np.where(self.codes < 0, 0.0, own * by_class)

    def terms(self, w: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss, y s and curvature of every row at w, from the papers' formulas."""
        s, m = self.loss.settings, self.y * (self.phi @ w)
        c = self.weights * s.lam / (self.loss.total_weight * (1 - s.theta) ** 2)
        below, above = np.maximum(1 - s.theta - m, 0), np.maximum(m - 1 - s.theta, 0)
        curved = c * ((below > 0) + s.upsilon * (above > 0))
        return c * (below**2 + s.upsilon * above**2) / 2, self.y * c * (below - s.upsilon * above), curved

    def problem(self, threads: int = 1) -> PrimalProblem:
        return PrimalProblem.over_rows(self.features, self.loss, self.given, self.codes, self.weight, threads)

    def primal(self, w: np.ndarray) -> float:
        return 0.5 * w @ w + self.problem().sums(w, "none").loss


def case(
    n: int = 300,
    d: int = 4,
    setting: tuple[float, float, float] = SETTINGS[0],
    *,
    form: str = "dense",
    dtype: str = "float64",
    bias: float = 1.0,
    scaled: bool = False,
    weighted: bool = False,
    unknown: bool = False,
) -> Case:
    """Rows of which some have no label if ``unknown``, and classes that weigh differently if ``weighted``."""
    rng = np.random.default_rng(d)
    X = (rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.6) + (form == "dense") * 0.3).astype(dtype)
    codes = rng.integers(-1 if unknown else 0, 2, n).astype(np.int8)
    weight = rng.uniform(0.2, 3.0, n) if weighted else np.empty(0)
    scaling = Scaling(rng.normal(size=d), rng.uniform(0.5, 2.0, d)) if scaled else None
    classes = (0.5, 3.0) if weighted else (1.0, 1.0)
    loss = BandLoss(ODMSettings(*setting), 1.0, *classes)
    made = Case(X, codes, weight, FeatureMap(d, bias, scaling), loss, form)
    total = float(made.weights.sum())
    return Case(X, codes, weight, made.features, BandLoss(loss.settings, total, *classes), form)


def somewhere(c: Case, seed: int = 0) -> np.ndarray:
    """Weights at which rows are below, within and above the band."""
    return np.random.default_rng(seed).normal(size=c.features.k) / np.sqrt(c.features.k)


def assert_sums(c: Case, w: np.ndarray, curvature: str, tolerance: float = 1e-11) -> None:
    found, (losses, pulls, curved), phi = c.problem().sums(w, curvature), c.terms(w), c.phi
    expected = {"full": (phi.T * curved) @ phi, "diagonal": curved @ phi**2, "none": np.zeros(0)}[curvature]
    assert found.loss == pytest.approx(losses.sum(), rel=tolerance)
    for values, exact, size in (
        (found.dual_image, phi.T @ pulls, np.abs(phi.T) @ np.abs(pulls)),
        (found.curvature, expected, expected.max(initial=0.0)),
    ):
        assert values.dtype == np.float64
        assert values.shape == exact.shape
        assert (np.abs(values - exact) <= tolerance * np.max(size, initial=1e-300)).all()


@WIDTHS
@EVERY_FORM
@EVERY_CURVATURE
@pytest.mark.parametrize("bias", [0.0, 1.0, 2.5])
@pytest.mark.parametrize("scaled", [False, True], ids=["raw", "scaled"])
def test_sums_are_those_of_the_formulas(d, form, curvature, bias, scaled):
    c = case(d=d, form=form, bias=bias, scaled=scaled, weighted=True, unknown=True)
    assert_sums(c, somewhere(c), curvature)


@EVERY_SETTING
@EVERY_FORM
@EVERY_CURVATURE
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("unknown", [False, True])
def test_sums_for_any_loss(setting, form, curvature, weighted, unknown):
    c = case(setting=setting, form=form, weighted=weighted, unknown=unknown)
    margins = c.y * (c.phi @ somewhere(c))
    assert (margins < 1 - setting[2]).any()
    assert_sums(c, somewhere(c), curvature)
    assert_sums(c, 5 * somewhere(c, 1), curvature)
    assert_sums(c, np.zeros(c.features.k), curvature)


@pytest.mark.parametrize("n", [1, 3, 255, 256, 257, 511, 513, 1031])
@EVERY_CURVATURE
@EVERY_FORM
def test_any_number_of_rows(n, curvature, form):
    c = case(n, 3, form=form, weighted=True)
    assert_sums(c, somewhere(c), curvature)


@WIDTHS
@EVERY_CURVATURE
@EVERY_FORM
def test_narrow_rows(d, curvature, form):
    c = case(700, d, dtype="float32", form=form, scaled=True, weighted=True)
    assert_sums(c, somewhere(c), curvature, 1e-5)


@WIDTHS
@EVERY_CURVATURE
@EVERY_FORM
@pytest.mark.parametrize("scaled", [False, True], ids=["raw", "scaled"])
def test_precise_sums_of_narrow_rows_are_in_float64(d, curvature, form, scaled):
    c = case(700, d, dtype="float32", form=form, scaled=scaled, weighted=True)
    w = somewhere(c)
    wide = Case(c.X.astype(np.float64), c.codes, c.weight, c.features, c.loss, form)
    found, expected = c.problem().sums(w, curvature, double_precision=True), wide.problem().sums(w, curvature)
    assert found.loss == pytest.approx(expected.loss, rel=1e-13)
    np.testing.assert_allclose(
        found.dual_image, expected.dual_image, rtol=0, atol=1e-11 * np.abs(expected.dual_image).max()
    )
    np.testing.assert_allclose(found.curvature, expected.curvature, rtol=1e-11, atol=1e-9)


@WIDTHS
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_losses_alone_are_also_those_of_a_models_predictions(d, dtype):
    c = case(700, d, dtype=dtype, weighted=True, unknown=True)
    w = somewhere(c)
    weights, intercept = c.features.raw_weights(w)
    values = LinearModel(weights[None], np.array([intercept])).values(c.X)[:, 0]
    expected = c.loss.evaluate(values.astype(np.float64), c.codes, c.weight)[0]
    assert c.problem().sums(w, "none", double_precision=True).predicted == pytest.approx(expected, rel=1e-12)


@WIDTHS
@EVERY_FORM
@pytest.mark.parametrize("scaled", [False, True], ids=["raw", "scaled"])
def test_products_are_those_with_the_hessian(d, form, scaled):
    c = case(d=d, form=form, scaled=scaled, weighted=True, unknown=True)
    problem, w, v = c.problem(), somewhere(c), somewhere(c, 3)
    hessian = (c.phi.T * c.terms(w)[2]) @ c.phi
    np.testing.assert_allclose(problem.product(w, v), hessian @ v, rtol=0, atol=1e-10 * np.abs(hessian).max())


def test_products_at_another_w_or_in_another_precision_are_not_the_remembered_ones():
    c = case(600, dtype="float32")
    problem, v = c.problem(), somewhere(c, 3)
    for w in (somewhere(c), 3 * somewhere(c, 1), somewhere(c)):
        hessian = (c.phi.T * c.terms(w)[2]) @ c.phi
        size = np.abs(hessian).max()
        for precise, tolerance in ((False, 1e-5), (True, 1e-12), (False, 1e-5)):
            for _ in range(2):
                found = problem.product(w, v, double_precision=precise)
                np.testing.assert_allclose(found, hessian @ v, rtol=0, atol=tolerance * size)


@EVERY_SETTING
@EVERY_FORM
def test_slopes_are_derivatives_along_a_direction(setting, form):
    c = case(setting=setting, form=form, weighted=True, unknown=True, scaled=True)
    w, direction, steps = somewhere(c), somewhere(c, 5), np.array([0.0, 0.125, 0.6, 1.0, 4.0])
    found = c.problem().slopes(w, direction, steps)
    expected = [-c.terms(w + t * direction)[1] @ (c.phi @ direction) for t in steps]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())
    ahead, behind = (c.terms(w + (0.6 + h) * direction)[0].sum() for h in (1e-6, -1e-6))
    assert found[2] == pytest.approx((ahead - behind) / 2e-6, rel=1e-4, abs=1e-6 * ahead)


@EVERY_FORM
def test_weights_of_scaled_rows_and_of_raw_rows_give_the_same_scores(form):
    c = case(form=form, scaled=True, bias=2.0)
    w = somewhere(c)
    weights, intercept = c.features.raw_weights(w)
    np.testing.assert_allclose(c.X @ weights + intercept, c.phi @ w, atol=1e-12)
    np.testing.assert_allclose(c.features.scores(c.features.block(c.given), w), c.phi @ w, atol=1e-12)


@EVERY_FORM
def test_rows_are_only_read(form):
    c = case(form=form, scaled=True)
    given = c.given
    arrays = [given] if form == "dense" else [given.data, given.indices, given.indptr]
    for array in arrays:
        array.flags.writeable = False
    problem = PrimalProblem.over_rows(c.features, c.loss, given, c.codes, c.weight)
    for curvature in ("full", "diagonal", "none"):
        problem.sums(somewhere(c), curvature)
    problem.product(somewhere(c), somewhere(c))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 64 rows, so that a few hundred are many."""
    monkeypatch.setattr(linear, "BLOCK_BYTES", 1)
    monkeypatch.setattr(linear, "SPARSE_ROWS", 64)


@pytest.mark.usefixtures("small_blocks")
@EVERY_FORM
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("d", [5, 74])
def test_threads_change_no_bit(form, dtype, d):
    c = case(64 * (2 * linear.MOST_GROUPS) + 9, d, form=form, dtype=dtype, scaled=True, weighted=True)
    w, v, steps = somewhere(c), somewhere(c, 1), np.linspace(0, 1, 5)
    answers = set()
    for threads in (1, 2, 5):
        problem = c.problem(threads)
        sums = [
            problem.sums(w, curvature, double_precision=p)
            for curvature in ("full", "diagonal", "none")
            for p in (False, True)
        ]
        arrays = [a for s in sums for a in (np.array(s.loss), s.dual_image, s.curvature)]
        arrays += [problem.product(w, v), problem.slopes(w, v, steps)]
        answers.add(b"".join(a.tobytes() for a in arrays))
    assert len(answers) == 1


@pytest.mark.usefixtures("small_blocks")
@EVERY_FORM
@EVERY_CURVATURE
def test_blocks_as_a_store_has_them_add_up_to_the_whole(form, curvature):
    """Blocks of other lengths than those products are taken of, a few of them empty."""
    c = case(700, 5, form=form, scaled=True, weighted=True, unknown=True)
    query, X = Query(c.features, c.loss, somewhere(c)), c.given
    bounds = [0, 1, 1, 64, 129, 400, 400, 700]
    spans = [slice(a, b) for a, b in pairwise(bounds)]
    blocks = [RowBlock(X[s], c.codes[s], c.weight[s]) for s in spans]
    together = query.sums(blocks, curvature)
    apart = reduce(add, (query.sums([block], curvature) for block in blocks))
    (losses, pulls, _), whole = c.terms(somewhere(c)), c.problem().sums(somewhere(c), curvature)
    for sums in (together, apart, whole):
        assert sums.loss == pytest.approx(losses.sum(), rel=1e-12)
        np.testing.assert_allclose(sums.dual_image, c.phi.T @ pulls, atol=1e-10)
        np.testing.assert_allclose(sums.curvature, whole.curvature, atol=1e-9)
    (curvatures,) = query.curvatures(blocks)
    v = somewhere(c, 2)
    np.testing.assert_array_equal(query.product(blocks, v, curvatures), query.product(blocks, v))
    np.testing.assert_allclose(query.product(blocks, v), c.problem().product(somewhere(c), v), atol=1e-9)


def test_a_block_is_bounded_and_so_are_the_partial_sums():
    assert block_rows(18, np.empty((1, 18))) * 18 * 8 <= linear.BLOCK_BYTES
    assert block_rows(10**7, np.empty((1, 1))) >= 1
    for k in (1, 100, 2048, 10**6):
        assert 2 <= row_groups(k) <= linear.MOST_GROUPS
    assert row_groups(2048) * 8 * 2048**2 <= 256 << 20
    assert row_groups(3000) == linear.MOST_GROUPS, "of so many weights sums are vectors"
    assert row_groups(3000, full=True) * 8 * 3000**2 <= 256 << 20


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [2100, 10_000, 70_001])
def test_a_sampled_hessian_is_near_the_whole_and_leaves_the_gradient_exact(dtype, n):
    rng = np.random.default_rng(n)
    X, codes = rng.normal(size=(n, 5)).astype(dtype), rng.integers(0, 2, n).astype(np.int8)
    p = PrimalProblem.over_rows(FeatureMap(5, 1.0), BandLoss(ODMSettings(1e3, 0.3, 0.2), n), X, codes, np.empty(0))
    w = rng.normal(size=6)
    whole, sampled = p.sums(w, "full"), p.sums(w, "full", hessian_stride=8)
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    assert sampled.loss == pytest.approx(whole.loss, rel=tolerance)
    np.testing.assert_allclose(
        sampled.dual_image, whole.dual_image, rtol=0, atol=tolerance * np.abs(whole.dual_image).max()
    )
    size = np.abs(whole.curvature).max()
    np.testing.assert_allclose(sampled.curvature, whole.curvature, rtol=0, atol=5 * size / np.sqrt(n / 8))
    if n > 10_000:
        assert not np.allclose(sampled.curvature, whole.curvature, rtol=1e-9)


def test_rows_are_sampled_for_a_hessian_where_they_are_many():
    assert [hessian_stride(n, 19) for n in (1000, 400_000, 1_000_000, 50_000_000)] == [1, 1, 4, 32]
    assert hessian_stride(1_000_000, 100) == 1


@pytest.mark.slow
def test_wide_sparse_rows_are_made_dense_a_few_at_a_time():
    n, d = 3000, 2000
    rng = np.random.default_rng(0)
    X = random_array((n, d), density=1e-3, format="csr", random_state=rng)
    block = RowBlock(X, rng.integers(0, 2, n).astype(np.int8), np.empty(0))
    query = Query(FeatureMap(d, 0.0), BandLoss(ODMSettings(10.0, 0.5, 0.2), float(n)), np.zeros(d))
    inverse = rng.normal(size=(d, d))
    query.leverages([block], inverse)  # compiles
    (found,), peak = traced(query.leverages, [block], inverse)
    total, more = traced(lambda: sum(features.sum(axis=0) for _, features in query.feature_rows(block)))
    assert max(peak, more) < 10_000_000 < 8 * n * d
    np.testing.assert_allclose(found[1], ((X @ inverse.T) ** 2).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(total, X.sum(axis=0), atol=1e-9)
