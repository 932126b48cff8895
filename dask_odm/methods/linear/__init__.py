"""The linear machine, dense or sparse."""
