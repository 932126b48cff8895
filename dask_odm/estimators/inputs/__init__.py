"""Inputs of `fit` and `predict`: checks, and their conversion to rows in memory or a store."""
