"""Two reduced hulls: vertices, bounds and entries, over rows at hand and over rows that are streamed."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array

from dask_odm.data.rows.scaling import Scaling
from dask_odm.papers.saddle import problem as hulls_module
from dask_odm.papers.saddle.feasibility import separating_alpha
from dask_odm.papers.saddle.weighted_quantile import Guess, Look, Looked, find_quantiles, look_at, memory_of
from hull_problems import hulls

FORMS = pytest.mark.parametrize("form", [np.asarray, csr_array], ids=["dense", "csr"])
ALPHAS = pytest.mark.parametrize("alpha", [None, 0.02, 0.4, 0.85, 1.0])


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    X = np.round(rng.standard_normal((60, 3)), 1)
    return X, np.where(rng.random(60) < 0.4, 1.0, -1.0), rng.integers(1, 4, 60).astype(float)


def least(X, y, weight, w, alpha):
    """The least w·(a − b) over two hulls by linear programming, class by class."""
    total = 0.0
    for sign in (1.0, -1.0):
        own = y == sign
        mass = 1e-9 if alpha is None else alpha * min(weight[y > 0].sum(), weight[y < 0].sum())
        bounds = [(0, max(1.0, c / mass) if alpha is None else c / mass) for c in weight[own]]
        total += linprog(sign * X[own] @ w, A_eq=np.ones((1, own.sum())), b_eq=[1.0], bounds=bounds).fun
    return total


@ALPHAS
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_vertex_is_where_a_direction_is_least(rows, alpha, streamed, weighted):
    X, y, weight = rows
    problem = hulls(X, y, alpha, weight if weighted else None, streamed=streamed)
    for w in np.random.default_rng(1).standard_normal((5, 3)):
        expected = least(X, y, weight if weighted else np.ones(60), w, alpha)
        assert w @ problem.vertex(w).difference == pytest.approx(expected, abs=1e-8)


@FORMS
def test_the_support_is_the_rows_up_to_the_threshold(rows, form):
    X, y, weight = rows
    scaling = Scaling(np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 1.0]))
    problem = hulls(form(X), y, 0.7, weight, scaling=scaling, class_weights=(0.5, 2.0))
    w = np.array([1.0, -0.3, 0.2])
    vertex = problem.vertex(w)
    scores, caps = scaling(X) @ w, np.where(y > 0, 2.0, 0.5) * weight / problem.mass
    support = np.unpackbits(vertex.support(), count=60).astype(bool)
    for k, (own, sign) in enumerate([(y > 0, 1.0), (y < 0, -1.0)]):
        past = sign * (scores - vertex.thresholds[k])[own]
        assert (past[support[own]] <= 1e-12).all()
        assert (past[~support[own]] >= -1e-12).all()
        bounds = [(0, cap) for cap in caps[own & support]]  # the rows of the support alone have the vertex
        found = linprog(past[support[own]], A_eq=np.ones((1, len(bounds))), b_eq=[1.0], bounds=bounds)
        np.testing.assert_allclose(found.x @ scores[own & support], vertex.points[k] @ w)
    assert np.unpackbits(problem.start.support(), count=60).all()


@FORMS
@ALPHAS
@pytest.mark.parametrize("kept", [1, 1 << 20])
def test_streamed_rows_give_the_same_vertices(rows, form, alpha, kept, monkeypatch):
    """Whether the threshold is looked for in few bins, or in many."""
    X, y, weight = rows
    X, y, weight = (np.concatenate([part] * 20) for part in (X, y, weight))
    X = X + np.random.default_rng(3).choice([0.0, 0.1, 0.137], X.shape)
    monkeypatch.setattr(hulls_module, "LOOK_BYTES", kept)
    held, streamed = (hulls(form(X), y, alpha, weight, streamed=each, step=90) for each in (False, True))
    np.testing.assert_allclose(held.totals.means, streamed.totals.means, atol=1e-14)
    assert held.scale == pytest.approx(np.linalg.norm(X, axis=1).max(), rel=1e-12)
    w = np.array([0.3, -1.0, 0.7])
    for move in np.random.default_rng(2).standard_normal((8, 3)) * 0.1:
        w = w + move
        one, other = held.vertex(w), streamed.vertex(w)
        np.testing.assert_allclose(one.points, other.points, atol=1e-11)
        np.testing.assert_allclose(one.thresholds, other.thresholds, atol=1e-12)
    assert streamed.passes_made <= 1 + 8 * 3


@ALPHAS
@pytest.mark.parametrize("slack", [1e-2, 1e-4])
def test_what_a_vertex_lacks_of_the_best_is_within_what_it_says(rows, alpha, slack, monkeypatch):
    monkeypatch.setattr(hulls_module, "LOOK_BYTES", 1)
    X, y, weight = rows
    X, y, weight = (np.concatenate([part] * 20) for part in (X, y, weight))
    X = X + np.random.default_rng(3).standard_normal(X.shape) * 0.3
    held, streamed = (hulls(X, y, alpha, weight, streamed=each, step=90) for each in (False, True))
    streamed.slack, w, lacking = slack, np.array([0.3, -1.0, 0.7]), 0
    for move in np.random.default_rng(2).standard_normal((8, 3)) * 0.1:
        w = w + move
        best, found = w @ held.vertex(w).difference, streamed.vertex(w)
        assert -1e-9 <= w @ found.difference - best <= found.slack + 1e-9
        assert found.slack <= slack * (w @ w)
        lacking += found.slack > 0
    assert lacking or alpha is None or slack < 1e-2
    assert streamed.vertex(w, exact=True).slack <= 1e-12


def test_a_far_guess_is_mended(rows):
    X, y, _ = rows
    held, streamed = hulls(X, y, 0.5), hulls(X, y, 0.5, streamed=True)
    w = np.array([1.0, 2.0, 3.0])
    streamed.memory = memory_of(w, [1e3, -1e3], np.zeros((2, 3)))
    # scores that are equal but for rounding may be told apart otherwise, which gives another of the least points
    assert w @ streamed.vertex(w).difference == pytest.approx(w @ held.vertex(w).difference, abs=1e-12)


def test_the_ends_of_a_window_are_in_it():
    """In whatever way the processor rounds: a row outside would be looked for at either side, for ever."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        low, high = np.sort(rng.standard_normal(2) * 10.0 ** rng.integers(-9, 3, 2))
        X, guess = np.array([[low], [high]]), Guess(low, high, low, high)
        looked = look_at(Look((guess, guess), 64), [(X, np.ones(2), np.empty(0))], np.ones(1), np.zeros(1), np.ones(1))
        weights = looked.sums[0, :, -1]
        assert weights[0] == weights[-1] == 0
        assert weights[1] == weights[-2] == 1


