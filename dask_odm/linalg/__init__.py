"""Numerics that know nothing of learning: linear systems, ordered sums, threads, compiled loops. No Dask, no zarr."""
