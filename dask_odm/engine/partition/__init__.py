"""Assign rows to partitions: in strata, at random, or in clusters."""
