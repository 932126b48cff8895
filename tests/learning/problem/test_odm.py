"""The ODM problem against its formulas: P ≥ D anywhere, gaps row by row, optimality, weights as repeated rows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from dask_odm.learning.problem.losses import ODMSettings, RowLosses, own_gap
from dask_odm.learning.training.recipe import stopped_at
from small_problems import SETTINGS, SmallProblem, any_dual, small_problem

EVERY_SETTING = pytest.mark.parametrize("setting", SETTINGS, ids=str)
WEIGHTED = pytest.mark.parametrize("weighted", [False, True], ids=["equal", "weighted"])


def starts(p: SmallProblem) -> list[np.ndarray]:
    """Dual variables: none, near the optimum, at it, far away, all on one side."""
    best, _ = p.optimum()
    far = [any_dual(p, seed, scale) for seed, scale in enumerate((1e-6, 1e-2, 1.0, 1e3))]
    return [np.zeros(len(p.y)), best, 0.9 * best, np.abs(far[1]), *far]


@EVERY_SETTING
@WEIGHTED
def test_values_are_those_of_the_formulas(setting, weighted):
    p = small_problem(50, setting, weighted=weighted)
    for s in starts(p):
        point = own_gap(p.losses, p.y * s, p.decision(s))
        assert point.primal == pytest.approx(p.primal(s), rel=1e-10)
        assert point.dual == pytest.approx(p.dual(s), rel=1e-10, abs=1e-10 * p.primal(s))
        assert point.gap == pytest.approx(p.gap(s), rel=1e-8, abs=1e-12)


@EVERY_SETTING
@WEIGHTED
def test_gap_is_the_sum_of_non_negative_row_gaps(setting, weighted):
    p = small_problem(50, setting, weighted=weighted)
    for s in starts(p):
        gaps = p.losses.row_gaps(s, p.y * p.decision(s))
        assert gaps.shape == (50,)
        assert (gaps >= 0).all(), "by construction, whatever the rounding"
        difference = p.primal(s) - p.dual(s)
        assert gaps.sum() == pytest.approx(difference, rel=1e-9, abs=1e-11 * p.primal(s))


@given(
    s=st.floats(-1e6, 1e6),
    margin=st.floats(-1e6, 1e6),
    theta=st.floats(0.0, 0.99),
    upsilon=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)),
    lam=st.floats(1e-6, 1e9),
)
def test_a_row_gap_is_loss_plus_conjugate_plus_product(s, margin, theta, upsilon, lam):
    """Fenchel and Young, row by row: the sum they guarantee is what `row_gaps` claims, and it is never negative."""
    s = abs(s) if upsilon == 0 else s
    one = np.array([1.0])
    losses = RowLosses(ODMSettings(lam, upsilon, theta), one, one)
    dual, margins = np.array([s]), np.array([margin])
    gap = losses.row_gaps(dual, margins)[0]
    assert gap >= 0
    linear = (1.0 + theta) * max(-s, 0.0) - (1.0 - theta) * max(s, 0.0)
    parts = [losses.losses(margins)[0], losses.dual_squares(dual)[0] + linear, s * margin]
    assert gap == pytest.approx(sum(parts), rel=1e-6, abs=1e-9 * sum(map(abs, parts)))


def test_without_an_upper_side_a_negative_s_has_no_dual_value():
    p = small_problem(20, (10.0, 0.0, 0.1))
    point = own_gap(p.losses, -p.y, p.decision(-np.ones(20)))
    assert point.dual == -np.inf
    assert point.gap == np.inf
    assert np.isfinite(point.primal)


def test_a_negative_square_norm_certifies_nothing():
    """A model that is the best of its own objective, by a matrix that is no kernel's: D bounds nothing there."""
    p = small_problem(20, (10.0, 0.2, 0.1))
    coefficients = 0.1 * p.y
    assert own_gap(p.losses, coefficients, coefficients).gap < np.inf
    assert own_gap(p.losses, coefficients, -coefficients).gap == np.inf
    assert stopped_at(np.inf, 1e-3).startswith("‖w‖² is negative, so that no gap is known")


@EVERY_SETTING
@WEIGHTED
def test_losses_and_their_derivatives(setting, weighted):
    p = small_problem(30, setting, weighted=weighted)
    losses, step = p.losses, 1e-5
    margins = np.linspace(-3.0, 5.0, 30)

    def value(m: np.ndarray) -> np.ndarray:
        return losses.losses(m)

    slope = (value(margins + step) - value(margins - step)) / (2 * step)
    scale = losses.stiffness_low.max()
    np.testing.assert_allclose(losses.dual_candidate(margins), -slope, rtol=1e-6, atol=1e-6 * scale)
    low, high = 1 - p.theta, 1 + p.theta
    clear = (np.abs(margins - low) > 2 * step) & (np.abs(margins - high) > 2 * step)
    bend = -(losses.dual_candidate(margins + step) - losses.dual_candidate(margins - step)) / (2 * step)
    np.testing.assert_allclose(losses.curvature(margins)[clear], bend[clear], rtol=1e-6, atol=1e-6 * scale)
    rho_zeta, rho_beta = reference.penalties(30, *p.parameters)
    np.testing.assert_allclose(1.0 / losses.stiffness_low, rho_zeta)
    np.testing.assert_allclose(losses.stiffness_high, 1.0 / rho_beta)


@EVERY_SETTING
def test_optimum_is_its_own_dual_candidate(setting):
    p = small_problem(50, setting)
    s, _ = p.optimum()
    candidate = p.losses.dual_candidate(p.y * p.decision(s))
    np.testing.assert_allclose(candidate, s, atol=1e-8 * np.abs(s).max())


@EVERY_SETTING
def test_scale_of_weights_does_not_matter(setting):
    """Only shares count: ρ_i = M (1−θ)² / (λ c_i)."""
    p = small_problem(30, setting, weighted=True)
    tenfold = RowLosses(p.losses.settings, p.y, 10.0 * p.weight)
    np.testing.assert_allclose(tenfold.stiffness_low, p.losses.stiffness_low, rtol=1e-14)
