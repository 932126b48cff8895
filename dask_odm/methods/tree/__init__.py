"""Solvers that train on partitions, merge them and solve again: SODM and its rivals (cascade, DiP, DC)."""
