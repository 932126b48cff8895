"""Data in and out: readers, ingest, the zarr store, and its face to Dask and xarray."""
