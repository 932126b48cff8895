"""Recipe of linear ridge regression by shards: one pass over the rows, then the MDD fixed point of small systems."""

from __future__ import annotations

from dask_odm.learning.training.recipe import Choice, Recipe
from dask_odm.learning.training.steps import rescaling_advised
from dask_odm.learning.training.trained import Trained, require_finite_solution
from dask_odm.learning.training.training_data import TrainingData
from dask_odm.methods.ridge.least_squares import learn, scaled_factor
from dask_odm.methods.ridge.moments import FromOrigin
from dask_odm.methods.ridge.settings import MDDFit
from dask_odm.models.linear import LinearModel


def train_ridge(data: TrainingData, fit: MDDFit) -> Trained:
    """Train by `dask_odm.methods.ridge.least_squares`, on the rows themselves."""
    with rescaling_advised():
        factor, zero = scaled_factor(data, fit)
        embedding = FromOrigin(data.origin()[0])
        found = learn(data, fit, embedding, "mdd-ridge", factor, None if fit.fit_intercept else zero)
        weights, intercept = found.moments.raw_weights(found.w)
        require_finite_solution(weights, intercept)
        return Trained(LinearModel(weights, intercept), found.attributes, found.warning)


class RidgeRecipe(Recipe[MDDFit]):
    linear = True

    def train(self, data: TrainingData, fit: MDDFit) -> Trained:
        return train_ridge(data, fit)


MOMENTS: Choice[MDDFit] = Choice("moments", "least squares needs one pass", RidgeRecipe())
