"""What a user can hand over to `fit` and `predict`, as rows in memory or a store."""
