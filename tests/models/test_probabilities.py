"""Links: rising, through zero, near the truth where it is known, and no worse than Platt's sigmoid."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from dask_odm.models.probabilities import (
    fit_link,
    is_link,
    joined_links,
    log_odds,
    of_labels,
    probabilities,
)


def drawn(n, odds, seed=0):
    """Scores, and classes whose log-odds are a function of them."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(n)
    return scores, rng.random(n) < 1.0 / (1.0 + np.exp(-odds(scores))), np.ones(n)


def test_finds_odds_that_are_linear():
    """Logistic regression without an intercept is the maximum of the same likelihood."""
    scores, positive, weight = drawn(20_000, lambda f: 2.5 * f)
    slope = LogisticRegression(C=np.inf, fit_intercept=False).fit(scores[:, None], positive).coef_[0, 0]
    link, at = fit_link(scores, positive, weight), np.linspace(-2.0, 2.0, 9)
    np.testing.assert_allclose(log_odds(link, at), slope * at, atol=0.25)


def test_follows_odds_that_bend():
    def bent(f):
        return np.where(f > 0, 4.0 * np.tanh(f), 0.5 * f)

    link = fit_link(*drawn(50_000, bent))
    at = np.linspace(-2.0, 2.0, 41)
    expected = 1.0 / (1.0 + np.exp(-bent(at)))
    assert np.abs(probabilities(at, link)[:, 1] - expected).max() < 0.04


@pytest.mark.parametrize("rows", [
    drawn(40, lambda f: 3.0 * f),
    (np.array([0.5, -0.5, 2.0]), np.array([True, False, True]), np.ones(3)),  # told apart
    (np.array([1.0, 2.0]), np.array([True, True]), np.ones(2)),  # one side, one class
    (np.zeros(4), np.array([True, False, True, False]), np.ones(4)),
    drawn(3000, lambda f: -2.0 * f),  # the wrong way
    (np.repeat([-1.0, 1.0], 500), np.repeat([False, True], 500), np.full(1000, 1e-9)),
    (*drawn(300, lambda f: 3.0 * f)[:2], np.linspace(1e-3, 30.0, 300)),
    tuple(1e30 * each if i == 0 else each for i, each in enumerate(drawn(300, lambda f: 3.0 * f))),
])  # fmt: skip
def test_always_rises_through_zero(rows):
    scores, positive, weight = rows
    link = fit_link(scores, positive, weight)
    assert is_link(link)
    unit = max(1e-300, np.abs(scores).max())
    for at in (np.linspace(-5.0, 5.0, 999) * unit, np.array([-1e-300, 0.0, 1e-300])):
        found = probabilities(at, link)
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
        assert (np.diff(found[:, 1]) >= 0).all()
        np.testing.assert_array_equal(found.argmax(axis=1), at > 0)
        np.testing.assert_allclose(np.exp(probabilities(at, link, log=True)), found, rtol=1e-12)
        assert np.isfinite(probabilities(at, link, log=True)).all()


def test_logarithms_of_labels_are_those_of_two_classes_however_far():
    links = [fit_link(*drawn(300, lambda f, s=slope: s * f, seed=seed)) for seed, slope in enumerate((3.0, 0.5))]
    scores = np.array([-1e6, -1.0, 0.2, 1e6])
    found = of_labels(np.column_stack([scores, scores]), joined_links(links), log=True)
    expected = np.column_stack([probabilities(scores, link, log=True)[:, 1] for link in links])
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(np.exp(found), of_labels(np.column_stack([scores, scores]), joined_links(links)))


def test_a_weight_is_so_many_rows():
    scores, positive, _ = drawn(400, lambda f: 3.0 * f)
    times = np.random.default_rng(1).integers(1, 4, 400)
    found = fit_link(scores, positive, times.astype(float))
    again = fit_link(*(np.repeat(each, times) for each in (scores, positive)), np.ones(times.sum()))
    np.testing.assert_allclose(found, again, rtol=1e-6)


def test_knows_what_is_no_link():
    link = np.array([[-1.0, 0.0, 1.0], [-2.0, 0.0, 3.0]])
    assert is_link(link)
    for wrong in (link[:, ::-1], link[:1], link[:, :2], link + 0.5, link * [[1.0], [np.nan]], link * [[1.0], [0.0]]):
        assert not is_link(wrong)
