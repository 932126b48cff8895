"""Robust parameter mixing: linear classifiers learn on shards, and their weights are mixed (KL-IPM and Beta-IPM).

Source: Komiyama, Oiwa, Nakagawa, *Robust Distributed Training of Linear Classifiers Based on Divergence Minimization
Principle*. Both mixtures are `solver`, the perceptron's and passive-aggressive passes over a shard `online_passes`.

Wrong in print or missing: the right side of (23) is ‖u‖²; the exponentials of (6) are all 0 for many features, so that
sums are taken relative to the largest; a feature of one shard alone adds M − 1 to its distance, and is left out. The
paper chooses β on the test rows.
"""
