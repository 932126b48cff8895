"""Many classes by exact one-against-one machines."""
