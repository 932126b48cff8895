"""The zarr store: what lies where, opening, reading and writing, records, and its face to xarray."""
