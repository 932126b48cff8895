"""Robust parameter mixing of linear classifiers that learn shard by shard."""
