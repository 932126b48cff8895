"""What every fit goes through: training data, scratch folders, checkpoints."""
