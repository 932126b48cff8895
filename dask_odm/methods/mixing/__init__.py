"""Robust parameter mixing: linear classifiers learn on shards, and their weights are mixed."""
