"""Ridge and kernel ridge regression by shards that learn beside each other (MDD), or by one."""
