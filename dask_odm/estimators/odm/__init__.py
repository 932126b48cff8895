"""The optimal margin distribution machine: the estimator, and a recipe for every solver."""
