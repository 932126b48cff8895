"""Estimators: the scikit-learn face of the solvers and strategies."""
