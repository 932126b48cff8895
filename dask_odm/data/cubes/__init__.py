"""Cubes: labelled arrays of any dimensions (xarray) read as rows, and answers put back in their places."""
