"""Rows of a fit: in memory, in partitions on disk, dense or sparse, and their scaling and targets."""
