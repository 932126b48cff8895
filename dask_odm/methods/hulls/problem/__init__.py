"""The problem of two reduced hulls, and what is summed over rows for it."""
