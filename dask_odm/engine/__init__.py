"""The spreading of work: the cluster, its watch, workers, and passes over all rows."""
