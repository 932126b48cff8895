"""One pass over a shard: scikit-learn's perceptron and Passive-Aggressive, and ODM's step from its definition."""

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.sparse import csr_array

from dask_odm.papers.mixing.online_passes import LOCALS, LocalRule
from small_problems import blobs

every_rule = pytest.mark.parametrize("name", LOCALS)


def rule_of(name: str, C: float = 1.0, lam: float = 1e3, theta: float = 0.1, upsilon: float = 0.5) -> LocalRule:
    return LocalRule(name, C, lam, theta, upsilon)


def walked(rule: LocalRule, X, y, *, weight=None, constant=False, seen=0, start=None) -> tuple[np.ndarray, np.ndarray]:
    w = np.zeros(X.shape[1] + constant) if start is None else np.array(start, dtype=float)
    return w, np.array(rule.walk(X, y, np.ones(len(y)) if weight is None else weight, w, seen))


def slow_pass(name: str, C: float, X: np.ndarray, y: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, float]:
    """Perceptron and Passive-Aggressive as the papers have them, row by row, with the weights of rows."""
    w, total = np.zeros(X.shape[1]), 0.0
    for x, label, weight in zip(X, y, c, strict=True):
        margin, square = label * (w @ x), x @ x
        loss = max(0.0, 1.0 - margin)
        if square == 0 or (margin > 0 if name == "perceptron" else loss == 0):
            continue
        tau = {
            "perceptron": weight,
            "pa": min(weight, 1.0) * loss / square,
            "pa1": min(weight * C, loss / square),
            "pa2": loss / (square + 1.0 / (2.0 * weight * C)),
        }[name]
        total += 1.0 if name == "perceptron" else loss**2
        w = w + tau * label * x
    return w, total


@pytest.mark.parametrize("name", LOCALS[:4])
def test_a_pass_with_a_constant_and_weights_is_the_papers(name):
    X, y = blobs(80, 3, seed=2, distance=0.5)
    X[::9] = 0.0
    weight = np.random.default_rng(0).uniform(0.2, 2.0, 80)
    rule = rule_of(name, C=0.3)
    for constant in (False, True):
        expected, loss = slow_pass(name, 0.3, np.column_stack([X, np.ones(80)]) if constant else X, y, weight)
        w, counted = walked(rule, X, y, weight=weight, constant=constant)
        np.testing.assert_allclose(w, expected, rtol=1e-9, atol=1e-12)
        assert counted[1] == pytest.approx(loss)


@pytest.mark.parametrize("seen", [0, 3, 40])
@pytest.mark.parametrize("margin", [-2.0, 0.3, 1.0, 1.05, 4.0, 30.0])
def test_an_implicit_step_minimises_what_it_is_to(margin, seen):
    """``½‖v − w‖² + η p(v)`` of one row, by a general minimiser."""
    rng = np.random.default_rng(seen)
    x, theta, upsilon, lam, c, eta = rng.normal(size=3), 0.1, 0.4, 20.0, 1.5, 1.0 / (1.0 + seen)
    start, label = rng.normal(size=3), -1.0
    start += (label * margin - start @ x) / (x @ x) * x

    def objective(v: np.ndarray) -> float:
        z = label * (v @ x)
        band = max(0.0, 1.0 - theta - z) ** 2 + upsilon * max(0.0, z - 1.0 - theta) ** 2
        p = 0.5 * (v @ v) + c * lam / (1.0 - theta) ** 2 * 0.5 * band
        return 0.5 * (v - start) @ (v - start) + eta * p

    rule = rule_of("odm", lam=lam, theta=theta, upsilon=upsilon)
    w, (moved, loss) = walked(rule, x[None], np.array([label]), weight=np.array([c]), seen=seen, start=start)
    found = minimize(objective, start, method="BFGS", options={"gtol": 1e-10})
    assert objective(w) <= found.fun + 1e-9 * abs(found.fun)
    np.testing.assert_allclose(w, found.x, atol=1e-4)
    assert (loss > 0) <= (moved > 0)


@every_rule
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("constant", [False, True])
def test_sparse_rows_walk_as_dense_ones(name, dtype, constant):
    rng = np.random.default_rng(3)
    X = (rng.normal(size=(120, 9)) * (rng.random((120, 9)) < 0.3)).astype(dtype)
    y, weight = rng.choice([-1.0, 1.0], 120), rng.uniform(0.5, 1.5, 120)
    dense = walked(rule_of(name), X, y, weight=weight, constant=constant, seen=7)
    sparse = walked(rule_of(name), csr_array(X), y, weight=weight, constant=constant, seen=7)
    for one, another in zip(dense, sparse, strict=True):
        np.testing.assert_allclose(one, another, rtol=1e-5 if dtype == "float32" else 1e-10)


@every_rule
def test_a_pass_in_two_parts_is_the_pass(name):
    X, y = blobs(50, 3, seed=4)
    whole, counted = walked(rule_of(name), X, y)
    w, first = walked(rule_of(name), X[:20], y[:20])
    _, rest = walked(rule_of(name), X[20:], y[20:], seen=20, start=w)
    again = w.copy()
    rule_of(name).walk(X[20:], y[20:], np.ones(30), again, 20)
    np.testing.assert_allclose(again, whole, rtol=1e-12)
    np.testing.assert_allclose(first + rest, counted, rtol=1e-12)
