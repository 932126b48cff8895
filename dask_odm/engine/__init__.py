"""How work is spread: the cluster, its watch, workers, and passes over all rows."""
