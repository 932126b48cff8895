"""Output for people: progress bars, tables of tree levels and solver steps, evaluation, plots."""
