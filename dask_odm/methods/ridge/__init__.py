"""Ridge regression by shards that learn beside each other (MDD), linear or with kernels."""
