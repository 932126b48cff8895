"""Data in and out: readers, ingestion, the zarr store, and its interchange with Dask and xarray."""
