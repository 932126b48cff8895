"""What a person looks at: progress bars, the table of tree levels, plots."""
