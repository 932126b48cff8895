"""Partitioners: which row goes to which partition, never what is solved on it."""
