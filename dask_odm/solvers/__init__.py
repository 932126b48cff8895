"""Solvers: one algorithm a module, on NumPy arrays only."""
