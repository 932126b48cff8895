"""What is minimised: losses, the linear problem, and what is summed over rows for them. No Dask, no zarr."""
