"""The problem of two reduced hulls, and the sums over rows that it takes."""
