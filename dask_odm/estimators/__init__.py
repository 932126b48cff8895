"""Estimators: scikit-learn's interface to the methods."""
