"""Everything that several methods share: problems, Newton's method, leave-one-out, training data, checkpoints."""
