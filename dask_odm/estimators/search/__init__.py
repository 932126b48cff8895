"""Settings that are found by a search."""
