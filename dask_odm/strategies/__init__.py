"""Strategies: how Dask runs solvers over partitions and combines them."""
