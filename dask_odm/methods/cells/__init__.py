"""Cells: an exact machine for each region of the feature space."""
