"""MixingClassifier: iterative parameter mixing over shards, robust to shards full of wrong labels."""
