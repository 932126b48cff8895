"""Problems that are minimised: losses, linear and kernel problems, and their sums over rows. No Dask, no zarr."""
