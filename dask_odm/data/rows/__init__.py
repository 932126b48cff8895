"""The rows of a fit: in memory, in the order of partitions on disk, sparse; their scaling."""
