"""Max-discrepancy distributed ridge regression (MDD), linear or with kernels: shards learn in parallel rounds."""
