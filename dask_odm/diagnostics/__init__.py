"""Output for a person: progress bars, tables of tree levels and solver steps, evaluation, plots."""