def test_sums_that_round_otherwise_end_the_search():
    """The weights below a window are more than the mass in the order of rows, and equal it in that of scores."""
    rows, weight, mass = np.array([[2.0], [1.0], [0.0], [3.0]]), np.array([0.1, 0.2, 0.3, 0.4]), 0.6
    assert (0.1 + 0.2) + 0.3 > mass == (0.3 + 0.2) + 0.1
    looks = []

    def ask(look: Look) -> Looked:
        looks.append(look)
        assert len(looks) < 10
        both = [(sign * rows, np.full(4, code), weight) for sign, code in ((1.0, 1.0), (-1.0, 0.0))]
        return look_at(look, both, np.ones(1), np.zeros(1), np.ones(1))

    above = Guess(-9.0, 9.0, 2.5, 3.5)
    found, _ = find_quantiles(ask, Look((above, above), 64), mass, 0.0)
    np.testing.assert_allclose(found.point, [(0.1 * 2 + 0.2) / 0.6])


def test_no_direction_and_no_features_are_no_trouble(rows):
    X, y, _ = rows
    for streamed in (False, True):
        vertex = hulls(X, y, 0.5, streamed=streamed).vertex(np.zeros(3))
        np.testing.assert_allclose(vertex.points, [X[y > 0].mean(axis=0), X[y < 0].mean(axis=0)], atol=1e-12)
        assert hulls(np.zeros((60, 3)), y, 0.5, streamed=streamed).vertex(np.zeros(3)).thresholds == (0.0, 0.0)


def test_an_alpha_that_parts_the_hulls_along_a_direction(rows):
    X, y, _ = rows
    X = X + 1.0 * (y > 0)[:, None]
    problem = hulls(X, y, 0.02)
    w = problem.start.difference
    alpha = separating_alpha(problem, w)
    assert least(X, y, np.ones(60), w, alpha) > 0 > least(X, y, np.ones(60), w, alpha - 0.02)
    assert separating_alpha(problem, -w) is None
