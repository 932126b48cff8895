"""What all methods share: the problem, Newton's method, leave-one-out, the data of a fit, checkpoints."""
