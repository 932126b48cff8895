"""The zarr store: its layout, opening, reading and writing, records, and its interchange with xarray."""
