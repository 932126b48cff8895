"""The kernel ODM over landmarks (Nyström), in memory or by passes over a store."""
