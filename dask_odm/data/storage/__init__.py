"""Storage of the bytes of stores and records: folders, object stores, locks, and writes that appear whole."""
