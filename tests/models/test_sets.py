"""Prediction sets from values of rows kept out: against their definition, and their coverage."""

import numpy as np
import pytest

from dask_odm.models.sets import conformity_table, is_table, thresholds_of


@pytest.mark.parametrize("n", [5, 9, 100, 1001])
@pytest.mark.parametrize("coverage", [0.5, 0.75, 0.9375])
def test_the_threshold_is_an_order_statistic(n, coverage):
    rng = np.random.default_rng(n)
    values, codes = rng.normal(size=(n, 3)), rng.integers(0, 3, n)
    table = conformity_table(values, codes, np.ones(n), 3)
    assert is_table(table)
    for by_class in (False, True):
        found = thresholds_of(table, coverage, by_class=by_class)
        for code in range(3):
            rows = codes == code if by_class else np.ones(n, bool)
            own = np.sort(values[np.arange(n), codes][rows])
            k = int(np.floor((len(own) + 1) * (1 - coverage) + 1e-9))
            assert found[code] == (own[k - 1] if k else -np.inf)


def test_a_weight_is_so_many_rows():
    rng = np.random.default_rng(0)
    values, codes, weight = rng.normal(size=200), rng.integers(0, 2, 200), rng.integers(0, 4, 200)
    weighted = conformity_table(values, codes, weight.astype(float), 2)
    repeated = conformity_table(np.repeat(values, weight), np.repeat(codes, weight), np.ones(weight.sum()), 2)
    close = np.isfinite(weighted) & np.isfinite(repeated)
    assert close.mean() > 0.98
    assert np.abs(weighted[close] - repeated[close]).mean() < 0.04
